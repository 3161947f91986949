"""The inner loop and its reverse sweep, for a stack of tasks.

Backpropagation through an inner loop is written out, each step on its own, last to first,

    v_k = (d inner_{k+1} / d inner_k)^T v_{k+1},

so one recorded step serves any number of steps. With `recompute` only about 2 sqrt(steps) inner
states are kept and steps run again when their turn comes; without, their activations are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.func import grad_and_value

from warmstart.core import Batch, Tree
from warmstart.core.trees import add, leaves, take, tree_map
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
        if recompute:
            return segments(shared, inner, batch, noise, steps)
        tape: list[Any] = []
        for k in range(steps):
            inner, saved = forward(shared, inner, batch, take(noise, k))
            tape.append(saved)
        return inner, tape

    def segments(shared: Tree, inner: Any, batch: Batch, noise: Tree, steps: int) -> tuple[Any, list[Any]]:
        """The steps in segments of about sqrt(steps); the tape holds where each begins."""
        tape: list[Any] = []
        length = math.isqrt(max(steps - 1, 0)) + 1
        for first in range(0, steps, length):
            given = [(shared, batch, take(noise, k)) for k in range(first, min(first + length, steps))]
            tape.append((inner, given))
            for common, rows, drawn in given:
                inner = alone(common, inner, rows, drawn)
        return inner, tape

    def again(inner: Any, given: list[Any]) -> list[Any]:
        """What the steps of a segment start from, computed once more."""
        starts = [inner]
        for shared, batch, drawn in given[:-1]:
            starts.append(alone(shared, starts[-1], batch, drawn))
        return starts

    def pull(tape: list[Any], cotangent: Any) -> tuple[Tree, Any]:
        total: Tree = None
        while tape:
            if recompute:
                inner, given = tape.pop()
                starts = again(inner, given)
                todo = [(given[k], starts[k]) for k in range(len(given))]
                del starts, inner, given
            else:
                todo = [tape.pop()]
            while todo:
                saved: Any = todo.pop()
                if recompute:
                    (shared, batch, drawn), start = saved
                    saved = forward(shared, start, batch, drawn)[1]
                part, cotangent = backward(saved, cotangent)
                total = part if total is None else add(total, part)
        return total, cotangent

    return Unrolled(run, pull)


def last(step: Step, stage: Stage) -> Loop:
    """The inner loop of methods that do not differentiate it: only the last state is kept.

    Noise for fewer steps than there are is used again from its beginning.
    """
    forward = stage.stack(step)

    def run(shared: Tree, inner: Any, batch: Batch, noise: Tree, steps: int) -> Any:
        drawn = min([steps, *(len(leaf) for leaf in leaves(noise))])
        for k in range(steps):
            inner = forward(shared, inner, batch, take(noise, k % drawn))
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
