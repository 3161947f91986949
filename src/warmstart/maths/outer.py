"""The outer optimiser: the only place of a method that is not linear in the tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from warmstart.core.trees import Tree, scale
from warmstart.maths.optim import AdamState, adam, cosine


class State(NamedTuple):
    theta: Tree  # meta-parameters
    opt: AdamState


class Delta(NamedTuple):
    grad: Tree  # summed over tasks, shaped like theta


class Info(NamedTuple):
    loss: Tensor  # summed over tasks


class Outer(NamedTuple):
    init: Callable[[Tree], State]
    update: Callable[[State, Delta, Tensor], State]


def outer(lr: float, decay: int = 0, weight_decay: float = 0.0) -> Outer:
    """Adam on the mean over tasks; over `decay` updates the rate falls to zero as a cosine (0: constant)."""
    optimiser = adam(weight_decay=weight_decay)

    def init(theta: Tree) -> State:
        return State(theta, optimiser.init(theta))

    def update(state: State, delta: Delta, count: Tensor) -> State:
        rate: Any = lr * cosine(state.opt.count, decay)
        return State(*optimiser.update(state.theta, scale(delta.grad, 1 / count), state.opt, rate))

    return Outer(init, update)
