"""MeLU, PAML and REG-PAML against loops over users that autograd differentiates; the lemmas of their paper."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from warmstart.core import Model, functional, make_batch, make_task
from warmstart.core.trees import leaves, take
from warmstart.engine.meta import Feed, meta_update, predict_stack
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.learners import melu, meta_sgd, paml, pretrain, reg_paml
from warmstart.maths.rated import rate_of, rated
from warmstart.models.likelihoods import binary, squared

pytestmark = pytest.mark.usefixtures("float64")
USERS, ROWS, KINDS = 3, 4, 5


class Net(nn.Module):
    """Rows by an embedding that is shared, then a layer that is adapted; users by another embedding."""

    described = 2

    def __init__(self):
        super().__init__()
        self.encoder, self.about = nn.Embedding(KINDS, 3), nn.Embedding(KINDS, self.described)
        self.layer = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def encode(self, x):
        return self.encoder(x)

    def decide(self, encoded):
        return self.layer(encoded)

    def forward(self, x):
        return self.decide(self.encode(x))

    def describe(self, descriptor):
        return self.about(descriptor)


def setting(likelihood=squared):
    torch.manual_seed(2)
    model = functional(Net(), fast="layer.*")

    def rows(lengths):
        mask = (torch.arange(ROWS) < torch.tensor(lengths)[:, None]).double()
        y = torch.randn(USERS, ROWS) + 0.7
        y = y if likelihood is squared else (y > 0.5).double()
        return make_batch(torch.randint(KINDS, (USERS, ROWS)), y, torch.rand(USERS, ROWS) + 0.5, mask)

    return model, make_task(rows([4, 1, 3]), rows([2, 4, 3]), torch.tensor([0, 3, 1]), torch.arange(USERS))


def loop(model, likelihood, tasks, params, rates, steps, shrink, gamma=0.0):
    """Sum over users, one after another, of the query loss and the regulariser."""

    def loss(values, batch):
        kept = batch.mask.bool()
        each = likelihood.loss(model.apply(values, batch.x[kept]), batch.y[kept])
        return (each * batch.w[kept]).sum() / batch.w[kept].sum()

    total = torch.zeros(())
    for i in range(USERS):
        task, phi = take(tasks, i), params
        weight = (task.support.w * task.support.mask).sum()
        for k in range(steps):
            names = [name for name in params if name in model.fast]
            slopes = torch.autograd.grad(loss(phi, task.support), [phi[n] for n in names], create_graph=True)
            if k == 0:
                total = total + gamma * sum((s**2).sum() for s in slopes) * rates[i].abs()
            share = weight / (weight + shrink)
            back = {n: (1 - share) * (phi[n] - params[n]) for n in names}
            moved = {n: phi[n] - rates[i] * share * s - back[n] for n, s in zip(names, slopes, strict=True)}
            phi = {**phi, **moved}
        total = total + loss(phi, task.query)
    return total


def grown(params):
    return {name: value.detach().clone().requires_grad_() for name, value in params.items()}


@pytest.mark.parametrize("likelihood", [squared, binary], ids=["squared", "binary"])
@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
def test_melu_is_a_loop_over_users(stage, likelihood):
    model, tasks = setting(likelihood)
    cfg = melu.Config(inner_lr=0.4, inner_steps=2, shrink=1.5)
    learner = melu.build(model, likelihood, cfg, stage)
    delta, info = learner.meta_grad(learner.init(model.params), tasks, ())
    params = grown(model.params)
    expected = loop(model, likelihood, tasks, params, torch.full((USERS,), 0.4), 2, 1.5)
    torch.testing.assert_close(info.loss, expected.detach())
    wanted = torch.autograd.grad(expected, list(params.values()), allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(list(delta.grad.values()), list(wanted))


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
def test_meta_sgd_shrinks_as_a_loop_over_users_does(stage):
    model, tasks = setting()
    learner = meta_sgd.build(model, squared, meta_sgd.Config(inner_lr=0.4, inner_steps=2, shrink=1.5), stage)
    delta, info = learner.meta_grad(learner.init(model.params), tasks, ())
    params = grown(model.params)
    expected = loop(model, squared, tasks, params, torch.full((USERS,), 0.4), 2, 1.5)
    torch.testing.assert_close(info.loss, expected.detach())
    wanted = torch.autograd.grad(expected, list(params.values()), allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(list(delta.grad["params"].values()), list(wanted))


def test_fine_tuning_shrinks_as_melu_does():
    model, tasks = setting()
    told = [
        predict_stack(module.build(model, squared, cfg), module.build(model, squared, cfg).init(model.params), tasks)
        for module, cfg in (
            (pretrain, pretrain.Config(inner_lr=0.4, test_steps=3, shrink=1.5)),
            (melu, melu.Config(inner_lr=0.4, inner_steps=3, shrink=1.5)),
        )
    ]
    torch.testing.assert_close(told[0].mean, told[1].mean)


@pytest.mark.parametrize("module", [paml, reg_paml], ids=["paml", "reg_paml"])
@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
def test_rates_are_the_users_own_and_learned(stage, module):
    model, tasks = setting()
    cfg = module.Config(rate=0.6, rate_hidden=(9, 7), inner_steps=2, shrink=0.5, seed=4)
    gamma = 0.0 if module is paml else 0.7
    cfg = cfg if module is paml else replace(cfg, gamma=gamma)
    learner = module.build(model, squared, cfg, stage)
    state = learner.init(model.params)
    params, weights = grown(model.params), grown(state.theta["rates"])
    h = params["about.weight"][tasks.descriptor]
    hidden = torch.relu(h @ weights["weight0"] + weights["bias0"])
    hidden = torch.relu(hidden @ weights["weight1"] + weights["bias1"])
    rates = 0.6 / (1 + torch.exp(-(hidden @ weights["weight2"] + weights["bias2"]).squeeze(-1)))
    assert rates.unique().numel() == USERS

    expected = loop(model, squared, tasks, params, rates, 2, 0.5, gamma)
    wanted = torch.autograd.grad(expected, [*params.values(), *weights.values()], materialize_grads=True)
    delta, info = learner.meta_grad(state, tasks, ())
    torch.testing.assert_close(leaves(delta.grad), list(wanted))
    assert all(slope.abs().sum() > 0 for slope in leaves(delta.grad["rates"]))
    torch.testing.assert_close(info.rate, rates.sum().detach())
    torch.testing.assert_close(info.loss, loop(model, squared, tasks, params, rates, 2, 0.5).detach())
    started = torch.stack([learner.start(state, user).rate for user in tasks.descriptor])
    torch.testing.assert_close(started, rates.detach())


def test_adapting_takes_the_step_of_training():
    model, tasks = setting()
    cfg = paml.Config(rate=0.6, inner_steps=2, shrink=0.5)
    learner = paml.build(model, squared, cfg)
    state = learner.init(model.params)
    said = predict_stack(learner, state, tasks).mean
    query = tasks.query
    loss = ((said - query.y) ** 2 * query.w * query.mask).sum(1) / (query.w * query.mask).sum(1)
    torch.testing.assert_close(loss.sum(), learner.meta_grad(state, tasks, ())[1].loss)


def test_a_regulariser_that_weighs_shortens_the_rates():
    model, tasks = setting()
    found = {}
    for gamma in (1e-5, 3.0):
        learner = reg_paml.build(model, squared, reg_paml.Config(gamma=gamma, rate=0.6, outer_lr=0.02))
        state = learner.init(model.params)
        for _ in range(40):
            state, info = meta_update(learner)(state, Feed(tasks))
        found[gamma] = float(info.rate)
    assert found[3.0] < 0.5 * found[1e-5]


# L_i = (theta - x_i)^2, so that a step leaves 1 - 2 rate of the distance to x_i
X, P = (-0.7, 1.9), (3, 1)  # what the two groups want, and how many users each has
point = Model(
    lambda params, x: params["w"].expand(len(x), 1),
    lambda params, x: x,
    {"w": torch.zeros((), dtype=torch.float64)},
    frozenset({"w"}),
)


def groups():
    x = torch.tensor([X[0]] * P[0] + [X[1]] * P[1])[:, None]
    batch = make_batch(torch.zeros(*x.shape, 1), x)
    return make_task(batch, batch)


def errors(theta, rates):
    """(theta_i - x_i)^2 after a step, of a user of each group, and the sum over all users."""
    tasks = groups()
    each = torch.tensor([rates[0]] * P[0] + [rates[1]] * P[1])
    loss, _ = rated(point, squared, 1).episodes({"w": theta}, each, tasks)
    return float(loss[0]), float(loss[-1]), float(loss.sum())


def best(rates):
    """Where the sum over users is least: its gradient is linear in theta, so one Newton step from anywhere."""
    tasks, each = groups(), torch.tensor([rates[0]] * P[0] + [rates[1]] * P[1])
    theta = torch.tensor(0.3, requires_grad=True)
    total = rated(point, squared, 1).episodes({"w": theta}, each, tasks)[0].sum()
    (slope,) = torch.autograd.grad(total, theta, create_graph=True)
    (curve,) = torch.autograd.grad(slope, theta)
    return (theta - slope / curve).detach()


def test_lemma_1_one_rate_serves_the_major_group():
    for rate in (0.05, 0.2, 0.7):
        theta = best((rate, rate))
        torch.testing.assert_close(theta, torch.tensor((P[0] * X[0] + P[1] * X[1]) / sum(P)))
        learner = melu.build(point, squared, melu.Config(inner_lr=rate))
        torch.testing.assert_close(
            learner.meta_grad(learner.init({"w": theta}), groups(), ())[0].grad["w"], torch.zeros(())
        )
        major, minor, _ = errors(theta, (rate, rate))
        torch.testing.assert_close(major, (1 - 2 * rate) ** 2 * float(theta - X[0]) ** 2)  # not 1 + 2 rate
        assert major < minor


def test_lemma_2_rates_exist_that_lower_both():
    rate = 0.1
    one = errors(best((rate, rate)), (rate, rate))
    for more in (0.15, 0.3, 0.45):  # a longer step for the minor group
        weights = [P[0] * (1 - 2 * rate) ** 2, P[1] * (1 - 2 * more) ** 2]
        theta = best((rate, more))
        torch.testing.assert_close(theta, torch.tensor((weights[0] * X[0] + weights[1] * X[1]) / sum(weights)))
        two = errors(theta, (rate, more))
        assert all(b < a for a, b in zip(one, two, strict=True))  # the major group's error too


def test_the_rates_that_the_proof_of_lemma_2_names_lower_neither():
    """They make both groups count alike, by (1 + 2 rate); with the sign of a descent they shorten the minor's step."""
    rate = 0.1
    named = (1 - (1 - 2 * rate) * (P[0] / P[1]) ** 0.5) / 2
    one, two = errors(best((rate, rate)), (rate, rate)), errors(best((rate, named)), (rate, named))
    torch.testing.assert_close(best((rate, named)), torch.tensor(sum(X) / 2))
    assert two[1] > one[1] and two[2] > one[2]


def test_the_rate_stays_below_its_bound_and_the_same_for_users_alike():
    torch.manual_seed(0)
    model, _ = setting()
    learner = paml.build(model, squared, paml.Config(rate=0.001))
    weights = learner.init(model.params).theta["rates"]
    rates = rate_of(weights, 50 * torch.randn(200, 2), 0.001)
    assert 0 <= float(rates.min()) < float(rates.max()) <= 0.001
    alike = paml.build(functional(nn.Linear(1, 1)), squared, paml.Config())
    state = alike.init({"weight": torch.ones(1, 1), "bias": torch.ones(1)})
    assert alike.start(state, torch.randn(4, 0)).rate.unique().numel() == 1
