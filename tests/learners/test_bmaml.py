"""BMAML against plain loops over tasks, particles and steps, its meta-gradient by finite differences, in float64."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributions import Gamma, Normal
from torch.testing import assert_close

from warmstart.core import Batch, InputError, Task, adapt, functional
from warmstart.core.trees import leaves, take
from warmstart.learners import maml
from warmstart.learners.bmaml import Config, build
from warmstart.models.likelihoods import binary, squared
from warmstart.models.mlp import MLP, seeded

CONFIG = Config(
    particles=3, inner_lr=0.04, inner_steps=2, leader_steps=3, noise=0.6, weight_precision=0.7, spread=0.5, seed=4
)
TASKS, SUPPORT, QUERY, HIDDEN = 2, 4, 3, 2

pytestmark = pytest.mark.usefixtures("float64")


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(cfg=CONFIG):
    with seeded(0):
        model = functional(MLP(1, (HIDDEN,), 1, "tanh"))
    learner = build(model, squared, cfg)
    return learner, learner.init(model.params)


def make_tasks():
    """Rows of unequal weight; one support row is padding."""
    mask = torch.ones(TASKS, SUPPORT)
    mask[1, 2] = 0
    support = Batch(draw(1, TASKS, SUPPORT, 1), draw(2, TASKS, SUPPORT) + 1, 0.3 + draw(3, TASKS, SUPPORT).abs(), mask)
    query = Batch(draw(4, TASKS, QUERY, 1), draw(5, TASKS, QUERY) - 0.5, 0.5 + draw(6, TASKS, QUERY).abs(), mask[:, :3])
    return Task(support, query, torch.zeros(TASKS, 0), torch.arange(TASKS))


# the method once more, on flat vectors [d] in lists of particles


def vectors(theta):
    names = ("body.0.weight", "body.0.bias", "head.weight", "head.bias")
    return [torch.cat([theta[name][i].reshape(-1) for name in names]) for i in range(len(theta["head.bias"]))]


def network(v, x):
    w, b, u, c = v.split([HIDDEN, HIDDEN, HIDDEN, 1])
    return torch.tanh(x * w + b) @ u + c


def log_likelihood(v, batches, cfg):
    total = torch.zeros(())
    for batch in batches:
        rows = -((network(v, batch.x) - batch.y) ** 2) / (2 * cfg.noise**2) - math.log(
            cfg.noise * math.sqrt(2 * math.pi)
        )
        total = total + (batch.mask * batch.w * rows).sum()
    return total


def bandwidth(particles):
    squares = [((a - b) ** 2).sum().item() for i, a in enumerate(particles) for b in particles[:i]]
    return statistics.median(squares) / math.log(len(particles) + 1)


def walk(particles, batches, cfg, steps, widths):
    """Steps of Stein variational gradient descent; `widths` gives their bandwidths, and is filled where it is short."""
    for k in range(steps):
        if len(widths) <= k:
            widths.append(cfg.bandwidth or bandwidth(particles))
        h, moved = widths[k], []
        own = [v.clone().requires_grad_() for v in particles]
        value = sum(log_likelihood(v, batches, cfg) - cfg.weight_precision / 2 * (v**2).sum() for v in own)
        scores = torch.autograd.grad(value, own)
        for a in particles:
            phi = torch.zeros_like(a)
            for b, score in zip(particles, scores, strict=True):
                kernel = torch.exp(-((a - b) ** 2).sum() / h)
                phi += kernel * score + 2 / h * (a - b) * kernel
            moved.append(a + cfg.inner_lr * phi / len(particles))
        particles = moved
    return particles


def objective(particles, task, cfg, fixed):
    """The loss of one task; `fixed` keeps what derivatives hold constant: the bandwidths and the leader."""
    chaser = walk(particles, [task.support], cfg, cfg.inner_steps, fixed.setdefault("widths", []))
    if cfg.loss == "query":
        each = torch.stack([log_likelihood(v, [task.query], cfg) for v in chaser])
        return -(each.exp().mean().log())
    if "leader" not in fixed:
        fixed["leader"] = walk(chaser, [task.support, task.query], cfg, cfg.leader_steps, [])
    return sum(((a - b) ** 2).sum() for a, b in zip(chaser, fixed["leader"], strict=True))


def differences(theta, cfg, e=1e-5):
    """The loss and its gradient in every entry of every particle, summed over tasks."""
    value, found = 0.0, [torch.zeros_like(v) for v in theta]
    for t in range(TASKS):
        task, fixed = take(make_tasks(), t), {}
        value += objective(theta, task, cfg, fixed)
        for i in range(len(theta)):
            for d in range(len(theta[0])):
                ends = []
                for sign in (1, -1):
                    moved = [v.clone() for v in theta]
                    moved[i][d] += sign * e
                    ends.append(objective(moved, task, cfg, fixed))
                found[i][d] += (ends[0] - ends[1]) / (2 * e)
    return value, found


@pytest.mark.parametrize(("loss", "width"), [("chaser", 0.0), ("chaser", 2.5), ("query", 0.0)])
def test_the_meta_gradient_is_that_of_finite_differences_with_leader_and_median_held(loss, width):
    cfg = replace(CONFIG, loss=loss, bandwidth=width)
    _, state = make(cfg)
    value, expected = differences(vectors(state.theta), cfg)
    for recompute in (False, True):
        delta, info = make(replace(cfg, recompute=recompute))[0].meta_grad(state, make_tasks(), ())
        assert_close(info.loss, value)
        assert_close(vectors(delta.grad), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("task", range(TASKS))
@pytest.mark.parametrize("inner", ["sgd", "momentum"])
def test_one_particle_judged_by_the_query_rows_without_a_prior_is_maml(task, inner):
    """A sum of w e^2 / (2 noise^2) is W / (2 noise^2) times MAML's mean of e^2, W the sum of weights."""
    tasks = take(make_tasks(), slice(task, task + 1))
    inside, outside = ((rows.w * rows.mask).sum() / (2 * CONFIG.noise**2) for rows in (tasks.support, tasks.query))
    learner, state = make(replace(CONFIG, particles=1, loss="query", weight_precision=0.0, inner=inner))
    with seeded(0):
        model = functional(MLP(1, (HIDDEN,), 1, "tanh"))
    other = maml.build(model, squared, maml.Config(0.04 * inside.item(), inner_steps=2, inner=inner))
    found, _ = learner.meta_grad(state, tasks, ())
    expected, _ = other.meta_grad(other.init(model.params), tasks, ())
    for name, value in expected.grad.items():
        assert value.abs().max() > 1e-3
        assert_close(found.grad[name][0], value * outside)


def test_adapted_particles_predict_their_mixture():
    learner, state = make()
    task = take(make_tasks(), 1)
    adapted = adapt(learner, state, task.support, (), steps=3)
    expected = walk(vectors(state.theta), [task.support], CONFIG, 3, [])
    assert_close(vectors(adapted), expected)
    said = learner.predict(state, adapted, task.query.x, ())
    each = torch.stack([network(v, task.query.x) for v in expected])
    assert_close(said.samples, each)
    assert_close(said.mean, each.mean(0))
    assert_close(said.variance, each.var(0, correction=0) + 0.6**2)


@pytest.mark.parametrize("likelihood", [squared, binary])
def test_hyper_priors_are_gammas_of_the_precisions_of_rows_and_weights(likelihood):
    """A particle alone climbs the density of its weights and the logarithms of both precisions."""
    hyper = {"hyper": True, "gamma_shape": 1.6, "gamma_rate": 0.3}
    cfg = replace(CONFIG, particles=1, **hyper)
    with seeded(0):
        model = functional(MLP(1, (HIDDEN,), 1, "tanh"))
    learner, task = build(model, likelihood, cfg), take(make_tasks(), 1)
    rows = task.support._replace(y=(task.support.y > 0).double()) if likelihood is binary else task.support
    state = learner.init(model.params)
    inner = learner.start(state, ())
    moved = learner.step(state, inner, rows, ())

    def log_density(phi):
        params = {name: phi[name] for name in model.params}
        out, weights = model.apply(params, rows.x).squeeze(-1), torch.cat([p.reshape(-1) for p in params.values()])
        lam, gamma = phi["log weight precision"].exp(), Gamma(torch.tensor(1.6), torch.tensor(0.3))
        total = Normal(0.0, lam**-0.5).log_prob(weights).sum() + gamma.log_prob(lam) + lam.log()
        if likelihood is binary:
            each = -nn.functional.binary_cross_entropy_with_logits(out, rows.y, reduction="none")
        else:
            precision = phi["log row precision"].exp()
            each = Normal(out, precision**-0.5).log_prob(rows.y)
            total = total + gamma.log_prob(precision) + precision.log()
        return total + (each * rows.w * rows.mask).sum()

    slope = torch.func.grad(log_density)(take(state.theta, 0))
    assert set(slope) == set(state.theta) and len(slope) == len(model.params) + (2 if likelihood is squared else 1)
    for name, g in slope.items():
        assert_close((moved.phi[name] - inner.phi[name])[0], cfg.inner_lr * g)


def test_a_noise_that_runs_away_is_told():
    learner, state = make(replace(CONFIG, hyper=True, weight_precision=0.1, inner_lr=1e-25))
    rows = state.theta["log row precision"]
    free = learner.meta_grad(state, make_tasks(), ())[1]
    rows[0], rows[1] = 40.0, -40.0
    told = learner.meta_grad(state, make_tasks(), ())[1]
    assert_close(free.clamped, torch.tensor(0.0))
    assert_close(told.clamped, torch.tensor(TASKS * 2 / len(rows)))


def test_the_noise_of_a_prediction_is_that_of_the_particles():
    learner, state = make(replace(CONFIG, hyper=True))
    phi = state.theta | {"log row precision": torch.tensor([0.3, -1.0, 2.0])}
    said = learner.predict(state, phi, make_tasks().query.x[0], ())
    noise = torch.tensor([0.3, -1.0, 2.0]).neg().exp().mean()
    assert_close(said.variance, said.samples.var(0, correction=0) + noise)


def test_particles_reach_the_posterior_of_a_linear_model():
    """A Gaussian of precision A = weight_precision I + X' W X / noise^2 and mean A^-1 X' W y / noise^2."""
    model = functional(nn.Linear(2, 1, bias=False))
    learner = build(model, squared, Config(particles=60, inner_lr=0.1, noise=0.8, weight_precision=1.7, spread=1.0))
    state = learner.init(model.params)
    x, y, w = draw(1, 5, 2), draw(2, 5) + 1, 0.5 + draw(3, 5).abs()
    inner, rows = learner.start(state, ()), Batch(x, y, w, torch.ones(5))
    for _ in range(400):
        inner = learner.step(state, inner, rows, ())
    precision = 1.7 * torch.eye(2) + (x.mT * w) @ x / 0.64
    mean = torch.linalg.solve(precision, x.mT @ (w * y) / 0.64)
    new = draw(7, 4, 2)
    spread = (new @ torch.linalg.inv(precision) * new).sum(1)
    said = learner.predict(state, inner.phi, new, ())
    assert_close(said.mean, new @ mean, rtol=0, atol=0.01)
    assert_close(said.variance - 0.64, spread, rtol=0.15, atol=0)  # sixty particles are a tenth too narrow


def test_the_first_particle_is_the_given_one_and_the_others_are_spread_around_it():
    model = functional(MLP(1, (40, 40), 1))
    learner = build(model, squared, Config(particles=4, spread=0.3, seed=2))
    theta = learner.init(model.params).theta
    others = build(model, squared, Config(particles=4, spread=0.3, seed=3)).init(model.params).theta
    for name, value in model.params.items():
        assert torch.equal(theta[name][0], value) and torch.equal(others[name][0], value)
        assert not torch.isclose(theta[name][1:], others[name][1:]).any()
    apart = torch.cat([(theta[name][1:] - value).flatten(1) for name, value in model.params.items()], 1)
    assert_close(apart.std(1), torch.full((3,), 0.3), rtol=0.05, atol=0)
    again = learner.init(model.params).theta
    assert all(torch.equal(a, b) for a, b in zip(leaves(again), leaves(theta), strict=True))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"loss": "elbo"}, "a loss chaser or query"),
        ({"particles": 0}, "at least one particle"),
        ({"spread": 0.0}, "a spread above 0"),
        ({"noise": 0.0}, "a finite noise above 0"),
        ({"noise": math.inf}, "a finite noise above 0"),
        ({"weight_precision": -1.0}, "a bandwidth and a weight_precision of at least 0"),
        ({"hyper": True, "weight_precision": 0.0}, "a weight_precision, gamma_shape and gamma_rate above 0"),
        ({"inner": "newton"}, "an optimiser sgd, momentum or adam"),
    ],
)
def test_bad_settings_are_refused(change, expected):
    with pytest.raises(InputError, match=expected):
        make(replace(CONFIG, **change))


def test_slow_parameters_are_refused():
    with pytest.raises(InputError, match="all fast"):
        build(functional(MLP(1, (2,), 1), fast="head.*"), squared)
