"""The inner loop and its reverse sweep, for a stack of tasks.

Backpropagation through an inner loop is written out, each step on its own, last to first,

    v_k = (d inner_{k+1} / d inner_k)^T v_{k+1},

so one recorded step serves any number of steps. With `recompute` only the inner states between
the steps are kept and a step runs again when its turn comes; without, its activations are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.func import grad_and_value

from warmstart.core import Batch, Tree
from warmstart.core.trees import add, take, tree_map
from warmstart.engine.stage import Stage

Step = Callable[[Tree, Any, Batch, Tree], Any]  # one task: shared, Inner, Batch, noise -> Inner
Loop = Callable[[Tree, Any, Batch, Tree, int], Any]  # a stack of tasks, and the number of steps


class Unrolled(NamedTuple):
    """`run` gives the last inner state and what `pull` needs to bring a cotangent back to the start."""

    run: Callable[[Tree, Any, Batch, Tree, int], tuple[Any, list[Any]]]
    pull: Callable[[list[Any], Any], tuple[Tree, Any]]


def unroll(step: Step, stage: Stage, recompute: bool = False) -> Unrolled:
    """An inner loop, differentiable in what tasks share and in the first inner state.

    Noise has a leading step axis.
    """
    forward, backward = stage.differentiate(step)
    alone = stage.stack(step)

    def run(shared: Tree, inner: Any, batch: Batch, noise: Tree, steps: int) -> tuple[Any, list[Any]]:
        tape: list[Any] = []
        for k in range(steps):
            given = (shared, inner, batch, take(noise, k))
            if recompute:
                inner, saved = alone(*given), given
            else:
                inner, saved = forward(*given)
            tape.append(saved)
        return inner, tape

    def pull(tape: list[Any], cotangent: Any) -> tuple[Tree, Any]:
        total: Tree = None
        while tape:
            saved = tape.pop()
            if recompute:
                saved = forward(*saved)[1]
            part, cotangent = backward(saved, cotangent)
            total = part if total is None else add(total, part)
        return total, cotangent

    return Unrolled(run, pull)


def last(step: Step, stage: Stage) -> Loop:
    """The inner loop of methods that do not differentiate it: only the last state is kept."""
    forward = stage.stack(step)

    def run(shared: Tree, inner: Any, batch: Batch, noise: Tree, steps: int) -> Any:
        for k in range(steps):
            inner = forward(shared, inner, batch, take(noise, k))
        return inner

    return run


def value_and_grad(fn: Callable[..., Tensor], stage: Stage) -> Callable[..., tuple[Tensor, Tree, Tree]]:
    """For a stack of tasks: the sum of fn(shared, own, ...), its gradient in what tasks share, and
    each task's gradient in its own."""

    def one(shared: Tree, own: Tree, *rest: Tree) -> tuple[Tensor, tuple[Tree, Tree]]:
        (shared_grad, own_grad), value = grad_and_value(fn, argnums=(0, 1))(shared, own, *rest)
        return value, (shared_grad, own_grad)

    stacked = stage.stack(one)

    def call(shared: Tree, own: Tree, *rest: Tree) -> tuple[Tensor, Tree, Tree]:
        value, (shared_grad, own_grad) = stacked(shared, own, *rest)
        return value.sum(0), tree_map(lambda leaf: leaf.sum(0), shared_grad), own_grad

    return call
