"""iMAML: adapt to the minimum of a proximal problem and differentiate the minimum, not the path.

    phi_t = argmin L(phi; support_t) + prox / 2 ||phi - theta||^2      (inner_steps of descent)
    d phi_t / d theta = (I + H_t / prox)^-1,   H_t = Hessian of L(phi_t; support_t)
    theta <- theta - outer_lr * sum_t (I + H_t / prox)^-1 grad L(phi_t; query_t)

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
from warmstart.core.trees import add, expand, scale, tree_map
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
    if len(model.fast) != len(model.params):
        raise InputError("a model whose parameters are all fast", "some slow ones", "use maml for a fast/slow split")
    if cfg.curvature not in ("hessian", "gauss_newton"):
        raise InputError("a curvature hessian or gauss_newton", repr(cfg.curvature), "use one of these names")
    loss = task_loss(model, likelihood)
    optimiser = named("sgd" if cfg.inner == "newton" else cfg.inner)
    gauss_newton = gauss_newton_product(model, likelihood)
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)

    def start(state: State, descriptor: Tree) -> Inner:
        return Inner(state.theta, optimiser.init(state.theta))

    def descend(theta: Params, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        def objective(phi: Params) -> Tensor:
            away = torch.stack([((phi[name] - anchor) ** 2).sum() for name, anchor in theta.items()]).sum()
            return loss(phi, batch) + 0.5 * cfg.prox * away

        def move(rate: float) -> Inner:
            return Inner(*optimiser.update(inner.phi, grads, inner.opt, rate))

        grads, height = grad_and_value(objective)(inner.phi)
        if cfg.inner == "newton":

            def curved(v: Params) -> Params:
                bent: Params = add(gauss_newton(inner.phi, batch, v), scale(v, cfg.prox))
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
        return Prediction(likelihood.mean(model.apply(adapted, x)))

    def advance(nothing: Tree, at: Solving, phi: Params, support: Batch) -> Solving:
        """One step towards (I + (H + damping) / prox)^-1 cotangent, for one task."""

        def curved(v: Params) -> Params:
            if cfg.curvature == "hessian":
                (product,) = vjp(lambda p: grad(loss)(p, support), phi)[1](v)  # H is symmetric
            else:
                product = gauss_newton(phi, support, v)
            image: Params = add(scale(v, 1 + cfg.damping / cfg.prox), scale(product, 1 / cfg.prox))
            return image

        return solve.advance(curved, at)

    ahead = last(descend, stage)
    judged = value_and_grad(lambda nothing, phi, query: loss(phi, query), stage)
    begun = stage.stack(lambda nothing, cotangent: solve.begin(cotangent))
    advanced = stage.stack(advance)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        count = len(tasks.key)
        opt = optimiser.init(state.theta)
        first = Inner(expand(state.theta, count), expand(opt, count))
        inner = ahead(state.theta, first, tasks.support, (), cfg.inner_steps)
        value, _, cotangent = judged((), inner.phi, tasks.query)
        if cfg.solve_steps:
            at = begun((), cotangent)
            for _ in range(cfg.solve_steps):
                at = advanced((), at, inner.phi, tasks.support)
            cotangent = at.x
        return Delta(tree_map(lambda leaf: leaf.sum(0), cotangent)), Info(value)

    return Learner(out.init, start, step, finish, predict, meta_grad, out.update, steps=cfg.test_steps)
