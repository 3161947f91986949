"""Gradient descent on one task: what all point-estimate learners share.

An inner state is the fast parameters and the optimiser's memory; the adapted model is the fast
parameters alone, which is all that differs between tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.func import grad

from warmstart.core import Batch, Likelihood, Model, Params, Prediction, Tree, task_loss
from warmstart.maths.optim import Optimiser


class Inner(NamedTuple):
    phi: Params  # fast parameters
    opt: Any


class Descent(NamedTuple):
    start: Callable[[Params], Inner]
    step: Callable[[Params, Inner, Batch, Any], Inner]  # slow parameters, Inner, rows, learning rate
    predict: Callable[[Params, Params, Tree], Prediction]  # slow, phi, x


def descent(model: Model, likelihood: Likelihood, optimiser: Optimiser) -> Descent:
    """phi <- phi - lr * direction(grad L(phi; rows)), for one task."""
    loss = task_loss(model, likelihood)

    def start(fast: Params) -> Inner:
        return Inner(fast, optimiser.init(fast))

    def step(slow: Params, inner: Inner, batch: Batch, lr: Any) -> Inner:
        grads = grad(lambda phi: loss({**slow, **phi}, batch))(inner.phi)
        return Inner(*optimiser.update(inner.phi, grads, inner.opt, lr))

    def predict(slow: Params, phi: Params, x: Tree) -> Prediction:
        return Prediction(likelihood.mean(model.apply({**slow, **phi}, x)))

    return Descent(start, step, predict)


def finish(state: Any, inner: Inner, batch: Batch) -> Params:
    """Adapted: the fast parameters, without the optimiser's memory."""
    return inner.phi
