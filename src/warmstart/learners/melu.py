"""MeLU: MAML for users, of which the decision layers alone are adapted and the embeddings shared.

    phi_t = theta - inner_lr * grad L(theta; support_t)        (decision layers, inner_steps times)
    (theta, embeddings) <- (theta, embeddings) - outer_lr * grad sum_t L(phi_t; query_t)

Lee, Im, Jang, Cho and Chung, 2019. Differs from the paper: see docs/methods/melu.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from warmstart.core import Batch, Learner, Likelihood, Model, Params, Task, Tree
from warmstart.engine.stage import PLAIN, Stage
from warmstart.maths.descent import finish
from warmstart.maths.outer import Delta, Info, State, outer
from warmstart.maths.rated import Inner, rated


@dataclass(frozen=True)
class Config:
    inner_lr: float = 0.03  # the paper of PAML gives it 1e-5, with which nothing moves
    inner_steps: int = 1  # of training and of adaptation
    shrink: float = 0.0  # rows' worth of staying where all users start; 0 is the paper's
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0


SPACE: dict[str, list[Any]] = {
    "inner_lr": [0.01, 0.03, 0.1],
    "inner_steps": [1, 3, 5],
    "outer_lr": [1e-3, 3e-3],
    "shrink": [4.0, 8.0, 16.0],
    "weight_decay": [0.0, 0.1, 0.3],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    inner_loop = rated(model, likelihood, cfg.inner_steps, cfg.shrink)
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)

    def start(state: State, descriptor: Tree) -> Inner:
        like = next(iter(state.theta.values()))
        return Inner(model.split(state.theta)[0], torch.full((), cfg.inner_lr, dtype=like.dtype, device=like.device))

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return inner_loop.step(state.theta, inner, batch)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        return inner_loop.predict(state.theta, adapted, x)

    def total(theta: Params, tasks: Task) -> Tensor:
        loss, _ = inner_loop.episodes(theta, torch.full_like(tasks.query.w[:, 0], cfg.inner_lr), tasks)
        return loss.sum()

    judged = stage.run(grad_and_value(total))

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        grads, value = judged(state.theta, tasks)
        return Delta(grads), Info(value)

    return Learner(out.init, start, step, finish, predict, meta_grad, out.update, steps=cfg.inner_steps)
