"""iMAML: adapt to the minimum of a proximal problem and differentiate the minimum, not the path.

    phi_t = argmin L(phi; support_t) + 1/2 (phi - theta)' P (phi - theta)      (inner_steps of descent)
    d phi_t / d theta = (P + H_t)^-1 P,   H_t = Hessian of L(phi_t; support_t)
    theta <- theta - outer_lr * sum_t P u_t,   u_t = (P + H_t)^-1 grad L(phi_t; query_t)

The pull P is `prox` times the identity, or of two strengths: `blank_prox` for parameters that start at zero. Slow
parameters, which all tasks share, move the minimum too:

    slow <- slow - outer_lr * sum_t grad_slow [L(phi_t; query_t) - u_t . grad_phi L(phi_t; support_t)]

The inner problem is solved by gradient descent or by Gauss-Newton steps, each of some conjugate-gradient steps
(`inner="newton"`); with `halvings` a step is as long as the objective allows. Inverses are
applied by conjugate gradient, with products of the curvature and a vector, so memory does not grow with the inner
steps. It is preconditioned by P and, over the last layer alone, by the second moments of its features.
Without conjugate-gradient steps it is the plain gradient at phi_t.

Rajeswaran, Finn, Kakade and Levine, 2019. Differs from the paper: see docs/methods/imaml.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vjp

from warmstart.core import Batch, InputError, Learner, Likelihood, Model, Params, Prediction, Task, Tree, task_loss
from warmstart.core.trees import add, dot, expand, sum_tasks, tree_map, zeros_like
from warmstart.engine.device import exact_products
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import last, value_and_grad
from warmstart.maths import solve
from warmstart.maths.curvature import gauss_newton_product
from warmstart.maths.descent import Inner, blank_names, blanked, finish
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
    blank: str = ""  # pattern of the fast parameters that start every task at zero and are not learned
    blank_prox: float = 0.0  # strength that ties these to zero; 0: prox
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0


# the last layer alone, from a blank one: the inner problem is convex, and nearly solved
HEAD = Config(
    inner="newton",
    inner_lr=1.0,
    inner_steps=8,
    test_steps=8,
    inner_solve=5,
    halvings=2,
    prox=0.005,
    solve_steps=10,
    damping=0.0,
    curvature="gauss_newton",
    blank="head.*",
)

SPACE: dict[str, list[Any]] = {
    "inner_lr": [0.003, 0.01, 0.03, 0.1],
    "inner_steps": [8, 16],
    "prox": [0.3, 1.0, 2.0, 5.0],
    "outer_lr": [3e-4, 1e-3, 3e-3],
    "weight_decay": [0.0, 1e-3, 1e-2],
}
HEAD_SPACE: dict[str, list[Any]] = {
    "prox": [0.001, 0.005, 0.02],
    "outer_lr": [3e-4, 1e-3, 3e-3],
    "weight_decay": [0.0, 1e-3, 1e-2],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    if cfg.curvature not in ("hessian", "gauss_newton"):
        raise InputError("a curvature hessian or gauss_newton", repr(cfg.curvature), "use one of these names")
    if cfg.prox <= 0 or cfg.blank_prox < 0 or (cfg.blank_prox and not cfg.blank):
        got = f"prox {cfg.prox:g}, blank_prox {cfg.blank_prox:g} and blank {cfg.blank!r}"
        raise InputError("a positive prox, and a blank_prox of blank parameters only", got, "change them")
    blank = blank_names(model, cfg.blank)
    optimiser = named("sgd" if cfg.inner == "newton" else cfg.inner)
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)
    # where the head is adapted, all of it and nothing else, its rows are features; meta_grad has them made once
    headed = model.top is not None and model.fast == {name for name in model.params if name.startswith("head.")}
    acting = model._replace(apply=model.top or model.apply) if headed else model
    mean_loss, gauss_newton = task_loss(acting, likelihood), gauss_newton_product(acting, likelihood)
    pull = {name: cfg.blank_prox or cfg.prox if name in blank else cfg.prox for name in model.fast}

    def times_pull(v: Params, more: float = 0.0, power: int = 1) -> Params:
        """(P + more I)^power v."""
        return {name: leaf * (pull[name] + more) ** power for name, leaf in v.items()}

    def known_inverse(phi: Params, batch: Batch, more: float = 0.0) -> Tree:
        """Over a linear last layer that of P + more I + the curvature which its outputs have on the average."""
        rows, weight = batch.x, phi.get("head.weight")
        if not headed or set(phi) != {"head.weight", "head.bias"} or not torch.is_tensor(rows) or weight is None:
            return ()
        if rows.ndim != 2 or weight.ndim != 2 or rows.shape[1] != weight.shape[1]:
            return ()
        bent = likelihood.curvature(acting.apply(phi, rows)).diagonal(dim1=-2, dim2=-1).mean(-1)
        counted = batch.w * batch.mask
        share = counted / counted.sum().clamp(min=torch.finfo(counted.dtype).tiny)
        return solve.inverse_of_rows(rows, share * bent, pull["head.weight"] + more)

    def preconditioned(inverse: Tree, more: float, v: Params) -> Params:
        if not inverse:
            return times_pull(v, more, -1)
        both = solve.times_inverse(inverse, torch.cat([v["head.weight"], v["head.bias"].unsqueeze(1)], 1))
        return {name: both[:, -1] if name == "head.bias" else both[:, :-1] for name in v}

    def see(slow: Params, x: Tree) -> Tree:
        return model.features(slow, x) if headed else x

    def beside(theta: Params) -> Params:
        """The slow parameters that the inner problem knows."""
        return {} if headed else model.split(theta)[1]

    def loss(slow: Params, phi: Params, batch: Batch) -> Tensor:
        return mean_loss({**slow, **phi}, batch)

    def init(params: Params) -> State:
        return out.init(blanked(params, blank))

    def start(state: State, descriptor: Tree) -> Inner:
        fast = model.split(state.theta)[0]
        return Inner(fast, optimiser.init(fast))

    def descend(theta: Params, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        fast, slow = model.split(theta)[0], beside(theta)

        def objective(phi: Params) -> Tensor:
            away = [pull[name] * ((phi[name] - anchor) ** 2).sum() for name, anchor in fast.items()]
            return loss(slow, phi, batch) + 0.5 * torch.stack(away).sum()

        def move(rate: float) -> Inner:
            return Inner(*optimiser.update(inner.phi, grads, inner.opt, rate))

        grads, height = grad_and_value(objective)(inner.phi)
        if cfg.inner == "newton":

            def curved(v: Params) -> Params:
                image: Params = add(gauss_newton(slow, inner.phi, batch, v), times_pull(v))
                return image

            near = partial(preconditioned, known_inverse(inner.phi, batch), 0.0)
            grads = solve.conjugate_gradient(curved, grads, cfg.inner_solve, near)
        if not cfg.halvings:
            return move(cfg.inner_lr)
        found = inner  # stays where it is if no rate will do; else the greatest that does
        for power in range(cfg.halvings, -1, -1):
            there = move(cfg.inner_lr / 2**power)
            lower = objective(there.phi) < height
            found = tree_map(lambda new, old, lower=lower: torch.where(lower, new, old), there, found)
        return found

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        seen = see(model.split(state.theta)[1], batch.x)
        with exact_products():
            return descend(state.theta, inner, batch._replace(x=seen), noise)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        seen = see(model.split(state.theta)[1], x)
        return Prediction(likelihood.mean(acting.apply({**beside(state.theta), **adapted}, seen)))

    def begin(nothing: Tree, cotangent: Params, phi: Params, support: Batch) -> tuple[Solving, Tree]:
        inverse = known_inverse(phi, support, cfg.damping)
        return solve.begin(cotangent, partial(preconditioned, inverse, cfg.damping)), inverse

    def advance(slow: Params, at: Solving, inverse: Tree, phi: Params, support: Batch) -> Solving:
        """One step towards (P + H + damping)^-1 cotangent, for one task."""

        def curved(v: Params) -> Params:
            if cfg.curvature == "hessian":
                (product,) = vjp(lambda p: grad(loss, 1)(slow, p, support), phi)[1](v)  # H is symmetric
            else:
                product = gauss_newton(slow, phi, support, v)
            image: Params = add(product, times_pull(v, cfg.damping))
            return image

        return solve.advance(curved, at, partial(preconditioned, inverse, cfg.damping))

    def judge(slow: Params, own: tuple[Params, Tree], query: Batch) -> Tensor:
        return loss(slow, own[0], query._replace(x=own[1]) if headed else query)

    def pushed(slow: Params, seen: Tree, phi: Params, u: Params, support: Batch) -> Tensor:
        """Its gradient is how the query loss changes as slow parameters, or features, move the minimum of one task."""
        rows = support._replace(x=seen) if headed else support
        return -dot(grad(loss, 1)(slow, phi, rows), u)

    encode = stage.differentiate(lambda slow, nothing, *rows: tuple(see(slow, x) for x in rows))
    ahead = exact_products()(last(descend, stage))
    judged = value_and_grad(judge, stage)
    begun = exact_products()(stage.stack(begin))
    advanced = exact_products()(stage.stack(advance))
    moved = value_and_grad(pushed, stage)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        fast, slow = model.split(state.theta)
        known, (support, query), count = beside(state.theta), tasks[:2], len(tasks.key)
        shown: Tree = ()
        asked: Tree = ()
        if headed:
            (shown, asked), kept = encode.forward(slow, query.w.new_zeros(count), support.x, query.x)
            support, query = support._replace(x=shown), query._replace(x=asked)
        first = Inner(expand(fast, count), expand(optimiser.init(fast), count))
        inner = ahead({**known, **fast}, first, support, (), cfg.inner_steps)
        value, slow_grad, (cotangent, by_query) = judged(known, (inner.phi, asked), query)
        by_support = zeros_like(shown)
        if cfg.solve_steps:
            at, inverse = begun((), cotangent, inner.phi, support)
            for _ in range(cfg.solve_steps):
                at = advanced(known, at, inverse, inner.phi, support)
            cotangent = times_pull(at.x)
            if slow:
                _, more, by_support = moved(known, shown, inner.phi, at.x, support)
                slow_grad = add(slow_grad, more)
        if headed:
            slow_grad, _ = encode.backward(kept, (by_support, by_query))
        grads = {**slow_grad, **sum_tasks(cotangent)}
        return Delta(blanked({name: grads[name] for name in state.theta}, blank)), Info(value)

    return Learner(init, start, step, finish, predict, meta_grad, out.update, steps=cfg.test_steps)
