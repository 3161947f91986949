"""The outer optimiser: the only place of a method that is not linear in the tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core.trees import Tree, pack, unpack
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


CLIP = 10.0  # norm of the mean gradient; one task whose inner loop explodes must not spoil Adam's memory


def outer(lr: float, decay: int = 0, weight_decay: float = 0.0, clip: float = CLIP, b2: float = 0.999) -> Outer:
    """Adam on the clipped mean over tasks; over `decay` updates the rate falls to zero as a cosine (0: constant)."""
    optimiser = adam(b2=b2, weight_decay=weight_decay)

    def init(theta: Tree) -> State:
        return State(theta, optimiser.init(theta))

    def update(state: State, delta: Delta, count: Tensor) -> State:
        rate: Any = lr * cosine(state.opt.done, decay)
        mean = clipped(delta.grad, count, clip)
        return State(*optimiser.update(state.theta, mean, state.opt, rate))

    return Outer(init, update)


def clipped(total: Tree, count: Tensor, limit: float) -> Tree:
    """total / count, shortened to norm `limit`; zero when it is not finite."""
    flat = pack(total)
    norm = (flat * flat).sum().sqrt() / count
    factor = torch.where(torch.isfinite(norm), (limit / norm.clamp(min=1e-30)).clamp(max=1.0), 0.0) / count
    return unpack(torch.nan_to_num(flat, 0.0, 0.0, 0.0) * factor, total)
