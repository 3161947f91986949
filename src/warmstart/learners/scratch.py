"""Scratch: no meta-learning. A new task is learned from a random start: the cold start to beat.

phi_t = descend(theta_random; support_t)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from warmstart.core import Batch, Learner, Likelihood, Model, Params, Task, Tree, task_loss
from warmstart.engine.stage import PLAIN, Stage
from warmstart.maths.descent import Inner, descent, finish
from warmstart.maths.optim import named
from warmstart.maths.outer import Info


@dataclass(frozen=True)
class Config:
    inner_lr: float = 0.01
    test_steps: int = 100
    inner: str = "adam"  # sgd, momentum or adam


SPACE: dict[str, list[Any]] = {
    "inner_lr": [1e-3, 3e-3, 0.01, 0.03, 0.1],
    "test_steps": [10, 30, 100, 300],
    "inner": ["sgd", "adam"],
}


class State(NamedTuple):
    theta: Params


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    loss = task_loss(model, likelihood)
    inner_loop = descent(model, likelihood, named(cfg.inner))

    def start(state: State, descriptor: Tree) -> Inner:
        return inner_loop.start(model.split(state.theta)[0])

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return inner_loop.step(model.split(state.theta)[1], inner, batch, cfg.inner_lr)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        return inner_loop.predict(model.split(state.theta)[1], adapted, x)

    judged = stage.stack(loss)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[tuple[()], Info]:
        return (), Info(judged(state.theta, tasks.query).sum(0))

    def update(state: State, delta: Any, count: Any) -> State:
        return state

    return Learner(State, start, step, finish, predict, meta_grad, update, steps=cfg.test_steps)
