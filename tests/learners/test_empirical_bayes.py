"""The learner against dense multivariate normals, one component and one task at a time, in float64."""

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from warmstart.core import Batch, InputError, Task, adapt, functional
from warmstart.core.trees import add, flatten, leaves, take, tree_map, unflatten
from warmstart.engine.meta import Feed, meta_update, predict_stack
from warmstart.engine.stage import TRACED
from warmstart.learners.empirical_bayes import FLOOR, Config, build
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import MLP

CONFIG = Config(components=3, rank=2, evidence=0.3, spread=0.9, noise=0.5, outer_lr=0.02, outer_decay=7, weight_decay=2)
SUPPORT, QUERY, TASKS = 4, 3, 5

pytestmark = pytest.mark.usefixtures("float64")


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(cfg=CONFIG, likelihood=squared, outputs=1, **more):
    model = functional(MLP(2, (5,), outputs, "tanh"))
    learner = build(model, likelihood, cfg, functional(MLP(3, (4,), 1, "tanh")), **more)
    state = learner.init(model.params)
    flat, structure = flatten(state.theta)
    moved = unflatten([leaf + 0.4 * draw(i, *leaf.shape) for i, leaf in enumerate(flat)], structure)
    return model, learner, state._replace(theta=moved)


def make_tasks(classes=0):
    """Tasks with unequal weights and one padded support row."""
    y = lambda seed, n: draw(seed, TASKS, n) + 0.7  # noqa: E731
    if classes:
        y = lambda seed, n: draw(seed, TASKS, n).abs().mul(2).long() % classes  # noqa: E731
    mask = torch.ones(TASKS, SUPPORT)
    mask[1, 2] = 0
    support = Batch(draw(1, TASKS, SUPPORT, 2), y(2, SUPPORT), 0.5 + draw(3, TASKS, SUPPORT).abs(), mask)
    query = Batch(draw(4, TASKS, QUERY, 2), y(5, QUERY), torch.ones(TASKS, QUERY), torch.ones(TASKS, QUERY))
    return Task(support, query, draw(6, TASKS, 3), torch.arange(TASKS))


def dense_prior(theta, descriptor):
    """pi, the means and the covariance of w, and the noise variance, read off the equation."""
    theta = take(theta, 0)
    own, net = theta["prior"], theta["descriptor"]
    h = torch.tanh(net["body.0.weight"] @ descriptor + net["body.0.bias"])
    pi = torch.softmax(own["share"] + own["gate"].T @ h, 0)
    means = own["mean"][:, 0] + torch.einsum("h,hd->d", h, own["shift"][:, 0])
    covariance = torch.diag(own["log_scale"].exp() ** 2) + own["factor"] @ own["factor"].T
    return pi, means, covariance, own["log_noise"].exp() ** 2 + FLOOR


def dense_features(theta, x):
    net = take(theta["features"], 0)
    f = torch.tanh(x @ net["body.0.weight"].T + net["body.0.bias"])
    return torch.cat([f, torch.ones(len(f), 1)], 1)


def dense_density(theta, descriptor, x, y, w):
    """log of the mixture density of the real rows; a row of weight w has noise / w, up to a constant power."""
    pi, means, covariance, noise = dense_prior(theta, descriptor)
    f = dense_features(theta, x)
    inside = f @ covariance @ f.T + torch.diag(noise / w)
    each = torch.stack([MultivariateNormal(f @ mean, inside).log_prob(y) for mean in means])
    tempered = 0.5 * (torch.log(2 * math.pi * noise / w) - w * torch.log(2 * math.pi * noise)).sum()
    return torch.logsumexp(pi.log() + each, 0) + tempered


def rows_of(batch):
    real = batch.mask.bool()
    return batch.x[real], batch.y[real], batch.w[real]


def test_prediction_is_dense_conditioning_of_every_component():
    _, learner, state = make()
    tasks = make_tasks()
    found = predict_stack(learner, state, tasks)
    for t in range(TASKS):
        one = take(tasks, t)
        pi, means, covariance, noise = dense_prior(state.theta, one.descriptor)
        x, y, w = rows_of(one.support)
        f, q = dense_features(state.theta, x), dense_features(state.theta, one.query.x)
        inside, cross = f @ covariance @ f.T + torch.diag(noise / w), q @ covariance @ f.T
        logs = torch.stack([MultivariateNormal(f @ mean, inside).log_prob(y) for mean in means])
        weight = torch.softmax(pi.log() + logs, 0)
        each = torch.stack([q @ mean + cross @ torch.linalg.solve(inside, y - f @ mean) for mean in means])
        within = torch.diag(q @ covariance @ q.T - cross @ torch.linalg.solve(inside, cross.T)) + noise
        assert_close(found.mean[t], weight @ each)
        assert_close(found.variance[t], within + weight @ each**2 - (weight @ each) ** 2)


def test_meta_gradient_is_that_of_the_dense_mixture_density():
    _, learner, state = make()
    tasks = make_tasks()

    def dense(theta):
        total = 0.0
        for t in range(TASKS):
            one = take(tasks, t)
            support, query = rows_of(one.support), rows_of(one.query)
            both = tuple(torch.cat(parts) for parts in zip(support, query, strict=True))
            given = dense_density(theta, one.descriptor, *support)
            total = total + dense_density(theta, one.descriptor, *both) - given + 0.3 * given
        return -total

    delta, info = learner.meta_grad(state, tasks, ())
    gradient, value = torch.func.grad_and_value(dense)(state.theta)
    assert_close(info.loss, value)
    assert_close(delta.grad, gradient)
    direction = tree_map(torch.sin, gradient)
    ahead, behind = (tree_map(lambda p, d, s=s: p + s * d, state.theta, direction) for s in (1e-5, -1e-5))
    slope = sum(float((g * d).sum()) for g, d in zip(leaves(delta.grad), leaves(direction), strict=True))
    assert float(dense(ahead) - dense(behind)) / 2e-5 == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("evidence", [0.0, 1.0])
def test_evidence_weighs_the_support(evidence):
    _, learner, state = make(Config(components=2, evidence=evidence))
    task = take(make_tasks(), slice(0, 1))
    one = take(task, 0)
    support, query = rows_of(one.support), rows_of(one.query)
    both = dense_density(state.theta, one.descriptor, *(torch.cat(p) for p in zip(support, query, strict=True)))
    given = dense_density(state.theta, one.descriptor, *support)
    assert_close(learner.meta_grad(state, task, ())[1].loss, -(both - given + evidence * given))


def test_many_rows_and_few_rows_take_different_routes_to_one_objective():
    """Padded to 21 rows, more than the 8 directions of v, the sums are taken over v; and padding says nothing."""
    _, learner, state = make()
    tasks = make_tasks()
    wide = lambda batch: tree_map(lambda a: torch.cat([torch.zeros_like(a), a, torch.zeros_like(a)], 1), batch)  # noqa: E731
    padded = tasks._replace(support=wide(tasks.support), query=wide(tasks.query))
    assert_close(learner.meta_grad(state, padded, ()), learner.meta_grad(state, tasks, ()))
    assert_close(
        predict_stack(learner, state, padded).mean[:, QUERY : 2 * QUERY], predict_stack(learner, state, tasks).mean
    )


def test_one_row_at_a_time_in_any_order_is_the_batch():
    _, learner, state = make()
    task = take(make_tasks(), 1)
    inner = learner.start(state, task.descriptor)
    for i in (3, 1, 0):
        inner = learner.step(state, inner, take(task.support, slice(i, i + 1)), ())
    streamed = learner.finish(state, inner, task.support)
    assert_close(streamed, adapt(learner, state, task.support, task.descriptor))


def test_without_support_the_prior_speaks():
    _, learner, state = make()
    task = take(make_tasks(), 2)
    empty = task.support._replace(mask=torch.zeros(SUPPORT))
    found = learner.predict(state, adapt(learner, state, empty, task.descriptor), task.query.x, ())
    pi, means, covariance, noise = dense_prior(state.theta, task.descriptor)
    q = dense_features(state.theta, task.query.x)
    each = means @ q.T
    assert_close(found.mean, pi @ each)
    spread = pi @ each**2 - (pi @ each) ** 2
    assert_close(found.variance, torch.diag(q @ covariance @ q.T) + noise + spread)


def test_chunks_of_tasks_add_up_and_recording_changes_nothing():
    model, learner, state = make()
    tasks = make_tasks()
    whole = learner.meta_grad(state, tasks, ())
    parts = [learner.meta_grad(state, take(tasks, part), ()) for part in (slice(0, 2), slice(2, 5))]
    assert_close(add(*parts), whole)
    recorded = build(model, squared, CONFIG, functional(MLP(3, (4,), 1, "tanh")), stage=TRACED)
    assert_close(recorded.meta_grad(state, tasks, ()), whole)


def test_update_is_adam_with_a_cosine_rate_and_decays_the_networks_only():
    _, learner, state = make()
    grad = tree_map(lambda leaf: torch.full_like(leaf, -3.0), state.theta)
    delta = learner.meta_grad(state, make_tasks(), ())[0]._replace(grad=grad)
    once = learner.update(state, delta, torch.tensor(5.0))
    twice = learner.update(once, delta, torch.tensor(5.0))
    # a constant gradient moves Adam by exactly the rate
    for before, after, rate in ((state, once, 0.02), (once, twice, 0.02 * 0.5 * (1 + math.cos(math.pi / 7)))):
        assert_close(after.theta["prior"], tree_map(lambda p, r=rate: p + r, before.theta["prior"]))
        for net in ("features", "descriptor"):
            assert_close(after.theta[net], tree_map(lambda p, r=rate: p + r - r * 2 * p, before.theta[net]))


def test_members_are_trained_apart_and_averaged():
    cfg = replace(CONFIG, members=3)
    _, learner, state = make(cfg)
    _, alone, _ = make()
    tasks = make_tasks()
    delta, info = learner.meta_grad(state, tasks, ())
    mean, variance, losses = [], [], []
    for i in range(3):
        single = state._replace(theta=take(state.theta, slice(i, i + 1)))
        own, own_info = alone.meta_grad(single, tasks, ())
        assert_close(take(delta.grad, slice(i, i + 1)), own.grad)
        found = predict_stack(alone, single, tasks)
        mean.append(found.mean), variance.append(found.variance), losses.append(own_info.loss)
    mean, variance = torch.stack(mean), torch.stack(variance)
    found = predict_stack(learner, state, tasks)
    assert_close(info.loss, torch.stack(losses).mean())
    assert_close(found.mean, mean.mean(0))
    assert_close(found.variance, variance.mean(0) + mean.var(0, correction=0))


def test_members_start_as_other_draws_of_the_same_rows():
    model = functional(MLP(6, (5,), 1))
    theta = build(model, squared, Config(members=3)).init(model.params).theta
    weight = theta["features"]["body.0.weight"]
    assert_close(weight[0], model.params["body.0.weight"])
    assert not torch.equal(weight[1], weight[0]) and not torch.equal(weight[1], weight[2])
    assert_close(weight[1].sort(1).values, weight[0].sort(1).values)
    assert not torch.equal(theta["prior"]["mean"][0], theta["prior"]["mean"][1])


def test_labels_are_regressed_on_and_clipped_to_probabilities():
    cfg = Config(components=2, clip=0.2)
    _, learner, state = make(cfg, binary)
    tasks = make_tasks(classes=2)
    signs = tasks._replace(support=tasks.support._replace(y=2.0 * tasks.support.y - 1))
    _, regression, _ = make(cfg, squared)
    p = predict_stack(learner, state, tasks)
    mean = predict_stack(regression, state, signs).mean
    assert_close(p.mean, ((1 + mean) / 2).clamp(0.2, 0.8))
    assert_close(p.variance, p.mean * (1 - p.mean))
    assert float(p.mean.min()) == pytest.approx(0.2) and 0.2 < float(p.mean.median()) < 0.8


def test_classes_are_regressions_that_share_a_covariance():
    cfg = Config(components=1, clip=0.05)
    _, learner, state = make(cfg, multiclass, outputs=3)
    tasks = make_tasks(classes=3)
    found = predict_stack(learner, state, tasks).mean
    _, regression, _ = make(cfg)
    each = []
    for c in range(3):
        own = {**state.theta["prior"], "mean": state.theta["prior"]["mean"][..., c : c + 1, :]}
        own["shift"] = state.theta["prior"]["shift"][..., c : c + 1, :]
        single = state._replace(theta={**state.theta, "prior": own})
        labels = tasks._replace(support=tasks.support._replace(y=(tasks.support.y == c).double()))
        each.append(predict_stack(regression, single, labels).mean)
    p = torch.stack(each, -1).clamp(0.05, 0.95)
    assert_close(found, p / p.sum(-1, keepdim=True))


def test_training_recovers_a_known_population():
    """Tasks from two Gaussians over lines: means, shares, spread and noise are learned."""
    generator = torch.Generator().manual_seed(2)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    centres = torch.tensor([[1.5, -0.5], [-1.0, 1.0]])
    group = (torch.rand(300, generator=generator) < 0.3).long()
    w = centres[group] + torch.tensor([0.2, 0.6]) * normal(300, 2)
    x = normal(300, 12, 1)
    y = x[..., 0] * w[:, :1] + w[:, 1:] + 0.3 * normal(300, 12)
    ones = torch.ones(300, 12)
    rows = Batch(x, y, ones, ones)
    tasks = Task(*(take(rows, (slice(None), part)) for part in (slice(0, 4), slice(4, 12))), torch.zeros(300, 0), group)
    model = functional(MLP(1, ()))
    learner = build(model, squared, Config(components=2, outer_lr=0.05, outer_decay=200, weight_decay=0.0, seed=1))
    state, update = learner.init(model.params), meta_update(learner)
    for _ in range(200):
        state, _ = update(state, Feed(tasks))
    own = take(state.theta["prior"], 0)
    order = own["mean"][:, 0, 0].argsort(descending=True)
    assert_close(own["mean"][order, 0], centres, atol=0.12, rtol=0)
    assert_close(torch.softmax(own["share"], 0)[order], torch.tensor([0.7, 0.3]), atol=0.08, rtol=0)
    assert_close(own["log_scale"].exp(), torch.tensor([0.2, 0.6]), atol=0.06, rtol=0)
    assert_close(own["log_noise"].exp(), torch.tensor(0.3), atol=0.02, rtol=0)


def test_a_network_without_a_head_is_refused():
    with pytest.raises(InputError, match="head"):
        build(functional(torch.nn.Linear(2, 1)), squared, Config())


def test_no_components_are_refused():
    with pytest.raises(InputError, match="at least one"):
        build(functional(MLP(1, ())), squared, Config(components=0))
