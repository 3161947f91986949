"""The KL chaser against loops written out by hand, finite differences, and posteriors known on paper."""

import pytest
import torch

from warmstart.core import InputError, adapt, functional
from warmstart.core.trees import leaves, take, tree_map
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.learners import kl_chaser
from warmstart.learners.kl_chaser import Config
from warmstart.maths.prior import prior_of
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP

both_leaders = pytest.mark.parametrize("joint", [False, True], ids=["sequential", "joint"])


def problem(by_hand, stage=PLAIN, **options):
    model, tasks = functional(MLP(2, (3,), 1, activation="tanh")), by_hand.uneven()
    cfg = Config(inner_lr=0.02, inner_steps=3, leader_steps=2, samples=2, kl_weight=0.7, noise=0.6, sd=0.2, **options)
    learner = kl_chaser.build(model, squared, cfg, stage)
    state = learner.init(model.params)
    wider = state.theta["log_sd"] + 0.3 * torch.randn_like(state.theta["log_sd"])
    state = state._replace(theta={**state.theta, "log_sd": wider})
    return model, tasks, cfg, learner, state, by_hand.drawn(learner)


def leader(by_hand, model, prior, chaser, task, noise, cfg):
    if cfg.joint:
        return by_hand.infer(model, prior, by_hand.both(task), noise, cfg)
    return by_hand.infer(model, chaser, task.query, noise, cfg)


@pytest.mark.parametrize("recompute", [False, True])
@both_leaders
def test_a_loop_written_by_hand_gives_the_same_distance_and_gradient(by_hand, joint, recompute):
    model, tasks, cfg, learner, state, noise = problem(by_hand, joint=joint, recompute=recompute)
    delta, info = learner.meta_grad(state, tasks, noise)
    leaf = tree_map(lambda value: value.clone().requires_grad_(), state.theta)
    total = torch.zeros(())
    for i in range(len(tasks.key)):
        task, one = take(tasks, i), take(noise, i)
        chaser = by_hand.infer(model, prior_of(leaf), task.support, one["chaser"], cfg)
        found = leader(by_hand, model, prior_of(leaf), chaser, task, one["leader"], cfg)
        total = total + by_hand.distance(tree_map(torch.Tensor.detach, found), chaser)
    torch.testing.assert_close(info.loss, total.detach())
    for left, right in zip(leaves(delta.grad), torch.autograd.grad(total, leaves(leaf)), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("inner", ["sgd", "momentum", "adam"])
@both_leaders
def test_finite_differences_with_the_leader_and_the_noise_held(by_hand, joint, inner):
    """The chaser is moved by the learner's own adaptation to each task alone; the leader stays where it was."""
    _, tasks, cfg, learner, state, noise = problem(by_hand, joint=joint, inner=inner)
    delta, _ = learner.meta_grad(state, tasks, noise)

    def chase(theta, i):
        task = take(tasks, i)
        moved = state._replace(theta=theta)
        return adapt(learner, moved, task.support, task.descriptor, take(noise["chaser"], i), cfg.inner_steps)

    def lead(i):
        """From the chaser as if it were the prior, or from the prior; on the rows that the option says."""
        task, chaser = take(tasks, i), chase(state.theta, i)
        anchor = state.theta if joint else {"mean": chaser.mean, "log_sd": chaser.log_sd}
        rows = by_hand.both(task) if joint else task.query
        drawn = take(noise["leader"], i)
        return adapt(learner, state._replace(theta=anchor), rows, task.descriptor, drawn, cfg.leader_steps)

    held = [lead(i) for i in range(len(tasks.key))]
    value = lambda theta: sum(by_hand.distance(held[i], chase(theta, i)) for i in range(len(held)))  # noqa: E731
    by_hand.finite_differences(value, state.theta, delta.grad, 1e-6, 1e-5)


@both_leaders
def test_inference_that_converges_gives_the_gradient_of_the_query_s_likelihood(by_hand, joint):
    """With exact posteriors the chaser is the gradient-EM estimator of log p(query | support), and so its gradient."""
    model, theta, tasks = by_hand.linear()
    cfg = Config(joint=joint, noise=by_hand.NOISE, inner_lr=0.04, inner_steps=300, leader_steps=310, samples=6)
    learner = kl_chaser.build(model, squared, cfg, TRACED)
    count = len(tasks.key)
    noise = {"chaser": by_hand.exact_draws(count, 300), "leader": by_hand.exact_draws(count, 310)}
    delta, info = learner.meta_grad(learner.init(model.params)._replace(theta=theta), tasks, noise)
    ahead = by_hand.posterior(theta, by_hand.both(tasks))

    def behind(theta):
        return by_hand.distance(ahead, by_hand.posterior(theta, tasks.support))

    def evidence(theta):
        return by_hand.log_marginal(theta, tasks.support) - by_hand.log_marginal(theta, by_hand.both(tasks))

    torch.testing.assert_close(info.loss, behind(theta), rtol=1e-8, atol=1e-8)
    for value in (behind, evidence):
        for left, right in zip(leaves(delta.grad), leaves(torch.func.grad(value)(theta)), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-7, atol=1e-7)


def test_what_cannot_be_is_refused():
    model = functional(MLP(1, (2,), 1))
    with pytest.raises(InputError, match="a positive leader_steps"):
        kl_chaser.build(model, squared, Config(leader_steps=0))
    with pytest.raises(InputError, match="all fast"):
        kl_chaser.build(functional(MLP(1, (2,), 1), fast="head.*"), squared)
