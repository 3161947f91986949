"""Meta-SGD: learn the initialisation and a learning rate for every parameter.

    phi_t = theta - alpha * grad L(theta; support_t)           (alpha shaped like theta, inner_steps times)
    (theta, alpha) <- (theta, alpha) - outer_lr * grad sum_t L(phi_t; query_t)

With `relative`, alpha = inner_lr e^a and a is learned, from zero: rates stay positive, an update changes all by like
shares, and weight decay pulls them to inner_lr, not to zero.

Li, Zhou, Chen and Li, 2017. Differs from the paper: see docs/methods/meta_sgd.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warmstart.core import Batch, InputError, Learner, Likelihood, Model, Params, Task, Tree, task_loss
from warmstart.core.trees import add, expand, tree_map, zeros_like
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import unroll
from warmstart.maths.descent import Inner, descent, finish
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, Info, State, outer


@dataclass(frozen=True)
class Config:
    inner_lr: float = 0.01  # where every rate starts
    inner_steps: int = 1  # of training
    test_steps: int = 0  # of adaptation; 0: as many as in training, which the rates are learned for
    inner: str = "sgd"  # sgd, momentum or adam
    relative: bool = False  # learn the logarithms of rates beside inner_lr, not the rates
    shrink: float = 0.0  # rows' worth of staying where all tasks start
    recompute: bool = False  # keep few states of the inner loop and run it again: less memory, more time
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0


SPACE: dict[str, list[Any]] = {
    "inner_lr": [0.003, 0.01, 0.03, 0.1],
    "inner_steps": [1, 2, 3],
    "outer_lr": [3e-4, 1e-3, 3e-3],
    "weight_decay": [0.0, 1e-3, 1e-2],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    if cfg.inner_steps < 1:
        raise InputError("at least one of inner_steps", f"{cfg.inner_steps}", "rates are learned from the steps taken")
    if cfg.relative and cfg.inner_lr <= 0:
        raise InputError("a positive inner_lr with relative rates", f"{cfg.inner_lr:g}", "they are multiples of it")
    loss = task_loss(model, likelihood)
    inner_loop = descent(model, likelihood, named(cfg.inner), cfg.shrink)
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)

    def init(params: Params) -> State:
        """theta holds the parameters under `params` and the rates of the fast ones under `rates`."""
        fast, _ = model.split(params)
        first = 0.0 if cfg.relative else cfg.inner_lr
        return out.init(
            {"params": params, "rates": {name: torch.full_like(value, first) for name, value in fast.items()}}
        )

    def rates_of(theta: Tree) -> Params:
        rates: Params = theta["rates"]
        return tree_map(lambda leaf: cfg.inner_lr * leaf.exp(), rates) if cfg.relative else rates

    def start(state: State, descriptor: Tree) -> Inner:
        return inner_loop.start(model.split(state.theta["params"])[0])

    def descend(shared: Tree, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return inner_loop.step(shared["slow"], inner, batch, shared["rates"], shared.get("fast"))

    def shared_by_all(theta: Tree) -> Tree:
        fast, slow = model.split(theta["params"])
        return {"slow": slow, "rates": rates_of(theta), **({"fast": fast} if cfg.shrink else {})}

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return descend(shared_by_all(state.theta), inner, batch, noise)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        return inner_loop.predict(model.split(state.theta["params"])[1], adapted, x)

    def judge(slow: Params, phi: Params, query: Batch) -> Tensor:
        return loss({**slow, **phi}, query)

    loop = unroll(descend, stage, cfg.recompute)
    judged, pulled_back = stage.differentiate(judge)  # tables of slow parameters get one gradient, not one per task

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        fast, slow = model.split(state.theta["params"])
        count = len(tasks.key)
        first = Inner(expand(fast, count), expand(inner_loop.start(fast).opt, count))
        inner, tape = loop.run(shared_by_all(state.theta), first, tasks.support, (), cfg.inner_steps)
        value, saved = judged(slow, inner.phi, tasks.query)
        slow_grad, cotangent = pulled_back(saved, torch.ones_like(value))
        through, pulled = loop.pull(tape, Inner(cotangent, zeros_like(inner.opt)))
        fast_grad = tree_map(lambda leaf: leaf.sum(0), pulled.phi)
        fast_grad = add(fast_grad, through["fast"]) if cfg.shrink else fast_grad
        grads = {**add(slow_grad, through["slow"]), **fast_grad}
        ordered = {name: grads[name] for name in state.theta["params"]}
        by_rates = through["rates"]
        if cfg.relative:
            by_rates = tree_map(torch.mul, by_rates, rates_of(state.theta))
        return Delta({"params": ordered, "rates": by_rates}), Info(value.sum(0))

    return Learner(init, start, step, finish, predict, meta_grad, out.update, steps=cfg.test_steps or cfg.inner_steps)
