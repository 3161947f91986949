"""Meta-gradients by finite differences of loops written out by hand, and the sums that make an update."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from warmstart.core import Batch, Learner, Prediction, Task, functional, keep, make_batch, make_task
from warmstart.core.trees import leaves, take, tree_map
from warmstart.engine.meta import Feed, chunks, meta_update, predict_stack, sum_meta_grad
from warmstart.engine.stage import TRACED
from warmstart.learners import maml, meta_sgd
from warmstart.models.likelihoods import binary, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
TASKS = 3


def tasks(likelihood):
    """Uneven weights, padding, and as many rows as the masks leave."""

    def rows(count):
        y = torch.randn(TASKS, count)
        mask = torch.rand(TASKS, count).round()
        mask[:, 0] = 1
        y = (y > 0).double() if likelihood is binary else y
        return make_batch(torch.randn(TASKS, count, 2), y, w=torch.rand(TASKS, count) + 0.2, mask=mask)

    return make_task(rows(4), rows(5))


def row_loss(net, params, batch, likelihood):
    out = torch.func.functional_call(net, params, (batch.x,)).squeeze(-1)
    if likelihood is binary:
        rows = torch.nn.functional.binary_cross_entropy_with_logits(out, batch.y, reduction="none")
    else:
        rows = (out - batch.y) ** 2
    weight = batch.w * batch.mask
    return (weight * rows).sum() / weight.sum()


def by_hand(net, theta, rates, fast, task, steps, inner, likelihood):
    """The query loss of one task after `steps` of the inner optimiser, as a textbook writes it."""
    params = {name: value.clone() for name, value in theta.items()}
    first = {name: torch.zeros_like(params[name]) for name in fast}
    second = {name: torch.zeros_like(params[name]) for name in fast}
    for k in range(1, steps + 1):
        live = {name: value.detach().requires_grad_() for name, value in params.items()}
        loss = row_loss(net, live, task.support, likelihood)
        for name, g in zip(fast, torch.autograd.grad(loss, [live[name] for name in fast]), strict=True):
            if inner == "momentum":
                first[name] = 0.9 * first[name] + g
                g = first[name]
            if inner == "adam":
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g**2
                g = first[name] / (1 - 0.9**k) / ((second[name] / (1 - 0.999**k)).sqrt() + 1e-8)
            params[name] = params[name] - rates[name] * g
    return row_loss(net, params, task.query, likelihood)


def differences(value, tree, size=1e-5):
    """Central differences in every entry of every leaf."""
    slopes = {}
    for name, leaf in tree.items():
        slope = torch.zeros(leaf.numel())
        for i in range(leaf.numel()):
            ends = []
            for sign in (1, -1):
                moved = leaf.clone().reshape(-1)
                moved[i] += sign * size
                ends.append(value({**tree, name: moved.reshape(leaf.shape)}))
            slope[i] = (ends[0] - ends[1]) / (2 * size)
        slopes[name] = slope.reshape(leaf.shape)
    return slopes


@pytest.mark.parametrize(
    ("method", "pattern", "inner", "likelihood"),
    [
        (maml, "*", "sgd", binary),
        (maml, "*", "momentum", squared),
        (maml, "*", "adam", squared),
        (maml, "head.*", "sgd", squared),
        (maml, "head.*", "adam", binary),
        (meta_sgd, "*", "sgd", squared),
        (meta_sgd, "head.*", "momentum", binary),
    ],
    ids=["maml", "maml-momentum", "maml-adam", "anil", "anil-adam", "meta_sgd", "meta_sgd-head-momentum"],
)
def test_meta_gradient_by_finite_differences(method, pattern, inner, likelihood):
    net = MLP(2, (3,), 1, activation="tanh")
    model = functional(net, fast=pattern)
    batch = tasks(likelihood)
    theta = {name: value + 0.3 * torch.randn_like(value) for name, value in model.params.items()}
    cfg = method.Config(inner_lr=0.17, inner_steps=3, inner=inner)
    learner = method.build(model, likelihood, cfg)
    fast = sorted(model.fast)
    rates = {name: 0.17 * torch.ones_like(theta[name]) for name in fast}
    state = learner.init(theta)
    if method is meta_sgd:
        rates = {name: 0.05 + 0.3 * torch.rand_like(theta[name]) for name in fast}
        state = state._replace(theta={"params": theta, "rates": rates})
    delta, info = learner.meta_grad(state, batch, ())

    def total(theta, rates):
        each = [by_hand(net, theta, rates, fast, take(batch, i), 3, inner, likelihood) for i in range(TASKS)]
        return sum(each).detach()

    torch.testing.assert_close(info.loss, total(theta, rates), rtol=1e-9, atol=1e-12)
    found = delta.grad["params"] if method is meta_sgd else delta.grad
    assert list(found) == list(theta)
    torch.testing.assert_close(found, differences(lambda p: total(p, rates), theta), rtol=1e-5, atol=1e-7)
    if method is meta_sgd:
        slopes = differences(lambda r: total(theta, r), rates)
        torch.testing.assert_close({n: delta.grad["rates"][n] for n in fast}, slopes, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", [maml, meta_sgd], ids=["maml", "meta_sgd"])
def test_recomputing_gives_the_same_meta_gradient(method):
    model = functional(MLP(2, (3,), 1, activation="tanh"), fast="*.weight")
    batch = tasks(squared)
    found = []
    for recompute in (False, True):
        cfg = method.Config(inner_lr=0.1, inner_steps=4, inner="adam", recompute=recompute)
        learner = method.build(model, squared, cfg, TRACED)
        found.append(leaves(learner.meta_grad(learner.init(model.params), batch, ())))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


def test_first_order_is_the_gradient_at_the_end_of_the_path():
    """Its slow parameters, too, feel the query alone."""
    model = functional(MLP(2, (3,), 1, activation="tanh"), fast="head.*")
    batch = tasks(squared)
    cfg = maml.Config(inner_lr=0.2, inner_steps=2, first_order=True)
    learner = maml.build(model, squared, cfg)
    state = learner.init(model.params)
    delta, _ = learner.meta_grad(state, batch, ())
    expected = {name: torch.zeros_like(value) for name, value in model.params.items()}
    for i in range(TASKS):
        task = take(batch, i)
        inner = learner.start(state, task.descriptor)
        for _ in range(2):
            inner = learner.step(state, inner, task.support, ())
        live = {name: value.clone().requires_grad_() for name, value in {**model.params, **inner.phi}.items()}
        out = model.apply(live, task.query.x).squeeze(-1)
        weight = task.query.w * task.query.mask
        ((weight * (out - task.query.y) ** 2).sum() / weight.sum()).backward()
        expected = {name: value + live[name].grad for name, value in expected.items()}
    torch.testing.assert_close(delta.grad, expected)


# what the engine does with a learner, seen on one whose sums can be done in the head


class Sums(NamedTuple):
    loss: Tensor
    rows: Tensor


counter = Learner(
    init=lambda params: params,
    start=lambda state, descriptor: descriptor.sum(),
    step=lambda state, inner, batch, noise: inner + (batch.y * batch.mask).sum() + sum(n.sum() for n in leaves(noise)),
    finish=keep,
    predict=lambda state, adapted, x, noise: Prediction(x.squeeze(-1) + adapted, noise),
    meta_grad=lambda state, task, noise: (task.query.y.sum() * state["w"], Sums(task.query.y.sum(), task.key.sum())),
    update=lambda state, delta, count: {"w": state["w"] - delta / count},
    steps=2,
)


def numbers(count=5):
    batch = Batch(torch.randn(count, 3, 1), torch.randn(count, 3), torch.ones(count, 3), torch.ones(count, 3))
    return Task(batch, batch, torch.randn(count, 2), torch.arange(count))


@pytest.mark.parametrize("size", [None, 1, 2, 5, 7])
@pytest.mark.parametrize("count", [1, 5])
def test_chunks_cover_every_task_once(count, size):
    parts = chunks(count, size)
    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    assert all(part.stop - part.start <= (size or count) for part in parts)


@pytest.mark.parametrize("size", [None, 2])
def test_an_update_takes_the_sum_and_the_count_and_tells_the_mean(size):
    batch, state = numbers(), {"w": torch.tensor(2.0)}
    delta, info = sum_meta_grad(counter, state, Feed(batch), size)
    torch.testing.assert_close(delta, batch.query.y.sum() * 2)
    torch.testing.assert_close(info.rows, torch.tensor(10))
    new, told = meta_update(counter, size)(state, Feed(batch))
    torch.testing.assert_close(new["w"], 2 - batch.query.y.sum() * 2 / 5)
    torch.testing.assert_close(told.loss, batch.query.y.sum() / 5)
    torch.testing.assert_close(told.rows, torch.tensor(2.0))


@pytest.mark.parametrize("size", [None, 2])
def test_predict_stack_hands_every_task_its_own_noise(size):
    batch = numbers()
    noise = (torch.randn(5, 4, 2), torch.randn(5, 3))  # of 4 steps, and of the prediction
    found = predict_stack(counter, {}, batch, noise, steps=4, chunk=size)
    adapted = batch.descriptor.sum(-1) + 4 * batch.support.y.sum(-1) + noise[0].sum((1, 2))
    torch.testing.assert_close(found.mean, batch.query.x.squeeze(-1) + adapted[:, None])
    assert found.variance.equal(noise[1]) and found.samples == ()


def test_predict_stack_takes_the_learners_number_of_steps_unless_told():
    batch = numbers()
    shift = lambda steps: (predict_stack(counter, {}, batch, steps=steps).mean - batch.query.x.squeeze(-1))[:, 0]  # noqa: E731
    once = batch.support.y.sum(-1)
    torch.testing.assert_close(shift(None) - shift(0), 2 * once)
    torch.testing.assert_close(shift(3) - shift(0), 3 * once)


def test_predict_stack_asks_for_no_gradients():
    batch = tree_map(lambda leaf: leaf.requires_grad_() if leaf.is_floating_point() else leaf, numbers())
    assert not predict_stack(counter, {}, batch).mean.requires_grad
