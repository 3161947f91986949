"""ABML against loops written out by hand, finite differences, and marginal likelihoods known on paper."""

from dataclasses import replace

import pytest
import torch
from torch.distributions import Gamma, Normal

from warmstart.core import InputError, functional
from warmstart.core.trees import leaves, take, tree_map
from warmstart.engine.stage import TRACED
from warmstart.learners import abml
from warmstart.learners.abml import Config
from warmstart.maths.prior import prior_of
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP

BARE = Config(inner_lr=0.02, inner_steps=3, samples=2, kl_weight=0.7, noise=0.6, sd=0.2, hyper_weight=0.0)
ROWS = {
    "support": ("support", "support"),
    "query": ("support", "query"),
    "both": ("support", "all"),
    "all": ("all",) * 2,
}


def close(found, expected, tolerance=1e-9):
    for left, right in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def somewhere(learner, model):
    """A prior whose widths differ."""
    theta = learner.init(model.params).theta
    return {**theta, "log_sd": theta["log_sd"] + 0.3 * torch.randn_like(theta["log_sd"])}


def found_at(learner, model, theta, tasks, noise):
    return learner.meta_grad(learner.init(model.params)._replace(theta=theta), tasks, noise)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("objective", ROWS)
def test_a_loop_written_by_hand_gives_the_same_bound_and_gradient(by_hand, objective, recompute):
    model, tasks = functional(MLP(2, (3,), 1, activation="tanh")), by_hand.uneven()
    cfg = replace(BARE, objective=objective, recompute=recompute)
    learner = abml.build(model, squared, cfg)
    theta, noise = somewhere(learner, model), by_hand.drawn(learner)
    delta, info = found_at(learner, model, theta, tasks, noise)

    leaf = tree_map(lambda value: value.clone().requires_grad_(), theta)
    total = torch.zeros(())
    for i in range(len(tasks.key)):
        task, one = take(tasks, i), take(noise, i)
        rows = {"support": task.support, "query": task.query, "all": by_hand.both(task)}
        shown, judged = (rows[name] for name in ROWS[objective])
        prior = prior_of(leaf)
        q = by_hand.infer(model, prior, shown, one["inner"], cfg)
        total = total + by_hand.bound(model, q, prior, judged, one["bound"], cfg)
    torch.testing.assert_close(info.loss, total.detach())
    close(leaves(delta.grad), torch.autograd.grad(total, leaves(leaf)))


@pytest.mark.parametrize("inner", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("objective", ["query", "difference"])
def test_finite_differences_with_the_noise_held(by_hand, objective, inner):
    """Some entries meet a gradient of exactly zero, where Adam's own slope is 1 / eps."""
    model, tasks = functional(MLP(2, (3,), 1, activation="tanh")), by_hand.uneven()
    cfg = replace(BARE, objective=objective, inner=inner, hyper_weight=0.05, mean_precision=0.3, gamma_rate=0.2)
    learner = abml.build(model, squared, cfg)
    theta, noise = somewhere(learner, model), by_hand.drawn(learner)
    delta, _ = found_at(learner, model, theta, tasks, noise)
    value = lambda at: found_at(learner, model, at, tasks, noise)[1].loss  # noqa: E731
    by_hand.finite_differences(value, theta, delta.grad, 1e-6, 1e-5)


def test_the_difference_is_that_of_two_bounds(by_hand):
    model, tasks = functional(MLP(2, (3,), 1, activation="tanh")), by_hand.uneven()
    names = ("all", "support", "difference")
    built = {name: abml.build(model, squared, replace(BARE, objective=name)) for name in names}
    theta, noise = somewhere(built["all"], model), by_hand.drawn(built["all"])
    parts = {name: found_at(learner, model, theta, tasks, noise) for name, learner in built.items()}
    close(parts["difference"], tree_map(torch.sub, parts["all"], parts["support"]))


def converged(by_hand, objective):
    """Gradient and value once the inner loop has found the posterior, and the linear tasks."""
    model, theta, tasks = by_hand.linear()
    cfg = Config(objective=objective, noise=by_hand.NOISE, inner_lr=0.04, inner_steps=300, samples=6, hyper_weight=0.0)
    learner = abml.build(model, squared, cfg, TRACED)
    count = len(tasks.key)
    noise = {"inner": by_hand.exact_draws(count, cfg.inner_steps), "bound": by_hand.exact_draws(count)}
    delta, info = found_at(learner, model, theta, tasks, noise)
    return delta, info, theta, tasks


def evidence(by_hand, objective, tasks):
    rows = {"support": tasks.support, "all": by_hand.both(tasks)}
    if objective == "difference":
        return lambda theta: by_hand.log_marginal(theta, rows["all"]) - by_hand.log_marginal(theta, rows["support"])
    return lambda theta: by_hand.log_marginal(theta, rows[objective])


@pytest.mark.parametrize("objective", ["support", "all", "difference"])
def test_inference_that_converges_gives_the_gradient_of_the_marginal_likelihood(by_hand, objective):
    delta, info, theta, tasks = converged(by_hand, objective)
    value = evidence(by_hand, objective, tasks)
    torch.testing.assert_close(-info.loss, value(theta), rtol=1e-9, atol=1e-9)
    close(tree_map(torch.neg, delta.grad), torch.func.grad(value)(theta), 1e-8)


@pytest.mark.parametrize("objective", ["query", "both"])
def test_inference_that_converges_gives_the_gradient_of_the_bound_at_the_exact_posterior(by_hand, objective):
    delta, info, theta, tasks = converged(by_hand, objective)

    def value(theta):
        q = by_hand.posterior(theta, tasks.support)
        fit = by_hand.expected_fit(q, tasks.query if objective == "query" else by_hand.both(tasks))
        prior = tree_map(lambda leaf: leaf.expand(len(tasks.key), -1), prior_of(theta))
        return fit - by_hand.distance(q, prior)

    torch.testing.assert_close(-info.loss, value(theta), rtol=1e-9, atol=1e-9)
    close(tree_map(torch.neg, delta.grad), torch.func.grad(value)(theta), 1e-8)


def test_hyper_priors_are_a_normal_of_means_and_a_gamma_of_precisions(by_hand):
    model, tasks = functional(MLP(2, (3,), 1, activation="tanh")), by_hand.uneven()
    bare = abml.build(model, squared, BARE)
    theta, noise = somewhere(bare, model), by_hand.drawn(bare)

    def hyper(weight, precision, shape, rate):
        cfg = replace(BARE, hyper_weight=weight, mean_precision=precision, gamma_shape=shape, gamma_rate=rate)
        found = found_at(abml.build(model, squared, cfg), model, theta, tasks, noise)[0]
        return tree_map(torch.sub, found, found_at(bare, model, theta, tasks, noise)[0]).grad

    def density(theta):
        gamma = Gamma(torch.tensor(3.0), torch.tensor(0.4))
        means = Normal(0.0, 2.0**-0.5).log_prob(theta["mean"]).sum()
        return means + gamma.log_prob(torch.exp(-2 * theta["log_sd"])).sum()

    expected = torch.func.grad(density)(theta)
    close(hyper(0.1, 2.0, 3.0, 0.4), tree_map(lambda leaf: -0.1 * len(tasks.key) * leaf, expected))
    zero = tree_map(torch.zeros_like, expected)
    close(hyper(0.1, 0.0, 3.0, 0.4)["mean"], zero["mean"])
    close(hyper(0.1, 2.0, 3.0, 0.0)["log_sd"], zero["log_sd"])


def test_what_cannot_be_is_refused():
    model = functional(MLP(1, (2,), 1))
    with pytest.raises(InputError, match="an objective among support, query, both, all, difference, got 'test'"):
        abml.build(model, squared, Config(objective="test"))
    with pytest.raises(InputError, match="a positive noise"):
        abml.build(model, squared, Config(noise=0.0))
    with pytest.raises(InputError, match="all fast"):
        abml.build(functional(MLP(1, (2,), 1), fast="head.*"), squared)
