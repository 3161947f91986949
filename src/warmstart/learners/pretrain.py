"""Pretrain: train one model on the rows of all tasks together, then fine-tune it on a new one.

    theta <- theta - outer_lr * grad sum_t L(theta; support_t and query_t)
    phi_t = descend(theta; support_t)

The transfer learning that meta-learning has to beat. See docs/methods/pretrain.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from warmstart.core import Batch, Learner, Likelihood, Model, Params, Task, Tree, task_loss
from warmstart.core.trees import tree_map
from warmstart.engine.stage import PLAIN, Stage, over_tasks
from warmstart.maths.descent import Inner, descent, finish
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, Info, State, outer


@dataclass(frozen=True)
class Config:
    inner_lr: float = 0.01  # of fine-tuning
    test_steps: int = 10
    inner: str = "sgd"  # sgd, momentum or adam
    shrink: float = 0.0  # rows' worth of staying where all tasks start, in fine-tuning
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0


SPACE: dict[str, list[Any]] = {
    "inner_lr": [0.003, 0.01, 0.03, 0.1, 0.3],
    "test_steps": [1, 3, 5, 10, 20],
    "outer_lr": [3e-4, 1e-3, 3e-3],
    "weight_decay": [0.0, 1e-3, 1e-2],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    loss = task_loss(model, likelihood)
    inner_loop = descent(model, likelihood, named(cfg.inner), cfg.shrink)
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)

    def start(state: State, descriptor: Tree) -> Inner:
        return inner_loop.start(model.split(state.theta)[0])

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        fast, slow = model.split(state.theta)
        return inner_loop.step(slow, inner, batch, cfg.inner_lr, fast)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        return inner_loop.predict(model.split(state.theta)[1], adapted, x)

    def together(theta: Params, rows: Batch) -> Tensor:
        total: Tensor = over_tasks(loss)(theta, rows).sum()
        return total

    joint = stage.run(grad_and_value(together))

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        rows = tree_map(lambda s, q: torch.cat([s, q], 1), tasks.support, tasks.query)
        grads, value = joint(state.theta, rows)
        return Delta(grads), Info(value)

    return Learner(out.init, start, step, finish, predict, meta_grad, out.update, steps=cfg.test_steps)
