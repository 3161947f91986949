"""A Gaussian last layer against Bayesian regression written out by hand."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from warmstart.core import InputError, functional, make_batch, make_task
from warmstart.core.trees import leaves, tree_map
from warmstart.engine.meta import predict_stack
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.learners import gem_head
from warmstart.learners.gem_head import FLOOR, Config, corners
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


def variance_of(theta):
    return FLOOR + torch.exp(2 * theta["log_noise"])


def log_marginal(model, theta, likelihood, x, y, weight):
    """log N(y; f m, f S f' + noise / weight) of one task, axis by axis; padding left out."""
    x, y, weight = x[weight > 0], y[weight > 0], weight[weight > 0]
    seen, told = features(model, theta, x), targets(likelihood, y)
    mean = torch.zeros(len(x)) if likelihood is multiclass else seen @ theta["mean"]
    covariance = (seen * torch.exp(2 * theta["log_sd"])) @ seen.T + torch.diag(variance_of(theta) / weight)
    # a row of weight c counts c times: c rows at one place are one of variance noise / c and a constant
    constant = -0.5 * (weight.log() + (weight - 1) * torch.log(2 * math.pi * variance_of(theta))).sum()
    normal = MultivariateNormal(mean, covariance)
    return sum(normal.log_prob(column) + constant for column in told.T)


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
@pytest.mark.parametrize("plus", [True, False], ids=["plus", "marginal"])
@pytest.mark.parametrize("likelihood", [squared, binary, multiclass], ids=lambda one: one.name)
def test_the_objective_is_the_likelihood_of_query_rows_given_support(likelihood, plus, stage):
    model, learner, state, task = drawn(likelihood, Config(plus=plus, noise=0.6, spread=0.8), stage)
    both = tree_map(lambda s, q: torch.cat([s, q], 1), task.support, task.query)

    def objective(theta):
        total = torch.zeros(())
        for i in range(TASKS):
            weight = (both.w * both.mask)[i]
            value = log_marginal(model, theta, likelihood, both.x[i], both.y[i], weight)
            rows = weight.sum()
            if plus:
                shown = (task.support.w * task.support.mask)[i]
                value = value - log_marginal(model, theta, likelihood, task.support.x[i], task.support.y[i], shown)
                rows = rows - shown.sum()
            total = total - value / rows
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
    weight = (batch.w * batch.mask)[i][:, None] / variance_of(theta)
    before = torch.exp(-2 * theta["log_sd"])
    mean = torch.zeros(7) if likelihood is multiclass else theta["mean"]
    covariance = torch.linalg.inv(torch.diag(before) + seen.T @ (seen * weight))
    return covariance @ ((before * mean)[:, None] + seen.T @ (told * weight)), covariance


@pytest.mark.parametrize("plus", [True, False], ids=["plus", "marginal"])
def test_its_gradient_is_that_of_the_gradient_em_theorem(plus):
    """E_q2 grad log p(all rows, w) - E_q1 grad log p(support, w), with posteriors that are not differentiated."""
    model, learner, state, task = drawn(squared, Config(plus=plus, noise=0.6))
    both = tree_map(lambda s, q: torch.cat([s, q], 1), task.support, task.query)

    def expected(theta, batch, i, mean, covariance):
        """E_q log p(rows, w) in closed form."""
        seen, weight = features(model, theta, batch.x[i]), (batch.w * batch.mask)[i]
        noise, prior = variance_of(theta), torch.exp(2 * theta["log_sd"])
        square = (batch.y[i] - seen @ mean) ** 2 + (seen @ covariance * seen).sum(-1)
        rows = -0.5 * (weight * (square / noise + noise.log())).sum()
        apart = (mean - theta["mean"]) ** 2 + torch.diagonal(covariance)
        return rows - 0.5 * (apart / prior + prior.log()).sum()

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


@pytest.mark.parametrize("likelihood", [squared, binary, multiclass], ids=lambda one: one.name)
def test_a_task_is_a_bayesian_regression_on_its_features(likelihood):
    """A class is as likely as the density of its corner under what is predicted, to the power of the heat."""
    model, learner, state, task = drawn(likelihood)
    said, theta = predict_stack(learner, state, task), state.theta
    for i in range(TASKS):
        mean, covariance = posterior(model, theta, likelihood, task.support, i)
        new = features(model, theta, task.query.x[i])
        spread = (new @ covariance * new).sum(-1) + variance_of(theta)
        if likelihood is squared:
            torch.testing.assert_close(said.mean[i], (new @ mean).squeeze(1))
            torch.testing.assert_close(said.variance[i], spread)
            continue
        places = targets(likelihood, torch.arange(CLASSES) if likelihood is multiclass else torch.tensor([0.0, 1.0]))
        squares = ((places[None] - (new @ mean)[:, None]) ** 2).sum(-1) / spread[:, None]
        chance = torch.softmax(-0.5 * torch.exp(theta["log_heat"]) * squares, -1)
        torch.testing.assert_close(said.mean[i], chance if likelihood is multiclass else chance[:, 1])


@pytest.mark.parametrize("likelihood", [binary, multiclass], ids=lambda one: one.name)
def test_the_heat_is_learned_by_the_log_loss_of_query_rows(likelihood):
    _, learner, state, task = drawn(likelihood)

    def loss(heat):
        at = state._replace(theta={**state.theta, "log_heat": torch.tensor(heat)})
        said, query = predict_stack(learner, at, task).mean, task.query
        own = said.gather(-1, query.y.long()[..., None])[..., 0] if likelihood is multiclass else said
        right = own.log() if likelihood is multiclass else torch.where(query.y > 0, own.log(), (1 - own).log())
        return float(-((right * query.mask).sum(1) / query.mask.sum(1)).sum())

    delta, _ = learner.meta_grad(state, task, ())
    slope = (loss(0.4 + 1e-5) - loss(0.4 - 1e-5)) / 2e-5
    assert abs(slope) > 0.01
    assert delta.grad["log_heat"].item() == pytest.approx(slope, rel=1e-6)


def test_corners_are_alike():
    places = corners(5, torch.zeros(()))
    assert places.shape == (5, 4)
    torch.testing.assert_close(places.sum(0), torch.zeros(4))
    torch.testing.assert_close((places**2).mean(0), torch.ones(4))
    torch.testing.assert_close(torch.cdist(places, places)[~torch.eye(5, dtype=torch.bool)], torch.full((20,), 10**0.5))


def test_classes_are_exchangeable_and_may_be_more_than_the_head_has():
    model, _, state, _ = drawn(multiclass)
    learner = gem_head.build(model, multiclass, classes=6)
    y = torch.arange(6).expand(TASKS, -1)
    task = make_task(make_batch(torch.randn(TASKS, 6, 2), y), make_batch(torch.randn(TASKS, 6, 2), y))
    said = predict_stack(learner, state, task).mean
    other = task._replace(support=task.support._replace(y=y.flip(1)))
    torch.testing.assert_close(predict_stack(learner, state, other).mean, said.flip(2))


def test_a_class_without_a_row_has_no_chance_and_without_rows_all_have_the_same():
    model, learner, state, task = drawn(multiclass)
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
    with pytest.raises(InputError, match="a positive spread and noise"):
        gem_head.build(functional(MLP(1, (2,), 1)), squared, Config(noise=0.0))
