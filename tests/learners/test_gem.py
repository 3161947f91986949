"""GEM against models that can be solved on paper."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from warmstart.core import InputError, functional, make_batch, make_task
from warmstart.core.trees import leaves, pack, take, tree_map, unpack
from warmstart.engine.noise import generator, train_noise
from warmstart.learners import gem, reptile
from warmstart.learners.gem import (
    Config,
    Posteriors,
    check_posteriors,
    fingerprint,
    local_posterior,
    merge_posteriors,
)
from warmstart.maths.mean_field import LEAST, MOST, Gaussian
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
INPUTS, TASKS, NOISE = 3, 4, 0.6


def linear():
    """y = w x, and a prior over w that is the same for no two directions."""
    model = functional(nn.Linear(INPUTS, 1, bias=False))
    mean = torch.tensor([0.4, -1.0, 0.2])
    log_sd = torch.tensor([-0.3, 0.2, -0.8])
    return model, mean, log_sd


def tasks(repeats=2):
    """Inputs along the axes, so that a diagonal posterior is exact; more support rows than query rows."""
    rows = torch.eye(INPUTS).repeat(repeats, 1) * torch.linspace(0.5, 1.5, INPUTS * repeats)[:, None]
    support = make_batch(rows.expand(TASKS, -1, -1), torch.randn(TASKS, len(rows)) + 0.7)
    query = make_batch((2 * torch.eye(INPUTS)).expand(TASKS, -1, -1), torch.randn(TASKS, INPUTS) - 0.4)
    return make_task(support, query)


def exact(mean, log_sd, batch):
    """The posterior of one stack of linear tasks."""
    precision = torch.exp(-2 * log_sd) + (batch.x**2).sum(1) / NOISE**2
    pull = torch.exp(-2 * log_sd) * mean + (batch.x * batch.y[..., None]).sum(1) / NOISE**2
    return Gaussian(pull / precision, -0.5 * precision.log())


def log_marginal(mean, log_sd, batch):
    """Sum over tasks of log N(y; x m, x S x' + noise)."""
    total = torch.zeros(())
    for x, y in zip(batch.x, batch.y, strict=True):
        covariance = x @ torch.diag(torch.exp(2 * log_sd)) @ x.T + NOISE**2 * torch.eye(len(x))
        total = total + MultivariateNormal(x @ mean, covariance).log_prob(y)
    return total


def both(task):
    return tree_map(lambda s, q: torch.cat([s, q], 1), task.support, task.query)


def objective(plus, task):
    def value(mean, log_sd):
        found = log_marginal(mean, log_sd, both(task))
        return found - log_marginal(mean, log_sd, task.support) if plus else found

    return value


@pytest.mark.parametrize("plus", [True, False], ids=["plus", "marginal"])
def test_with_exact_posteriors_the_gradient_is_that_of_the_objective(plus):
    model, mean, log_sd = linear()
    task = tasks()
    cfg = Config(plus=plus, natural=False, noise=NOISE)
    state = gem.build(model, squared, cfg).init(model.params)._replace(theta={"mean": mean, "log_sd": log_sd})
    found = Posteriors(exact(mean, log_sd, task.support), exact(mean, log_sd, both(task)))
    delta = merge_posteriors(cfg)(state, found)
    slopes = torch.func.grad(objective(plus, task), argnums=(0, 1))(mean, log_sd)
    for part, slope in zip(("mean", "log_sd"), slopes, strict=True):
        torch.testing.assert_close(-delta.grad[part], slope, rtol=1e-8, atol=1e-10)
    natural = merge_posteriors(replace(cfg, natural=True))(state, found)
    torch.testing.assert_close(natural.grad["mean"], delta.grad["mean"] * torch.exp(2 * log_sd))
    torch.testing.assert_close(natural.grad["log_sd"], delta.grad["log_sd"] / 2)


def spread(steps, lead):
    """Draws whose mean and covariance are those of a standard normal exactly: +- sqrt(d) along every axis."""
    points = math.sqrt(INPUTS) * torch.cat([torch.eye(INPUTS), -torch.eye(INPUTS)])
    return points.expand(*lead, steps, 2 * INPUTS, INPUTS)


@pytest.mark.parametrize("joint", [True, False], ids=["joint", "sequential"])
def test_inner_loops_that_converge_give_the_exact_gradient(joint):
    model, mean, log_sd = linear()
    task = tasks()
    cfg = Config(joint=joint, natural=False, noise=NOISE, inner_lr=0.02, inner_steps=800, samples=2 * INPUTS)
    learner = gem.build(model, squared, cfg)
    state = learner.init(model.params)._replace(theta={"mean": mean, "log_sd": log_sd})
    noise = {part: spread(cfg.inner_steps, (TASKS,)) for part in ("support", "query")}
    found = local_posterior(model, squared, cfg)(state, task, noise)
    for one, batch in ((found.support, task.support), (found.both, both(task))):
        for left, right in zip(leaves(one), leaves(exact(mean, log_sd, batch)), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-7, atol=1e-8)
    delta, _ = learner.meta_grad(state, task, noise)
    slopes = torch.func.grad(objective(True, task), argnums=(0, 1))(mean, log_sd)
    for part, slope in zip(("mean", "log_sd"), slopes, strict=True):
        torch.testing.assert_close(-delta.grad[part], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("plus", [True, False], ids=["plus", "marginal"])
def test_one_gauss_newton_step_gives_the_exact_gradient_of_any_linear_model(plus):
    """Inputs are correlated, so the posterior is not diagonal: its marginal variances are what the gradient needs."""
    model, mean, log_sd = linear()
    task = make_task(
        make_batch(torch.randn(TASKS, 5, INPUTS) + 0.5, torch.randn(TASKS, 5) + 0.7),
        make_batch(torch.randn(TASKS, 2, INPUTS), torch.randn(TASKS, 2) - 0.4),
    )
    cfg = Config(plus=plus, joint=True, natural=False, inner="newton", noise=NOISE, inner_steps=1)
    learner = gem.build(model, squared, cfg)
    state = learner.init(model.params)._replace(theta={"mean": mean, "log_sd": log_sd})
    delta, _ = learner.meta_grad(state, task, train_noise(learner.noise, TASKS, generator(0)))
    slopes = torch.func.grad(objective(plus, task), argnums=(0, 1))(mean, log_sd)
    for part, slope in zip(("mean", "log_sd"), slopes, strict=True):
        torch.testing.assert_close(-delta.grad[part], slope, rtol=1e-8, atol=1e-10)


def test_a_step_along_the_mean_is_one_of_a_shorter_rate():
    """For rows of one weight; support and query have different numbers of them."""
    model, mean, log_sd = linear()
    task = tasks()
    of_support, of_query = (batch.w.sum(1)[0].item() for batch in (task.support, task.query))

    def found(**settings):
        cfg = Config(noise=NOISE, inner_steps=1, samples=2, kl_weight=0.7, **settings)
        learner = gem.build(model, squared, cfg)
        state = learner.init(model.params)._replace(theta={"mean": mean, "log_sd": log_sd})
        return local_posterior(model, squared, cfg)(state, task, train_noise(learner.noise, TASKS, generator(0)))

    along = found(inner_lr=0.05, per_row=True)
    torch.testing.assert_close(along.support, found(inner_lr=0.05 / of_support).support)
    joint = found(inner_lr=0.05, per_row=True, joint=True).both
    torch.testing.assert_close(joint, found(inner_lr=0.05 / (of_support + of_query), joint=True).both)


def test_widths_may_stay_while_means_move():
    model, mean, log_sd = linear()
    cfg = Config(noise=NOISE, samples=2)

    def slopes(cfg):
        learner = gem.build(model, squared, cfg)
        state = learner.init(model.params)._replace(theta={"mean": mean, "log_sd": log_sd})
        return learner.meta_grad(state, tasks(), train_noise(learner.noise, TASKS, generator(0)))[0].grad

    torch.manual_seed(0)
    moving = slopes(cfg)
    torch.manual_seed(0)
    still = slopes(replace(cfg, widths=False))
    torch.testing.assert_close(still["mean"], moving["mean"])
    assert (still["log_sd"] == 0).all() and moving["log_sd"].abs().min() > 0


def test_the_last_layer_may_begin_wider():
    model = functional(MLP(2, (3,), 1))
    theta = gem.build(model, squared, Config(sd=0.02, head_sd=0.3)).init(model.params).theta
    torch.testing.assert_close(theta["mean"], pack(model.params))
    spread = unpack(theta["log_sd"].exp(), model.params)
    for name, value in spread.items():
        torch.testing.assert_close(value, torch.full_like(value, 0.3 if name.startswith("head.") else 0.02))
    with pytest.raises(InputError, match="a positive head_sd"):
        gem.build(model, squared, Config(head_sd=-0.1))


def test_the_bound_of_the_query_is_the_difference_of_two():
    model, mean, log_sd = linear()
    task = tasks()
    state = gem.build(model, squared, Config()).init(model.params)._replace(theta={"mean": mean, "log_sd": log_sd})
    shown, all_rows = exact(mean, log_sd, task.support), exact(mean, log_sd, both(task))
    plain = merge_posteriors(Config(plus=False, natural=False))
    difference = tree_map(
        lambda a, b: a - b, plain(state, Posteriors(shown, all_rows)), plain(state, Posteriors(shown, shown))
    )
    plus = merge_posteriors(Config(plus=True, natural=False))(state, Posteriors(shown, all_rows))
    for left, right in zip(leaves(plus), leaves(difference), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_the_likelihood_of_the_query_given_the_support_is_the_difference_of_two_evidences():
    """The left side as the posterior's mean likelihood, by draws, task by task."""
    _, mean, log_sd = linear()
    task = tasks()
    shown = exact(mean, log_sd, task.support)
    for i in range(TASKS):
        one = take(task, slice(i, i + 1))
        w = shown.mean[i] + shown.log_sd[i].exp() * torch.randn(400_000, INPUTS)
        apart = one.query.y[0] - w @ one.query.x[0].T
        each = (-0.5 * (apart / NOISE) ** 2 - math.log(NOISE * math.sqrt(2 * math.pi))).sum(1).exp()
        expected = objective(True, one)(mean, log_sd).exp()
        assert abs(each.mean() - expected) < 5 * each.std() / len(w) ** 0.5
        assert each.std() / len(w) ** 0.5 < 0.02 * expected


def test_a_delta_posterior_is_reptile():
    model = functional(MLP(2, (3,), 1, activation="tanh"))
    rows = 5
    task = make_task(
        make_batch(torch.randn(TASKS, rows, 2), torch.randn(TASKS, rows)),
        make_batch(torch.randn(TASKS, rows, 2), torch.randn(TASKS, rows)),
    )
    cfg = Config(plus=False, joint=True, kl_weight=0.0, noise=0.5**0.5, inner_lr=0.01, inner_steps=3, samples=1)
    learner = gem.build(model, squared, cfg)
    state = learner.init(model.params)
    still = tree_map(torch.zeros_like, train_noise(learner.noise, TASKS, generator(0)))
    delta, _ = learner.meta_grad(state, task, still)
    # the likelihood sums the rows that Reptile averages
    other = reptile.build(
        model, squared, reptile.Config(inner_lr=0.01 * 2 * rows, inner_steps=3, inner="sgd", outer_lr=0.3)
    )
    expected, _ = other.meta_grad(other.init(model.params), task, ())
    torch.testing.assert_close(delta.grad["mean"], pack(expected.grad), rtol=1e-10, atol=1e-12)


def test_a_delta_prior_is_joint_training():
    model, mean, _ = linear()
    log_sd = torch.full((INPUTS,), math.log(1e-3))
    task = tasks()
    state = gem.build(model, squared, Config()).init(model.params)._replace(theta={"mean": mean, "log_sd": log_sd})
    found = Posteriors(exact(mean, log_sd, task.support), exact(mean, log_sd, both(task)))
    delta = merge_posteriors(Config(plus=False, natural=False))(state, found)
    rows = both(task)
    residual = rows.y - (rows.x * mean).sum(-1)
    slope = (residual[..., None] * rows.x).sum((0, 1)) / NOISE**2
    torch.testing.assert_close(-delta.grad["mean"], slope, rtol=1e-4, atol=1e-4)


def test_clients_that_send_posteriors_train_the_same_prior():
    model = functional(MLP(2, (3,), 1, activation="tanh"))
    task = make_task(
        make_batch(torch.randn(TASKS, 4, 2), torch.randn(TASKS, 4)),
        make_batch(torch.randn(TASKS, 3, 2), torch.randn(TASKS, 3)),
    )
    cfg = Config(inner_steps=2, samples=3)
    learner = gem.build(model, squared, cfg)
    state = learner.init(model.params)
    noise = train_noise(learner.noise, TASKS, generator(1))
    delta, _ = learner.meta_grad(state, task, noise)
    client, server = local_posterior(model, squared, cfg), merge_posteriors(cfg)
    sent = [client(state, *take((task, noise), slice(i, i + 1))) for i in range(TASKS)]
    for part in sent:
        check_posteriors(state, part)
    summed = tree_map(lambda *parts: sum(parts), *(server(state, part) for part in sent))
    for left, right in zip(leaves(summed), leaves(delta), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


def test_a_bad_posterior_is_refused_by_name_and_leaves_the_prior():
    model, mean, log_sd = linear()
    state = gem.build(model, squared, Config()).init(model.params)
    good, now = exact(mean, log_sd, tasks().support), fingerprint(state).expand(TASKS)
    check_posteriors(state, Posteriors(good, good, now))
    short = tree_map(lambda leaf: leaf[..., :2], good)
    with pytest.raises(InputError, match=r"mean of shape .* in client 7"):
        check_posteriors(state, Posteriors(good, short, now), "client 7")
    wrong = good._replace(mean=good.mean * float("nan"))
    with pytest.raises(InputError, match="finite numbers in client 8"):
        check_posteriors(state, Posteriors(wrong, good, now), "client 8")
    moved = state._replace(theta={**state.theta, "mean": state.theta["mean"] + 1e-6})  # as many updates, another prior
    mixed = torch.cat([fingerprint(moved)[None], now[1:]])
    all_moved = fingerprint(moved).expand(TASKS)
    for prior, said in ((all_moved, f"got {TASKS} of another"), (mixed, "got 1 of"), ((), "some")):
        with pytest.raises(InputError, match=f"this very prior in client 9, .*{said}.*; leave it out; the prior is"):
            check_posteriors(state, Posteriors(good, good, prior), "client 9")
    wide = good._replace(log_sd=good.log_sd + 500)
    with pytest.raises(InputError, match="finite variances in client 10, got a log standard deviation of"):
        check_posteriors(state, Posteriors(good, wide, now), "client 10")
    with pytest.raises(InputError, match=f"as many tasks in both posteriors of client 11, got {TASKS - 1} and {TASKS}"):
        check_posteriors(state, Posteriors(good, tree_map(lambda leaf: leaf[1:], good), now), "client 11")
    merge = merge_posteriors(Config())  # which asks for itself
    merge(state, Posteriors(good, good))
    for bad in (Posteriors(wrong, good, now), Posteriors(good, short, now), Posteriors(good, good, now + 5)):
        with pytest.raises(InputError, match="the prior is untouched"):
            merge(state, bad)


@pytest.mark.parametrize("joint", [False, True])
def test_later_steps_use_the_draws_of_the_first_again(joint):
    model, task = linear()[0], tasks()
    few = Config(inner_lr=0.02, inner_steps=5, samples=3, rounds=2, noise=NOISE, joint=joint)
    learner, every = gem.build(model, squared, few), gem.build(model, squared, replace(few, rounds=9))
    state = learner.init(model.params)
    drawn = train_noise(learner.noise, len(task.key), generator(3))
    again = tree_map(lambda leaf: leaf[:, [0, 1, 0, 1, 0]], drawn)
    found, expected = learner.meta_grad(state, task, drawn)[0], every.meta_grad(state, task, again)[0]
    assert all(len(leaf[0]) == 2 for leaf in leaves(drawn))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_variance_that_runs_away_is_bounded_and_reported():
    """One plain step that is far too long: widths are held at their bounds, and the update says how many."""
    model, mean, log_sd = linear()
    for rate, least, most in ((50.0, 0.9, 1.0), (1e-3, 0.0, 0.0)):
        cfg = Config(noise=NOISE, inner_steps=1, inner_lr=rate, samples=2, joint=True)
        learner = gem.build(model, squared, cfg)
        state = learner.init(model.params)._replace(theta={"mean": mean, "log_sd": log_sd})
        noise = train_noise(learner.noise, TASKS, generator(0))
        delta, info = learner.meta_grad(state, tasks(), noise)
        assert least <= info.clamped / TASKS <= most
        assert all(torch.isfinite(leaf).all() for leaf in leaves(delta))
        found = local_posterior(model, squared, cfg)(state, tasks(), noise)
        assert found.both.log_sd.min() >= LEAST and found.both.log_sd.max() <= MOST


def test_what_cannot_be_is_refused():
    model, _, _ = linear()
    for change in ({"noise": 0.0}, {"noise": float("nan")}, {"sd": 0.0}, {"samples": 0}, {"inner_steps": 0}):
        with pytest.raises(InputError, match=f"a positive {next(iter(change))}"):
            gem.build(model, squared, replace(Config(), **change))
    for change in ({"kl_weight": -1.0}, {"kl_weight": float("nan")}, {"kl_weight": 0.0, "inner": "newton"}):
        with pytest.raises(InputError, match="a kl_weight"):
            gem.build(model, squared, replace(Config(), **change))
        with pytest.raises(InputError, match="a kl_weight"):
            local_posterior(model, squared, replace(Config(), **change))
    with pytest.raises(InputError, match="all fast"):
        gem.build(functional(MLP(1, (2,), 1), fast="head.*"), squared)
