"""A Gaussian last layer against Bayesian regression written out by hand."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Chi2, MultivariateNormal, Normal, StudentT

from warmstart.core import InputError, functional, make_batch, make_task
from warmstart.core.trees import leaves, tree_map
from warmstart.engine.meta import predict_stack
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.learners import gem_head
from warmstart.learners.gem_head import LEAST, Config
from warmstart.maths.classes import corners
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
TASKS, CLASSES = 3, 4


def drawn(likelihood, cfg=Config(), stage=PLAIN):
    """A learner whose prior is the same for no two features, and tasks with an odd weight and a row that is none."""
    model = functional(MLP(2, (6,), CLASSES if likelihood is multiclass else 1, activation="tanh"), "head.*")
    learner = gem_head.build(model, likelihood, cfg, stage)
    state = learner.init(model.params)
    moved = {"log_sd": state.theta["log_sd"] + 0.3 * torch.randn(7), "log_heat": torch.tensor(0.4)}
    moved["factor"] = 0.4 * torch.randn(7, cfg.rank)
    if cfg.dof:
        moved["log_dof"] = state.theta["log_dof"] + 0.3
    if "mean" in state.theta:
        moved["mean"] = 0.5 * torch.randn(7)

    def rows(count):
        y = {"squared": torch.randn(TASKS, count), "binary": torch.randint(2, (TASKS, count)).double()}
        if likelihood is multiclass:
            y["multiclass"] = (torch.arange(count) % CLASSES).expand(TASKS, -1)
        return make_batch(torch.randn(TASKS, count, 2), y[likelihood.name])

    support, query = rows(6), rows(5)
    support = support._replace(w=support.w.index_fill(1, torch.tensor([2]), 2.5))
    query = query._replace(mask=query.mask.index_fill(1, torch.tensor([4]), 0.0))
    return model, learner, state._replace(theta={**state.theta, **moved}), make_task(support, query)


def features(model, theta, x):
    seen = model.features(theta["features"], x)
    return torch.cat([seen, torch.ones(len(seen), 1)], 1)


def targets(likelihood, y):
    if likelihood is multiclass:
        return corners(CLASSES, torch.zeros(()))[y]
    return (2 * y - 1 if likelihood is binary else y)[:, None]


def variance_of(theta, likelihood):
    return LEAST[likelihood.name] + torch.exp(2 * theta["log_noise"])


def prior_covariance(theta):
    return torch.diag(torch.exp(2 * theta["log_sd"])) + theta["factor"] @ theta["factor"].T


def freedom(theta):
    return 3 + theta["log_dof"].exp()


def log_marginal(model, theta, likelihood, x, y, weight):
    """Of one task; a scale of its own is integrated out on a grid of its logarithms."""
    if "log_dof" not in theta:
        return log_marginal_at(1.0, model, theta, likelihood, x, y, weight)
    dof, grid = freedom(theta), torch.linspace(-8, 12, 161)  # log of 1 / t^2
    prior = Chi2(dof).log_prob(dof * grid.exp()) + dof.log() + grid
    given = [log_marginal_at(scale, model, theta, likelihood, x, y, weight) for scale in (-grid).exp()]
    return torch.logsumexp(prior + torch.stack(given), 0) + math.log(grid[1] - grid[0])


def log_marginal_at(scale, model, theta, likelihood, x, y, weight):
    """log N(y; f m, t^2 (f S f' + noise / weight)), axis by axis, for a scale t^2; padding left out."""
    x, y, weight = x[weight > 0], y[weight > 0], weight[weight > 0]
    seen, told = features(model, theta, x), targets(likelihood, y)
    mean = torch.zeros(len(x)) if likelihood is multiclass else seen @ theta["mean"]
    noise = scale * variance_of(theta, likelihood)
    covariance = scale * seen @ prior_covariance(theta) @ seen.T + torch.diag(noise / weight)
    # a row of weight c counts c times: c rows at one place are one of variance noise / c and a constant
    constant = -0.5 * (weight.log() + (weight - 1) * torch.log(2 * math.pi * noise)).sum()
    normal = MultivariateNormal(mean, covariance)
    return sum(normal.log_prob(column) + constant for column in told.T)


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
@pytest.mark.parametrize("form", ["query", "all"])
@pytest.mark.parametrize(("rank", "dof"), [(0, 0.0), (3, 0.0), (3, 5.0)])
@pytest.mark.parametrize("likelihood", [squared, binary, multiclass], ids=lambda one: one.name)
def test_the_objective_is_the_likelihood_of_rows_together(likelihood, rank, dof, form, stage):
    cfg = Config(objective=form, rank=rank, dof=dof, noise=0.6, spread=0.8)
    model, learner, state, task = drawn(likelihood, cfg, stage)
    both = tree_map(lambda s, q: torch.cat([s, q], 1), task.support, task.query)

    def likely(theta, batch, i, chosen):
        """Of the chosen rows of a task, together."""
        weight = (batch.w * batch.mask)[i][chosen]
        return log_marginal(model, theta, likelihood, batch.x[i][chosen], batch.y[i][chosen], weight)

    def objective(theta):
        total, shown = torch.zeros(()), task.support.y.shape[1]
        rows, known = torch.arange(both.y.shape[1]), torch.arange(shown)
        for i in range(TASKS):
            weight = (both.w * both.mask)[i]
            if form == "all":
                total = total - likely(theta, both, i, rows) / weight.sum()
                continue
            gained = likely(theta, both, i, rows) - likely(theta, both, i, known)
            total = total - gained / weight[shown:].sum()
        return total

    delta, info = learner.meta_grad(state, task, ())
    torch.testing.assert_close(info.loss, objective(state.theta), rtol=1e-8, atol=1e-10)
    theta = {name: part for name, part in state.theta.items() if name != "log_heat"}
    slopes = torch.func.grad(lambda part: objective({**state.theta, **part}))(theta)
    assert slopes["features"]["body.0.weight"].abs().max() > 1e-3
    found = {name: part for name, part in delta.grad.items() if name != "log_heat"}
    for one, slope in zip(leaves(found), leaves(slopes), strict=True):
        torch.testing.assert_close(one, slope, rtol=1e-8, atol=1e-10)


def posterior(model, theta, likelihood, batch, i):
    """Mean [d, axes] and covariance of w, by the normal equations."""
    seen, told = features(model, theta, batch.x[i]), targets(likelihood, batch.y[i])
    weight = (batch.w * batch.mask)[i][:, None] / variance_of(theta, likelihood)
    before = torch.linalg.inv(prior_covariance(theta))
    mean = torch.zeros(7) if likelihood is multiclass else theta["mean"]
    covariance = torch.linalg.inv(before + seen.T @ (seen * weight))
    return covariance @ ((before @ mean)[:, None] + seen.T @ (told * weight)), covariance


@pytest.mark.parametrize("plus", [True, False], ids=["plus", "marginal"])
@pytest.mark.parametrize("rank", [0, 3])
def test_its_gradient_is_that_of_the_gradient_em_theorem(rank, plus):
    """E_q2 grad log p(all rows, w) - E_q1 grad log p(support, w), with posteriors that are not differentiated."""
    model, learner, state, task = drawn(squared, Config(objective="query" if plus else "all", rank=rank, noise=0.6))
    both = tree_map(lambda s, q: torch.cat([s, q], 1), task.support, task.query)

    def expected(theta, batch, i, mean, covariance):
        """E_q log p(rows, w) in closed form."""
        seen, weight = features(model, theta, batch.x[i]), (batch.w * batch.mask)[i]
        noise, prior = variance_of(theta, squared), prior_covariance(theta)
        square = (batch.y[i] - seen @ mean) ** 2 + (seen @ covariance * seen).sum(-1)
        rows = -0.5 * (weight * (square / noise + noise.log())).sum()
        away = mean - theta["mean"]
        apart = torch.outer(away, away) + covariance
        return rows - 0.5 * (torch.trace(torch.linalg.solve(prior, apart)) + torch.logdet(prior))

    def surrogate(theta):
        total = torch.zeros(())
        for i in range(TASKS):
            value, rows = torch.zeros(()), torch.zeros(())
            for sign, batch in ((1, both), (-1, task.support))[: 2 if plus else 1]:
                mean, covariance = posterior(model, state.theta, squared, batch, i)
                value = value + sign * expected(theta, batch, i, mean.squeeze(1), covariance)
                rows = rows + sign * (batch.w * batch.mask)[i].sum()
            total = total - value / rows
        return total

    delta, _ = learner.meta_grad(state, task, ())
    for one, slope in zip(leaves(delta.grad), leaves(torch.func.grad(surrogate)(state.theta)), strict=True):
        torch.testing.assert_close(one, slope, rtol=1e-8, atol=1e-10)


def own_scale(model, theta, likelihood, batch, i):
    """t^2 as the rows of a task have it, and its degrees of freedom, from the dense covariance of the rows."""
    if "log_dof" not in theta:
        return 1.0, math.inf
    weight = (batch.w * batch.mask)[i]
    seen, told = features(model, theta, batch.x[i]), targets(likelihood, batch.y[i])
    if likelihood is not multiclass:
        told = told - (seen @ theta["mean"])[:, None]
    covariance = seen @ prior_covariance(theta) @ seen.T + torch.diag(variance_of(theta, likelihood) / weight)
    dof = freedom(theta) + weight.sum() * told.shape[1]
    return (freedom(theta) + (told * torch.linalg.solve(covariance, told)).sum()) / dof, dof


@pytest.mark.parametrize(("rank", "dof"), [(0, 0.0), (3, 0.0), (3, 5.0)])
@pytest.mark.parametrize("likelihood", [squared, binary, multiclass], ids=lambda one: one.name)
def test_a_task_is_a_bayesian_regression_on_its_features(likelihood, rank, dof):
    """A class is as likely as the density of its corner under what is predicted, to the power of the heat."""
    model, learner, state, task = drawn(likelihood, Config(rank=rank, dof=dof))
    said, theta = predict_stack(learner, state, task), state.theta
    for i in range(TASKS):
        mean, covariance = posterior(model, theta, likelihood, task.support, i)
        new = features(model, theta, task.query.x[i])
        scale, freely = own_scale(model, theta, likelihood, task.support, i)
        spread = scale * ((new @ covariance * new).sum(-1) + variance_of(theta, likelihood))
        if likelihood is squared:
            torch.testing.assert_close(said.mean[i], (new @ mean).squeeze(1))
            torch.testing.assert_close(said.variance[i], spread * (freely / (freely - 2) if dof else 1.0))
            continue
        places = targets(likelihood, torch.arange(CLASSES) if likelihood is multiclass else torch.tensor([0.0, 1.0]))
        squares = ((places[None] - (new @ mean)[:, None]) ** 2).sum(-1) / spread[:, None]
        sure = torch.exp(theta["log_heat"]) / (CLASSES if likelihood is multiclass else 1)
        chance = torch.softmax(-0.5 * sure * squares, -1)
        torch.testing.assert_close(said.mean[i], chance if likelihood is multiclass else chance[:, 1])


def log_loss(said, likelihood, query, dof=None):
    """Minus the mean log likelihood of a task's query rows, summed over tasks; of numbers by a t of so much freedom."""
    if likelihood is squared and dof is not None:
        rows = StudentT(dof, said.mean, (said.variance * (1 - 2 / dof)).sqrt()).log_prob(query.y)
    elif likelihood is squared:
        rows = Normal(said.mean, said.variance.sqrt()).log_prob(query.y)
    elif likelihood is binary:
        rows = torch.where(query.y > 0, said.mean.log(), (1 - said.mean).log())
    else:
        rows = said.mean.gather(-1, query.y.long()[..., None])[..., 0].log()
    return -((rows * query.mask).sum(1) / query.mask.sum(1)).sum()


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
@pytest.mark.parametrize("dof", [0.0, 5.0])
@pytest.mark.parametrize("likelihood", [squared, binary, multiclass], ids=lambda one: one.name)
def test_one_by_one_the_objective_is_the_log_loss_of_what_is_predicted(likelihood, dof, stage):
    _, learner, state, task = drawn(likelihood, Config(rank=3, dof=dof, noise=0.6, spread=0.8), stage)

    def loss(theta):
        said = predict_stack(learner, state._replace(theta=theta), task)
        after = (freedom(theta) + task.support.w.sum(1))[:, None] if dof else None
        return log_loss(said, likelihood, task.query, after)

    delta, info = learner.meta_grad(state, task, ())
    torch.testing.assert_close(info.loss, loss(state.theta), rtol=1e-8, atol=1e-10)
    own = [("log_dof",)] if dof else []
    for path in (("log_sd",), ("factor",), ("log_noise",), ("log_heat",), *own, ("features", "body.0.weight")):
        along = torch.randn(state.theta[path[0]].shape if len(path) == 1 else state.theta["features"][path[1]].shape)

        def at(step, path=path, along=along):
            theta = dict(state.theta)
            if len(path) == 1:
                return loss({**theta, path[0]: theta[path[0]] + step * along})
            return loss(
                {**theta, "features": {**theta["features"], path[1]: theta["features"][path[1]] + step * along}}
            )

        found = delta.grad[path[0]] if len(path) == 1 else delta.grad["features"][path[1]]
        slope = float(at(1e-5) - at(-1e-5)) / 2e-5
        assert float((found * along).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("likelihood", [binary, multiclass], ids=lambda one: one.name)
def test_where_rows_are_judged_together_the_heat_is_learned_by_their_log_loss(likelihood):
    _, learner, state, task = drawn(likelihood, Config(objective="query"))

    def loss(heat):
        at = state._replace(theta={**state.theta, "log_heat": torch.tensor(heat)})
        return float(log_loss(predict_stack(learner, at, task), likelihood, task.query))

    delta, _ = learner.meta_grad(state, task, ())
    slope = (loss(0.4 + 1e-5) - loss(0.4 - 1e-5)) / 2e-5
    assert abs(slope) > 0.01
    assert delta.grad["log_heat"].item() == pytest.approx(slope, rel=1e-4)


def test_classes_are_exchangeable_and_may_be_more_than_the_head_has():
    model, _, state, _ = drawn(multiclass)
    learner = gem_head.build(model, multiclass, classes=6)
    y = torch.arange(6).expand(TASKS, -1)
    task = make_task(make_batch(torch.randn(TASKS, 6, 2), y), make_batch(torch.randn(TASKS, 6, 2), y))
    said = predict_stack(learner, state, task).mean
    other = task._replace(support=task.support._replace(y=y.flip(1)))
    torch.testing.assert_close(predict_stack(learner, state, other).mean, said.flip(2))


def test_more_classes_are_no_reason_to_be_surer():
    """The same rows of the same classes are as likely whatever number of classes there might have been."""
    model, learner, state, task = drawn(multiclass)
    said = predict_stack(learner, state, task).mean
    among = predict_stack(gem_head.build(model, multiclass, classes=9), state, task).mean
    torch.testing.assert_close(among[..., :CLASSES], said)
    assert (among[..., CLASSES:] == 0).all()
    assert learner.init(model.params).theta["log_heat"].exp().item() == pytest.approx(CLASSES)


def test_directions_begin_apart_from_zero_where_their_slope_is_zero():
    """And with another seed elsewhere."""
    model = functional(MLP(2, (6,), 1), "head.*")
    learners = [gem_head.build(model, squared, Config(rank=2, seed=seed)) for seed in (0, 1)]
    one, other = (learner.init(model.params).theta["factor"] for learner in learners)
    assert one.shape == (7, 2) and (one != 0).all() and (one != other).all()


def test_a_scale_that_all_tasks_share_is_not_learned_on():
    """In single precision the slope of more than 10,000 degrees of freedom would be rounding, and grow with them."""
    model, learner, state, task = drawn(squared, Config(objective="all", dof=5.0))
    single, task = tree_map(lambda leaf: leaf.float() if leaf.is_floating_point() else leaf, (state.theta, task))

    def told(learner, theta):
        delta, info = learner.meta_grad(state._replace(theta=theta), task, ())
        return delta.grad, info.loss.item()

    slopes, loss = told(learner, {**single, "log_dof": torch.tensor(60.0, dtype=torch.float32)})
    plain = gem_head.build(model, squared, Config(objective="all"))
    _, shared = told(plain, {name: part for name, part in single.items() if name != "log_dof"})
    assert slopes["log_dof"] == 0 and told(learner, single)[0]["log_dof"] != 0
    assert loss == pytest.approx(shared, rel=0.05)


def test_decay_is_of_the_network_alone():
    _, learner, state, _ = drawn(squared, Config(outer_lr=0.1, weight_decay=0.5))
    nothing = gem_head.Delta(tree_map(torch.zeros_like, state.theta))
    moved = learner.update(state, nothing, torch.tensor(1.0)).theta
    torch.testing.assert_close(moved.pop("features"), tree_map(lambda leaf: 0.95 * leaf, state.theta["features"]))
    torch.testing.assert_close(moved, {name: part for name, part in state.theta.items() if name != "features"})


def test_the_outer_memory_is_the_one_that_was_asked_for():
    """Two updates: of a slope of 1, then of one of 10, whose share of the second moment is what b2 leaves it."""
    _, learner, state, _ = drawn(squared, Config(outer_lr=0.1, outer_b2=0.5))
    before, flat = state.theta["log_noise"], tree_map(torch.zeros_like, state.theta)
    for slope in (1.0, 10.0):
        delta = gem_head.Delta({**flat, "log_noise": torch.tensor(slope)})
        state = learner.update(state, delta, torch.tensor(1.0))
    mean = (0.9 * 0.1 * 1.0 + 0.1 * 10.0) / (1 - 0.9**2)
    square = (0.5 * 0.5 * 1.0 + 0.5 * 100.0) / (1 - 0.5**2)
    torch.testing.assert_close(state.theta["log_noise"], before - 0.1 - 0.1 * mean / math.sqrt(square))


def test_a_class_without_a_row_has_no_chance_and_without_rows_all_have_the_same():
    _, learner, state, task = drawn(multiclass)
    few = task._replace(support=task.support._replace(y=task.support.y.clamp(max=2)))
    said = predict_stack(learner, state, few).mean
    assert said[..., 3].max() == 0 and said[..., :3].min() > 0
    delta, _ = learner.meta_grad(state, few, ())
    assert all(torch.isfinite(leaf).all() for leaf in leaves(delta))
    none = task._replace(support=task.support._replace(mask=torch.zeros_like(task.support.mask)))
    torch.testing.assert_close(predict_stack(learner, state, none).mean, torch.full((TASKS, 5, CLASSES), 1 / CLASSES))


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="last linear layer is named `head`"):
        gem_head.build(functional(nn.Linear(2, 1)), squared)
    with pytest.raises(InputError, match="an objective among each, query, all, got 'both'"):
        gem_head.build(functional(MLP(1, (2,), 1)), squared, Config(objective="both"))
    with pytest.raises(InputError, match="a positive spread and noise"):
        gem_head.build(functional(MLP(1, (2,), 1)), squared, Config(noise=0.0))
    with pytest.raises(InputError, match="an outer_b2 from 0 to below 1, got 1"):
        gem_head.build(functional(MLP(1, (2,), 1)), squared, Config(outer_b2=1.0))
    for dof in (3.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="a dof between 3 and 1000, or 0, got"):
            gem_head.build(functional(MLP(1, (2,), 1)), squared, Config(dof=dof))
    with pytest.raises(InputError, match="a rank of 0 or more, got -1"):
        gem_head.build(functional(MLP(1, (2,), 1)), squared, Config(rank=-1))
