"""Reptile: move the initialisation towards where each task's descent ends.

    phi_t = descend(theta; support_t and query_t)              (inner_steps times, all rows or a share of them each)
    theta <- theta - outer_lr * sum_t (theta - phi_t) / count

Nichol, Achiam and Schulman, 2018. Differs from the paper: see docs/methods/reptile.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Batch, Learner, Likelihood, Model, Params, Task, Tree, task_loss
from warmstart.core.trees import expand, scale, take, tree_map, zeros_like
from warmstart.engine.stage import PLAIN, Stage
from warmstart.maths.descent import Inner, descent, finish
from warmstart.maths.optim import descend, linear, named
from warmstart.maths.outer import Delta, Info


@dataclass(frozen=True)
class Config:
    inner_lr: float = 0.01
    inner_steps: int = 5  # of training
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    inner: str = "adam"  # sgd, momentum or adam
    minibatches: bool = False  # in training each inner step sees its own share of the rows, not all of them
    outer_lr: float = 1.0
    outer_decay: int = 0  # updates over which outer_lr falls to zero in a straight line; 0 keeps it


SPACE: dict[str, list[Any]] = {
    "inner_lr": [3e-4, 1e-3, 3e-3, 0.01, 0.03],
    "inner_steps": [3, 5, 10],
    "test_steps": [3, 5, 10, 20],
    "outer_lr": [0.1, 0.3, 1.0],
}


class State(NamedTuple):
    theta: Params
    done: Tensor  # updates so far


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    loss = task_loss(model, likelihood)
    inner_loop = descent(model, likelihood, named(cfg.inner))

    def init(params: Params) -> State:
        return State(params, next(iter(params.values())).new_zeros(()))

    def start(state: State, descriptor: Tree) -> Inner:
        return inner_loop.start(model.split(state.theta)[0])

    def one(slow: Params, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return inner_loop.step(slow, inner, batch, cfg.inner_lr)

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return one(model.split(state.theta)[1], inner, batch, noise)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        return inner_loop.predict(model.split(state.theta)[1], adapted, x)

    towards = stage.stack(one)

    def share(k: int) -> slice:
        """The rows of inner step k: every so many-th, since rows may come by class."""
        return slice(k, None, cfg.inner_steps) if cfg.minibatches else slice(None)

    judged = stage.stack(lambda slow, phi, query: loss({**slow, **phi}, query))

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        fast, slow = model.split(state.theta)
        count = len(tasks.key)
        rows = tree_map(lambda s, q: torch.cat([s, q], 1), tasks.support, tasks.query)
        inner = Inner(expand(fast, count), expand(inner_loop.start(fast).opt, count))
        for k in range(cfg.inner_steps):
            inner = towards(slow, inner, take(rows, (slice(None), share(k))), ())
        away = tree_map(lambda theta, phi: count * theta - phi.sum(0), fast, inner.phi)
        return Delta({**zeros_like(slow), **away}), Info(judged(slow, inner.phi, tasks.query).sum(0))

    def update(state: State, delta: Delta, count: Tensor) -> State:
        rate = cfg.outer_lr * linear(state.done, cfg.outer_decay)
        mean = scale({name: delta.grad[name] for name in state.theta}, 1 / count)
        return State(descend(state.theta, mean, rate), state.done + 1)

    return Learner(init, start, step, finish, predict, meta_grad, update, steps=cfg.test_steps)
