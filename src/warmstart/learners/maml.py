"""MAML: an initialisation from which a few gradient steps fit any task.

    phi_t = theta - inner_lr * grad L(theta; support_t)        (inner_steps times)
    theta <- theta - outer_lr * grad_theta sum_t L(phi_t; query_t)

First-order MAML drops the derivative of phi_t; ANIL is MAML on a model whose only fast
parameters are the head's: `functional(net, fast="head.*")`. With `blank="head.*"` every task starts with a head of
zeros, so that no class is preferred before it is seen.

Finn, Abbeel and Levine, 2017. Differs from the paper: see docs/methods/maml.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from warmstart.core import Batch, Learner, Likelihood, Model, Params, Task, Tree, task_loss
from warmstart.core.trees import add, expand, sum_tasks, zeros_like
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import last, unroll, value_and_grad
from warmstart.maths.descent import Inner, blank_names, blanked, descent, finish
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, Info, State, outer


@dataclass(frozen=True)
class Config:
    inner_lr: float = 0.01
    inner_steps: int = 1  # of training
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    inner: str = "sgd"  # sgd, momentum or adam
    first_order: bool = False  # drop the second derivative
    recompute: bool = False  # keep few states of the inner loop and run it again: less memory, more time
    blank: str = ""  # pattern of the fast parameters that start every task at zero and are not learned
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0


FOMAML = Config(first_order=True)

SPACE: dict[str, list[Any]] = {
    "inner_lr": [0.003, 0.01, 0.03, 0.1, 0.3],
    "inner_steps": [1, 3, 5],
    "test_steps": [1, 3, 5, 10],
    "outer_lr": [3e-4, 1e-3, 3e-3],
    "weight_decay": [0.0, 1e-3, 1e-2],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    blank = blank_names(model, cfg.blank)
    loss = task_loss(model, likelihood)
    inner_loop = descent(model, likelihood, named(cfg.inner))
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)

    def init(params: Params) -> State:
        return out.init(blanked(params, blank))

    def start(state: State, descriptor: Tree) -> Inner:
        return inner_loop.start(model.split(state.theta)[0])

    def descend(slow: Params, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return inner_loop.step(slow, inner, batch, cfg.inner_lr)

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return descend(model.split(state.theta)[1], inner, batch, noise)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        return inner_loop.predict(model.split(state.theta)[1], adapted, x)

    def judge(slow: Params, phi: Params, query: Batch) -> Tensor:
        return loss({**slow, **phi}, query)

    loop = unroll(descend, stage, cfg.recompute)
    ahead = last(descend, stage)
    judged = value_and_grad(judge, stage)
    total = stage.run(sum_tasks)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        fast, slow = model.split(state.theta)
        count = len(tasks.key)
        first = Inner(expand(fast, count), expand(inner_loop.start(fast).opt, count))
        tape: list[Any] = []
        if cfg.first_order:
            inner = ahead(slow, first, tasks.support, (), cfg.inner_steps)
        else:
            inner, tape = loop.run(slow, first, tasks.support, (), cfg.inner_steps)
        value, slow_grad, cotangent = judged(slow, inner.phi, tasks.query)
        if tape:
            through, pulled = loop.pull(tape, Inner(cotangent, zeros_like(inner.opt)))
            slow_grad, cotangent = add(slow_grad, through), pulled.phi
        fast_grad = total(cotangent)
        grads = {**slow_grad, **fast_grad}
        return Delta(blanked({name: grads[name] for name in state.theta}, blank)), Info(value)

    return Learner(init, start, step, finish, predict, meta_grad, out.update, steps=cfg.test_steps)
