"""The unrolled loop and its reverse sweep against automatic differentiation of the whole loop."""

import pytest
import torch
from torch.func import vjp

from warmstart.core.trees import expand, leaves, take, tree_map
from warmstart.engine.stage import PLAIN, TRACED, over_tasks
from warmstart.engine.unroll import last, unroll, value_and_grad

pytestmark = pytest.mark.usefixtures("float64")
STEPS = 4


def step(shared, inner, rows, noise):
    slope = (rows * inner["phi"]).sin().sum(0) * shared["rate"] + noise
    speed = 0.7 * inner["speed"] + slope
    return {"phi": inner["phi"] - speed * shared["w"], "speed": speed}


def problem(tasks=3):
    shared = {"rate": torch.tensor(0.3), "w": torch.randn(2)}
    inner = {"phi": torch.randn(tasks, 2), "speed": torch.randn(tasks, 2)}
    return shared, inner, torch.randn(tasks, 5, 2), torch.randn(STEPS, tasks, 2)


def whole(shared, inner, rows, noise, steps=STEPS):
    for k in range(steps):
        inner = over_tasks(step)(shared, inner, rows, noise[k])
    return inner


def check(found, expected):
    for left, right in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
@pytest.mark.parametrize("recompute", [False, True], ids=["keep", "recompute"])
def test_run_and_pull_are_the_whole_loop_and_its_pullback(stage, recompute):
    shared, inner, rows, noise = problem()
    expected, pullback = vjp(lambda s, i: whole(s, i, rows, noise), shared, inner)
    cotangent = tree_map(torch.randn_like, expected)
    loop = unroll(step, stage, recompute)
    found, tape = loop.run(shared, inner, rows, noise, STEPS)
    assert len(tape) == (2 if recompute else STEPS)
    check(found, expected)
    check(loop.pull(tape, cotangent), pullback(cotangent))


def test_recomputing_keeps_no_more_than_the_states_between_segments():
    shared, inner, rows, noise = problem()
    _, tape = unroll(step, TRACED, recompute=True).run(shared, inner, rows, noise, STEPS)
    states = [start for start, _ in tape]
    assert all(one[0] is shared and one[1] is rows for _, given in tape for one in given)
    check(states, [whole(shared, inner, rows, noise, k) for k in (0, 2)])


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
def test_last_is_the_loop_without_a_tape(stage):
    given = problem()
    check(last(step, stage)(*given, STEPS), whole(*given))
    assert last(step, stage)(*given, 0) is given[1]


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
def test_value_and_grad_sums_what_is_shared_and_keeps_what_is_each_tasks_own(stage):
    shared, inner, rows, _ = problem()

    def loss(shared, own, rows):
        return ((rows * own["phi"]).sum(-1) - shared["w"].sum() * own["speed"].prod()).square().mean()

    value, shared_grad, own_grad = value_and_grad(loss, stage)(shared, inner, rows)
    twins = tree_map(lambda leaf: leaf.clone().requires_grad_(), (shared, inner))
    each = [loss(twins[0], take(twins[1], i), rows[i]) for i in range(3)]
    sum(each).backward()
    torch.testing.assert_close(value, sum(each).detach())
    torch.testing.assert_close(shared_grad["w"], twins[0]["w"].grad)
    assert shared_grad["rate"] == 0
    check(own_grad, {name: leaf.grad for name, leaf in twins[1].items()})


def test_the_loop_starts_from_an_expanded_state():
    """As learners start it: one theta for all tasks, without a copy."""
    shared, _, rows, noise = problem()
    start = {"phi": torch.randn(2), "speed": torch.zeros(2)}
    _, pullback = vjp(lambda s: whole(shared, expand(s, 3), rows, noise), start)
    loop = unroll(step, TRACED)
    found, tape = loop.run(shared, expand(start, 3), rows, noise, STEPS)
    cotangent = tree_map(torch.randn_like, found)
    pulled = loop.pull(tape, cotangent)[1]
    check(tree_map(lambda leaf: leaf.sum(0), pulled), pullback(cotangent)[0])
