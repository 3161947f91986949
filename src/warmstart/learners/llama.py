"""LLAMA: MAML that knows how sharp the fit of a task is, by Laplace's approximation.

    phi_t = theta - inner_lr * grad L(theta; support_t)        (inner_steps times)
    H_t = prior I + Gauss-Newton curvature of -log p(support_t | phi) at phi_t, whole, diagonal or in Kronecker factors
    theta <- theta - outer_lr * grad_theta sum_t L(phi_t; query_t) + eta c_t log det H_t

c_t is the factor from summed negative log likelihood to L (2 noise^2 / rows when squared, 1 / rows
otherwise), so eta = 0 is MAML and eta = 1/2 Laplace's approximation. A new task is N(phi_t, H_t^-1).

With objective "evidence", -log of the integral of p(support_t | phi) N(phi; theta, I / prior) itself:

    -log p(support_t | phi_t) + prior / 2 ||phi_t - theta||^2 + 1/2 log det (H_t / prior)

and phi_t descends L + c_t prior / 2 ||phi - theta||^2, whose minimum is the mode of that integrand.

Grant, Finn, Levine, Darrell and Griffiths, 2018. Differs from the paper: see docs/methods/llama.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from warmstart.core import (
    Batch,
    InputError,
    Learner,
    Likelihood,
    Model,
    Noise,
    Params,
    Prediction,
    Task,
    Tree,
    task_log_likelihood,
    task_loss,
)
from warmstart.core.trees import add, dot, expand, leaves, sum_tasks, tree_map, zeros_like
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import last, unroll, value_and_grad
from warmstart.maths.descent import Inner, descent
from warmstart.maths.laplace import precision
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, Info, State, outer
from warmstart.maths.predictive import predictive


@dataclass(frozen=True)
class Config:
    eta: float = 0.5  # weight of log det H; 0 is MAML, 1/2 Laplace
    objective: str = "query"  # or evidence, of the support rows; it has no use for eta and the query rows
    curvature: str = "full"  # or diagonal, or kronecker: layers apart, each a product of two small matrices
    prior_precision: float = 1000.0  # of every fast parameter around theta
    noise: float = 0.5  # standard deviation of a squared likelihood's rows
    samples: int = 20  # draws of a prediction
    rank: int = 100  # directions that a task's rows can narrow in a prediction; the others keep the prior's spread
    inner_lr: float = 0.01
    inner_steps: int = 1  # of training
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    inner: str = "sgd"  # sgd, momentum or adam
    first_order: bool = False  # drop the derivative of phi
    recompute: bool = False  # keep few states of the inner loop and run it again: less memory, more time
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0


SPACE: dict[str, list[Any]] = {
    "eta": [0.0, 0.1, 0.5],
    "prior_precision": [100.0, 300.0, 1000.0, 3000.0],
    "noise": [0.1, 0.3, 0.5, 1.0],
    "inner_lr": [0.003, 0.01, 0.03, 0.1, 0.3],
    "inner_steps": [1, 3, 5],
    "test_steps": [1, 3, 5, 10],
    "outer_lr": [3e-4, 1e-3, 3e-3],
}


class Seen(NamedTuple):
    inner: Inner
    rows: Tensor  # 1 once a step has been made: before, the rows have narrowed nothing


class Adapted(NamedTuple):
    phi: Params
    factor: Tree  # of H


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    _check(cfg)
    loss = task_loss(model, likelihood)
    log_likelihood = task_log_likelihood(model, likelihood, cfg.noise)
    optimiser = named(cfg.inner)
    inner_loop = descent(model, likelihood, optimiser)
    curved = precision(cfg.curvature, model, likelihood, cfg.prior_precision, cfg.noise, cfg.rank)
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)
    evidence = cfg.objective == "evidence"

    def unit(batch: Batch) -> Tensor:
        """c, so that c times a summed negative log likelihood is L and a constant; 0 without rows."""
        total = (batch.w * batch.mask).sum(-1)
        one = 2 * cfg.noise**2 if likelihood.name == "squared" else 1.0
        return torch.where(total > 0, one / torch.where(total > 0, total, 1.0), 0.0)

    def away(phi: Params, theta: Params) -> Tensor:
        """-log N(phi; theta, I / prior), without its constant."""
        difference = tree_map(torch.sub, phi, model.split(theta)[0])
        return 0.5 * cfg.prior_precision * dot(difference, difference)

    def start(state: State, descriptor: Tree) -> Seen:
        fast = model.split(state.theta)[0]
        return Seen(inner_loop.start(fast), next(iter(fast.values())).new_zeros(()))

    def descend(theta: Params, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        slow = model.split(theta)[1]
        if not evidence:
            return inner_loop.step(slow, inner, batch, cfg.inner_lr)

        def posterior(phi: Params) -> Tensor:
            return loss({**slow, **phi}, batch) + unit(batch) * away(phi, theta)

        # with plain descent this is an implicit step on the prior, so however few the rows its pull cannot overshoot
        rate = cfg.inner_lr / (1 + cfg.inner_lr * cfg.prior_precision * unit(batch))
        return Inner(*optimiser.update(inner.phi, grad(posterior)(inner.phi), inner.opt, rate))

    def step(state: State, seen: Seen, batch: Batch, noise: Tree) -> Seen:
        return Seen(descend(state.theta, seen.inner, batch, noise), torch.ones_like(seen.rows))

    def finish(state: State, seen: Seen, batch: Batch) -> Adapted:
        counted = batch._replace(w=batch.w * seen.rows)
        slow, phi = model.split(state.theta)[1], seen.inner.phi
        return Adapted(phi, curved.factor(curved.of(slow, phi, counted)))

    def predict(state: State, adapted: Adapted, x: Tree, noise: Tree) -> Prediction:
        """What draws of N(phi, H^-1) say together; without noise, what phi says."""
        slow = model.split(state.theta)[1]
        if not leaves(noise):
            return inner_loop.predict(slow, adapted.phi, x)
        draws = curved.draw(adapted.phi, adapted.factor, noise)
        return predictive(model, likelihood, {**expand(slow, cfg.samples), **draws}, x, cfg.noise)

    def judge(theta: Params, phi: Params, support: Batch, query: Batch) -> Tensor:
        slow = model.split(theta)[1]
        whole = {**slow, **phi}
        if evidence:
            fit = away(phi, theta) - log_likelihood(whole, support)
            return fit + 0.5 * curved.log_det(curved.of(slow, phi, support))
        if cfg.eta == 0:
            return loss(whole, query)
        sharpness = curved.log_det(curved.of(slow, phi, support))
        return loss(whole, query) + cfg.eta * unit(query) * sharpness

    loop = unroll(descend, stage, cfg.recompute)
    ahead = last(descend, stage)
    judged = value_and_grad(judge, stage)
    total = stage.run(sum_tasks)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        fast = model.split(state.theta)[0]
        count = len(tasks.key)
        first = Inner(expand(fast, count), expand(inner_loop.start(fast).opt, count))
        tape: list[Any] = []
        if cfg.first_order:
            inner = ahead(state.theta, first, tasks.support, (), cfg.inner_steps)
        else:
            inner, tape = loop.run(state.theta, first, tasks.support, (), cfg.inner_steps)
        value, grads, cotangent = judged(state.theta, inner.phi, tasks.support, tasks.query)
        if tape:
            through, pulled = loop.pull(tape, Inner(cotangent, zeros_like(inner.opt)))
            grads, cotangent = add(grads, through), pulled.phi
        own = total(cotangent)
        return Delta({name: part + own[name] if name in own else part for name, part in grads.items()}), Info(value)

    first = model.split(model.params)[0]
    wanted = Noise(predict={name: torch.Size((cfg.samples, *value.shape)) for name, value in first.items()})
    return Learner(
        out.init,
        start,
        step,
        finish,
        predict,
        meta_grad,
        out.update,
        cfg.test_steps,
        wanted,
        capturable=cfg.curvature != "kronecker",  # eigenvalues make the host wait
    )


def _check(cfg: Config) -> None:
    if cfg.objective not in ("query", "evidence"):
        raise InputError("an objective query or evidence", repr(cfg.objective), "use one of these names")
    if not 0 < cfg.noise < float("inf"):
        raise InputError("a noise above 0", f"{cfg.noise}", "pass the standard deviation of a row's target")
    if not 0 <= cfg.eta < float("inf"):
        raise InputError("an eta of at least 0", f"{cfg.eta}", "0 is MAML, 0.5 is Laplace's approximation")
    if min(cfg.samples, cfg.rank) < 1:
        raise InputError("at least one sample and direction", f"{cfg.samples} and {cfg.rank}", "pass 1 or more")
