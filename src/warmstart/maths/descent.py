"""Gradient descent on one task: what all point-estimate learners share.

An inner state is the fast parameters and the optimiser's memory; the adapted model is the fast
parameters alone, which is all that differs between tasks. With `shrink`, few rows lead not far from where all start:

    phi <- theta + s (phi - theta) - s lr direction,      s = n / (n + shrink),   n the weight of the rows
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from warmstart.core import Batch, InputError, Likelihood, Model, Params, Prediction, Tree, task_loss
from warmstart.core.trees import scale, tree_map
from warmstart.maths.optim import Optimiser


class Inner(NamedTuple):
    phi: Params  # fast parameters
    opt: Any


class Descent(NamedTuple):
    start: Callable[[Params], Inner]
    step: Callable[..., Inner]  # slow parameters, Inner, rows, learning rate and, to shrink to, the start
    predict: Callable[[Params, Params, Tree], Prediction]  # slow, phi, x


def share_of(rows: Batch, shrink: float) -> Tensor:
    """s = n / (n + shrink)."""
    weight = (rows.w * rows.mask).sum()
    return weight / (weight + shrink)


def descent(model: Model, likelihood: Likelihood, optimiser: Optimiser, shrink: float = 0.0) -> Descent:
    """phi <- phi - lr * direction(grad L(phi; rows)), for one task."""
    loss = task_loss(model, likelihood)

    def start(fast: Params) -> Inner:
        return Inner(fast, optimiser.init(fast))

    def step(slow: Params, inner: Inner, batch: Batch, lr: Any, origin: Params | None = None) -> Inner:
        phi, grads = inner.phi, grad(lambda phi: loss({**slow, **phi}, batch))(inner.phi)
        if shrink and origin is not None:
            share = share_of(batch, shrink)
            phi, lr = tree_map(lambda own, all_: torch.lerp(all_, own, share), phi, origin), scale(lr, share)
        return Inner(*optimiser.update(phi, grads, inner.opt, lr))

    def predict(slow: Params, phi: Params, x: Tree) -> Prediction:
        return Prediction(likelihood.mean(model.apply({**slow, **phi}, x)))

    return Descent(start, step, predict)


def blank_names(model: Model, pattern: str) -> frozenset[str]:
    """The fast parameters that start every task at zero and are not learned; none for an empty pattern."""
    names = frozenset(name for name in model.fast if pattern and fnmatch(name, pattern))
    if pattern and not names:
        raise InputError(f"a fast parameter named like {pattern}", ", ".join(sorted(model.fast)), "name one of them")
    return names


def blanked(params: Params, names: frozenset[str]) -> Params:
    return {name: torch.zeros_like(leaf) if name in names else leaf for name, leaf in params.items()}


def finish(state: Any, inner: Inner, batch: Batch) -> Params:
    """Adapted: the fast parameters, without the optimiser's memory."""
    return inner.phi
