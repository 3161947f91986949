"""iMAML: adapt to the minimum of a proximal problem and differentiate the minimum, not the path.

    phi_t = argmin L(phi; support_t) + prox / 2 ||phi - theta||^2      (inner_steps of descent)
    d phi_t / d theta = (I + H_t / prox)^-1,   H_t = Hessian of L(phi_t; support_t)
    theta <- theta - outer_lr * sum_t v_t,   v_t = (I + H_t / prox)^-1 grad L(phi_t; query_t)

Slow parameters, which all tasks share, move the minimum too:

    slow <- slow - outer_lr * sum_t grad_slow [L(phi_t; query_t) - v_t / prox . grad_phi L(phi_t; support_t)]

The inner problem is solved by gradient descent or by Gauss-Newton steps, each of some conjugate-gradient steps
(`inner="newton"`); with `halvings` a step is as long as the objective allows. The inverse is
applied by conjugate gradient with products of the curvature and a vector, so memory does not
grow with the inner steps. Without conjugate-gradient steps it is the plain gradient at phi_t.

Rajeswaran, Finn, Kakade and Levine, 2019. Differs from the paper: see docs/methods/imaml.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vjp

from warmstart.core import Batch, InputError, Learner, Likelihood, Model, Params, Prediction, Task, Tree, task_loss
from warmstart.core.trees import add, dot, expand, scale, sum_tasks, tree_map
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import last, value_and_grad
from warmstart.maths import solve
from warmstart.maths.curvature import gauss_newton_product
from warmstart.maths.descent import Inner, finish
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, Info, State, outer
from warmstart.maths.solve import Solving


@dataclass(frozen=True)
class Config:
    inner_lr: float = 0.01
    inner_steps: int = 16  # of training
    test_steps: int = 16  # of adaptation, unless the caller says otherwise
    inner: str = "sgd"  # sgd, momentum, adam or newton, whose inner_lr is best 1
    inner_solve: int = 5  # of conjugate gradient in a step of newton
    halvings: int = 0  # of inner_lr that a step may take for the inner objective to fall; 0 takes every step as it is
    prox: float = 2.0  # strength that ties a task to theta
    solve_steps: int = 5  # of conjugate gradient; 0 uses the plain gradient
    curvature: str = "hessian"  # or gauss_newton, which has no negative directions
    damping: float = 1.0  # added to the curvature
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0


SPACE: dict[str, list[Any]] = {
    "inner_lr": [0.003, 0.01, 0.03, 0.1],
    "inner_steps": [8, 16],
    "prox": [0.3, 1.0, 2.0, 5.0],
    "outer_lr": [3e-4, 1e-3, 3e-3],
    "weight_decay": [0.0, 1e-3, 1e-2],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    if cfg.curvature not in ("hessian", "gauss_newton"):
        raise InputError("a curvature hessian or gauss_newton", repr(cfg.curvature), "use one of these names")
    mean_loss = task_loss(model, likelihood)
    optimiser = named("sgd" if cfg.inner == "newton" else cfg.inner)
    gauss_newton = gauss_newton_product(model, likelihood)
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)
    # products with a few fast parameters' curvature share the passes through the slow part; others compile sooner alone
    together = 1 if len(model.fast) == len(model.params) else cfg.solve_steps

    def loss(slow: Params, phi: Params, batch: Batch) -> Tensor:
        return mean_loss({**slow, **phi}, batch)

    def start(state: State, descriptor: Tree) -> Inner:
        fast = model.split(state.theta)[0]
        return Inner(fast, optimiser.init(fast))

    def descend(theta: Params, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        fast, slow = model.split(theta)

        def objective(phi: Params) -> Tensor:
            away = torch.stack([((phi[name] - anchor) ** 2).sum() for name, anchor in fast.items()]).sum()
            return loss(slow, phi, batch) + 0.5 * cfg.prox * away

        def move(rate: float) -> Inner:
            return Inner(*optimiser.update(inner.phi, grads, inner.opt, rate))

        grads, height = grad_and_value(objective)(inner.phi)
        if cfg.inner == "newton":

            def curved(v: Params) -> Params:
                bent: Params = add(gauss_newton(slow, inner.phi, batch, v), scale(v, cfg.prox))
                return bent

            grads = solve.conjugate_gradient(curved, grads, cfg.inner_solve)
        if not cfg.halvings:
            return move(cfg.inner_lr)
        found = inner  # stays where it is if no rate will do; else the greatest that does
        for power in range(cfg.halvings, -1, -1):
            there = move(cfg.inner_lr / 2**power)
            lower = objective(there.phi) < height
            found = tree_map(lambda new, old, lower=lower: torch.where(lower, new, old), there, found)
        return found

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return descend(state.theta, inner, batch, noise)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        return Prediction(likelihood.mean(model.apply({**model.split(state.theta)[1], **adapted}, x)))

    def advance(slow: Params, at: Solving, phi: Params, support: Batch) -> Solving:
        """`together` steps towards (I + (H + damping) / prox)^-1 cotangent, for one task."""

        def curved(v: Params) -> Params:
            if cfg.curvature == "hessian":
                (product,) = vjp(lambda p: grad(loss, 1)(slow, p, support), phi)[1](v)  # H is symmetric
            else:
                product = gauss_newton(slow, phi, support, v)
            image: Params = add(scale(v, 1 + cfg.damping / cfg.prox), scale(product, 1 / cfg.prox))
            return image

        for _ in range(together):
            at = solve.advance(curved, at)
        return at

    def moved(slow: Params, phi: Params, v: Params, support: Batch) -> Params:
        """How the query loss changes with the slow parameters as they move the minimum, for one task."""
        along: Params = grad(lambda own: -dot(grad(loss, 1)(own, phi, support), v) / cfg.prox)(slow)
        return along

    ahead = last(descend, stage)
    judged = value_and_grad(loss, stage)
    begun = stage.stack(lambda nothing, cotangent: solve.begin(cotangent))
    advanced = stage.stack(advance)
    shifted = stage.stack(moved)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        fast, slow = model.split(state.theta)
        count = len(tasks.key)
        first = Inner(expand(fast, count), expand(optimiser.init(fast), count))
        inner = ahead(state.theta, first, tasks.support, (), cfg.inner_steps)
        value, slow_grad, cotangent = judged(slow, inner.phi, tasks.query)
        if cfg.solve_steps:
            at = begun((), cotangent)
            for _ in range(0, cfg.solve_steps, together):
                at = advanced(slow, at, inner.phi, tasks.support)
            cotangent = at.x
            if slow:
                slow_grad = add(slow_grad, sum_tasks(shifted(slow, inner.phi, cotangent, tasks.support)))
        grads = {**slow_grad, **sum_tasks(cotangent)}
        return Delta({name: grads[name] for name in state.theta}), Info(value)

    return Learner(out.init, start, step, finish, predict, meta_grad, out.update, steps=cfg.test_steps)
