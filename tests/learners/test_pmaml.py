"""Probabilistic MAML, both algorithms, against loops written out by hand, finite differences and known likelihoods."""

from dataclasses import replace

import pytest
import torch

from warmstart.core import InputError, adapt, functional, make_batch, make_task
from warmstart.core.trees import leaves, pack, take, tree_map, unpack
from warmstart.engine.noise import adapt_noise, generator
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.learners import maml, pmaml
from warmstart.learners.pmaml import Config
from warmstart.maths.mean_field import Gaussian
from warmstart.maths.prior import prior_of
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP

BOUND = Config(inner_lr=0.02, inner_steps=3, samples=2, predictions=3, kl_weight=0.7, noise=0.6, sd=0.2)
PLATIPUS = replace(BOUND, algorithm="platipus", shift_lr=0.01)


def problem(by_hand, cfg, stage=PLAIN):
    """A learner in a state where no two entries of anything but the means are equal."""
    model, tasks = functional(MLP(2, (3,), 1, activation="tanh")), by_hand.uneven()
    learner = pmaml.build(model, squared, cfg, stage)
    state = learner.init(model.params)
    spread = tree_map(lambda leaf: leaf * (1 + 0.3 * torch.rand_like(leaf)), state.theta)
    state = state._replace(theta={**spread, "mean": state.theta["mean"]})
    return model, tasks, learner, state, by_hand.drawn(learner)


def close(found, expected, tolerance=1e-9):
    for left, right in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def bound_by_hand(by_hand, model, theta, task, noise, cfg):
    prior = prior_of(theta)
    shown = by_hand.infer(model, prior, task.support, noise["support"], cfg)
    if cfg.joint:
        after = by_hand.infer(model, prior, by_hand.both(task), noise["query"], cfg)
    else:
        after = by_hand.infer(model, shown, task.query, noise["query"], cfg)
    return by_hand.bound(model, after, shown, task.query, noise["bound"], cfg)


def shifted(by_hand, model, theta, role, log_sd, batch, cfg):
    """The mean after one step with its own rates, and the widths."""
    total = by_hand.misfit(model, theta["mean"], batch, cfg.noise)
    (slope,) = torch.autograd.grad(total, theta["mean"], create_graph=True)
    return Gaussian(theta["mean"] - theta[role] * slope, log_sd)


def descended(by_hand, model, phi, batch, steps, cfg):
    for _ in range(steps):
        (slope,) = torch.autograd.grad(by_hand.misfit(model, phi, batch, cfg.noise), phi, create_graph=True)
        phi = phi - cfg.inner_lr * slope
    return phi


def platipus_by_hand(by_hand, model, theta, task, noise, cfg):
    q = shifted(by_hand, model, theta, "posterior_rate", theta["posterior_log_sd"], task.query, cfg)
    p = shifted(by_hand, model, theta, "prior_rate", theta["log_sd"], task.support, cfg)
    total = cfg.kl_weight * by_hand.distance(q, p)
    for s in range(cfg.samples):
        phi = q.mean + q.log_sd.exp() * noise[s]
        phi = descended(by_hand, model, phi, task.support, cfg.inner_steps, cfg)
        total = total + by_hand.misfit(model, phi, task.query, cfg.noise) / cfg.samples
    return total


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("written", "cfg"),
    [
        (bound_by_hand, BOUND),
        (bound_by_hand, replace(BOUND, joint=True)),
        (platipus_by_hand, PLATIPUS),
    ],
    ids=["sequential", "joint", "platipus"],
)
def test_a_loop_written_by_hand_gives_the_same_loss_and_gradient(by_hand, written, cfg, recompute):
    cfg = replace(cfg, recompute=recompute)
    model, tasks, learner, state, noise = problem(by_hand, cfg)
    delta, info = learner.meta_grad(state, tasks, noise)
    leaf = tree_map(lambda value: value.clone().requires_grad_(), state.theta)
    total = sum(written(by_hand, model, leaf, take(tasks, i), take(noise, i), cfg) for i in range(len(tasks.key)))
    torch.testing.assert_close(info.loss, total.detach())
    close(leaves(delta.grad), torch.autograd.grad(total, leaves(leaf)))


@pytest.mark.parametrize("inner", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("cfg", [BOUND, replace(BOUND, joint=True), PLATIPUS], ids=["sequential", "joint", "platipus"])
def test_finite_differences_with_the_noise_held(by_hand, cfg, inner):
    _, tasks, learner, state, noise = problem(by_hand, replace(cfg, inner=inner))
    delta, _ = learner.meta_grad(state, tasks, noise)
    value = lambda theta: learner.meta_grad(state._replace(theta=theta), tasks, noise)[1].loss  # noqa: E731
    by_hand.finite_differences(value, state.theta, delta.grad, 1e-6, 1e-5)


@pytest.mark.parametrize("joint", [False, True], ids=["sequential", "joint"])
def test_inference_that_converges_gives_the_likelihood_of_the_query_given_the_support(by_hand, joint):
    model, theta, tasks = by_hand.linear()
    cfg = Config(joint=joint, noise=by_hand.NOISE, inner_lr=0.04, inner_steps=300, samples=6)
    learner = pmaml.build(model, squared, cfg, TRACED)
    count = len(tasks.key)
    steps = by_hand.exact_draws(count, 300)
    noise = {"support": steps, "query": steps, "bound": by_hand.exact_draws(count)}
    delta, info = learner.meta_grad(learner.init(model.params)._replace(theta=theta), tasks, noise)

    def evidence(theta):
        return by_hand.log_marginal(theta, by_hand.both(tasks)) - by_hand.log_marginal(theta, tasks.support)

    torch.testing.assert_close(-info.loss, evidence(theta), rtol=1e-9, atol=1e-9)
    close(tree_map(torch.neg, delta.grad), torch.func.grad(evidence)(theta), 1e-8)


def test_platipus_draws_from_the_shifted_prior_and_then_adapts_every_draw(by_hand):
    model, tasks, learner, state, _ = problem(by_hand, PLATIPUS)
    task = take(tasks, 0)
    noise, later = take(adapt_noise(learner.noise, 1, 2, generator(4)), 0)
    found = adapt(learner, state, task.support, task.descriptor, noise, 2)
    leaf = tree_map(lambda value: value.clone().requires_grad_(), state.theta)
    p = shifted(by_hand, model, leaf, "prior_rate", leaf["log_sd"], task.support, PLATIPUS)
    for s in range(PLATIPUS.predictions):
        phi = p.mean + p.log_sd.exp() * noise[0][s]
        close(found.phi[s], descended(by_hand, model, phi, task.support, 2, PLATIPUS))
    x = torch.randn(5, 2)
    said = learner.predict(state, found, x, later)
    each = torch.stack([model.apply(unpack(found.phi[s], model.params), x).squeeze(-1) for s in range(3)])
    torch.testing.assert_close(said.mean, each.mean(0))  # nothing more is drawn
    torch.testing.assert_close(said.variance, each.var(0, unbiased=False) + PLATIPUS.noise**2)
    before = learner.predict(state, adapt(learner, state, task.support, task.descriptor, noise, 0), x, later)
    prior = state.theta["mean"] + state.theta["log_sd"].exp() * later
    said = [model.apply(unpack(phi, model.params), x).squeeze(-1) for phi in prior]
    torch.testing.assert_close(before.samples, torch.stack(said))


def test_platipus_without_shift_and_noise_is_maml(by_hand):
    """The likelihood sums the rows that MAML averages."""
    model = functional(MLP(2, (3,), 1, activation="tanh"))
    rows = lambda count: make_batch(torch.randn(3, count, 2), torch.randn(3, count) + 0.7)  # noqa: E731
    tasks = make_task(rows(4), rows(5))
    cfg = replace(PLATIPUS, noise=0.5**0.5, shift_lr=0.0)
    learner = pmaml.build(model, squared, cfg)
    still = tree_map(torch.zeros_like, take(by_hand.drawn(learner), slice(3)))
    delta, _ = learner.meta_grad(learner.init(model.params), tasks, still)
    point = maml.build(model, squared, maml.Config(inner_lr=4 * cfg.inner_lr, inner_steps=cfg.inner_steps))
    expected, _ = point.meta_grad(point.init(model.params), tasks, ())
    close(delta.grad["mean"], 5 * pack(expected.grad))


@pytest.mark.parametrize("name", ["log_sd", "posterior_log_sd"])
def test_platipus_tells_how_many_of_its_widths_are_held_at_a_bound(by_hand, name):
    _, tasks, learner, state, noise = problem(by_hand, PLATIPUS)
    width = state.theta[name].clone()
    for held in range(3):
        told = learner.meta_grad(state._replace(theta={**state.theta, name: width}), tasks, noise)[1]
        torch.testing.assert_close(told.clamped, torch.tensor(len(tasks.key) * held / (2.0 * len(width))))
        width[held] = (-20.0, 20.0)[held % 2]


def test_what_cannot_be_is_refused():
    model = functional(MLP(1, (2,), 1))
    with pytest.raises(InputError, match="an algorithm bound or platipus, got 'laplace'"):
        pmaml.build(model, squared, Config(algorithm="laplace"))
    with pytest.raises(InputError, match="a positive inner_steps"):
        pmaml.build(model, squared, Config(inner_steps=0))
    for cfg in (Config(), pmaml.PLATIPUS):
        with pytest.raises(InputError, match="all fast"):
            pmaml.build(functional(MLP(1, (2,), 1), fast="head.*"), squared, cfg)
