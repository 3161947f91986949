"""The contract of every method: pure functions on trees of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from warmstart.core.task import Batch, Task
from warmstart.core.trees import Params, Tree, take


class Prediction(NamedTuple):
    """What a model says of some rows. An empty tuple stands for what a method does not give."""

    mean: Tensor  # [n], or class probabilities [n, classes]
    variance: Tree = ()  # [n] of the target, noise included
    samples: Tree = ()  # [s, n] draws


class Noise(NamedTuple):
    """Shapes, for one task, of the standard normal draws a method needs; the engine draws them."""

    train: Tree = ()  # for one meta_grad
    step: Tree = ()  # for one inner step
    predict: Tree = ()


class Learner(NamedTuple):
    """A method. `start`, `step`, `finish` and `predict` are for ONE task; callers vmap."""

    init: Callable[[Params], Any]  # parameters -> State
    start: Callable[[Any, Tree], Any]  # State, descriptor -> Inner: what we believe before any sample
    step: Callable[[Any, Any, Batch, Tree], Any]  # State, Inner, Batch, noise -> Inner
    finish: Callable[[Any, Any, Batch], Any]  # State, Inner, Batch -> Adapted
    predict: Callable[[Any, Any, Tree, Tree], Prediction]  # State, Adapted, x, noise -> Prediction
    meta_grad: Callable[[Any, Task, Tree], tuple[Any, Any]]  # State, Task[t], noise[t] -> Delta, Info; SUMS over tasks
    update: Callable[[Any, Any, Tensor], Any]  # State, Delta, count -> State
    steps: int = 1  # inner steps of `adapt` unless the caller says otherwise
    noise: Noise = Noise()
    capturable: bool = True  # False: a Python decision depends on values, so no graph can replay it


def keep(state: Any, inner: Any, batch: Batch) -> Any:
    """The plain `finish`: what was reached is what is used."""
    return inner


def adapt(
    learner: Learner, state: Any, support: Batch, descriptor: Tree, noise: Tree = (), steps: int | None = None
) -> Any:
    """One task: start, then `steps` inner steps, then finish. `noise` has a leading step axis."""
    inner = learner.start(state, descriptor)
    for k in range(learner.steps if steps is None else steps):
        inner = learner.step(state, inner, support, take(noise, k))
    return learner.finish(state, inner, support)
