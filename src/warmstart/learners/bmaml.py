"""BMAML: particles that stand for a task's posterior, trained to arrive where more rows would take them.

    phi_t = theta, then phi_i <- phi_i + inner_lr stein_i(phi)      (chaser: inner_steps times on the support)
    log p(phi | rows) = sum log p(y | x, phi) - weight_precision / 2 ||phi||^2 + constant
    psi_t = phi_t, then the same on support and query together      (leader: leader_steps times, held constant)
    theta <- theta - outer_lr * grad_theta sum_t sum_i ||phi_ti - psi_ti||^2

theta and phi are `particles` sets of parameters; stein is the direction of Stein variational gradient
descent (`maths/svgd.py`). With loss="query" theta descends -log 1/m sum_i p(query_t | phi_ti) instead. With `hyper`
each particle also holds the logarithms of its own weight_precision and of 1 / noise^2, both with Gamma hyper-priors.

Yoon, Kim, Dia, Kim, Ahn and Bengio, 2018. Differs from the paper: see docs/methods/bmaml.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from warmstart.core import (
    Batch,
    InputError,
    Learner,
    Likelihood,
    Model,
    Params,
    Prediction,
    Task,
    Tree,
    task_log_likelihood,
)
from warmstart.core.trees import dot, expand, scale, tree_map, zeros_like
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import last, unroll, value_and_grad
from warmstart.maths.descent import Inner, finish
from warmstart.maths.mean_field import LEAST, MOST
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, Info, State, outer
from warmstart.maths.predictive import predictive
from warmstart.maths.prior import Told, told
from warmstart.maths.svgd import stein


@dataclass(frozen=True)
class Config:
    particles: int = 5
    inner_lr: float = 0.003
    inner_steps: int = 1  # of the chaser
    leader_steps: int = 1  # that the leader goes on
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    inner: str = "sgd"  # sgd, momentum or adam
    loss: str = "chaser"  # or query: the likelihood of the query rows
    bandwidth: float = 0.0  # of the kernel on squared distances; 0 takes the particles' median
    noise: float = 0.5**0.5  # standard deviation of a squared likelihood
    weight_precision: float = 0.01  # of the Gaussian prior around zero
    hyper: bool = False  # noise and weight_precision are where every particle's own begin
    gamma_shape: float = 1.0  # of the Gamma hyper-prior of either precision
    gamma_rate: float = 0.1
    spread: float = 0.1  # standard deviation of the first particles around the given parameters
    seed: int = 0  # of that spread
    recompute: bool = False  # keep few states of the inner loop and run it again: less memory, more time
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it


SPACE: dict[str, list[Any]] = {
    "particles": [5, 10],
    "inner_lr": [0.001, 0.003, 0.01, 0.03],
    "inner_steps": [1, 3, 5],
    "leader_steps": [1, 3, 5],
    "test_steps": [3, 5, 10],
    "weight_precision": [0.0, 0.01, 0.1],
    "outer_lr": [3e-4, 1e-3, 3e-3],
}


# beside a particle's parameters; spaces keep them apart from the names of these
ROWS, WEIGHTS = "log row precision", "log weight precision"


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    """theta is the parameters with a leading axis of particles; so is what a task adapts to."""
    _check(model, cfg)
    optimiser = named(cfg.inner)
    out = outer(cfg.outer_lr, cfg.outer_decay)
    noisy = cfg.hyper and likelihood.name == "squared"
    count = sum(value.numel() for value in model.params.values())

    def network(phi: Params) -> Params:
        return {name: phi[name] for name in model.params}

    def row_sd(phi: Params) -> float | Tensor:
        return torch.exp((-0.5 * phi[ROWS]).clamp(LEAST, MOST)) if noisy else cfg.noise

    def log_likelihood(phi: Params, batch: Batch) -> Tensor:
        return task_log_likelihood(model, likelihood, row_sd(phi))(network(phi), batch)

    def init(params: Params) -> State:
        """The given parameters, and others drawn around them."""
        generator = torch.Generator().manual_seed(cfg.seed)

        def particles(value: Tensor) -> Tensor:
            draws = torch.randn(cfg.particles - 1, *value.shape, generator=generator, dtype=value.dtype)
            return torch.cat([value.unsqueeze(0), value + cfg.spread * draws.to(value.device)])

        like = next(iter(params.values()))
        own = {ROWS: -2 * math.log(cfg.noise)} if noisy else {}
        own |= {WEIGHTS: math.log(cfg.weight_precision)} if cfg.hyper else {}
        first = {**params, **{name: like.new_tensor(value) for name, value in own.items()}}
        return out.init(tree_map(particles, first))

    def start(state: State, descriptor: Tree) -> Inner:
        return Inner(state.theta, optimiser.init(state.theta))

    def log_gamma(log_precision: Tensor) -> Tensor:
        """The density of a precision's logarithm, up to a constant."""
        return cfg.gamma_shape * log_precision - cfg.gamma_rate * log_precision.exp()

    def log_posterior(phi: Params, batch: Batch) -> Tensor:
        params, fit = network(phi), log_likelihood(phi, batch)
        if not cfg.hyper:
            return fit - 0.5 * cfg.weight_precision * dot(params, params)
        weights = 0.5 * (count * phi[WEIGHTS] - phi[WEIGHTS].exp() * dot(params, params))
        return fit + weights + sum(log_gamma(phi[name]) for name in phi if name not in params)

    def climb(nothing: Tree, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        scores = vmap(grad(log_posterior), in_dims=(0, None))(inner.phi, batch)
        told = (batch.w * batch.mask).sum(-1) > 0  # without rows theta's particles are the belief, and stay
        down = scale(stein(inner.phi, scores, cfg.bandwidth), torch.where(told, -1.0, 0.0).to(batch.w))
        return Inner(*optimiser.update(inner.phi, down, inner.opt, cfg.inner_lr))

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return climb((), inner, batch, noise)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Prediction:
        sd: float | Tensor = (torch.as_tensor(row_sd(adapted)) ** 2).mean().sqrt() if noisy else cfg.noise
        return predictive(model, likelihood, network(adapted), x, sd)

    def distance(nothing: Tree, chaser: Params, leader: Params) -> Tensor:
        apart = tree_map(torch.sub, chaser, leader)
        return dot(apart, apart)

    def surprise(nothing: Tree, phi: Params, query: Batch) -> Tensor:
        """-log of the particles' mean likelihood of all query rows together."""
        each: Tensor = vmap(log_likelihood, in_dims=(0, None))(phi, query)
        return math.log(cfg.particles) - torch.logsumexp(each, 0)

    loop = unroll(climb, stage, cfg.recompute)
    ahead = last(climb, stage)
    judged = value_and_grad(distance if cfg.loss == "chaser" else surprise, stage)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info | Told]:
        count = len(tasks.key)
        first = expand(start(state, ()), count)
        chaser, tape = loop.run((), first, tasks.support, (), cfg.inner_steps)
        target: Tree = tasks.query
        if cfg.loss == "chaser":
            rows = tree_map(lambda s, q: torch.cat([s, q], 1), tasks.support, tasks.query)
            target = ahead((), chaser, rows, (), cfg.leader_steps).phi
        value, _, cotangent = judged((), chaser.phi, target)
        if tape:
            cotangent = loop.pull(tape, Inner(cotangent, zeros_like(chaser.opt)))[1].phi
        said = told(value, -0.5 * chaser.phi[ROWS]) if noisy else Info(value)
        return Delta(tree_map(lambda leaf: leaf.sum(0), cotangent)), said

    return Learner(init, start, step, finish, predict, meta_grad, out.update, steps=cfg.test_steps)


def _check(model: Model, cfg: Config) -> None:
    if len(model.fast) != len(model.params):
        raise InputError("a model whose parameters are all fast", "some slow ones", "use maml for a fast/slow split")
    if cfg.loss not in ("chaser", "query"):
        raise InputError("a loss chaser or query", repr(cfg.loss), "use one of these names")
    if cfg.particles < 1:
        raise InputError("at least one particle", f"{cfg.particles}", "pass 1 or more")
    if cfg.particles > 1 and cfg.spread <= 0:
        raise InputError("a spread above 0", f"{cfg.spread}", "pass a positive one: particles that coincide never part")
    if not 0 < cfg.noise < math.inf:
        raise InputError("a finite noise above 0", f"{cfg.noise}", "pass the standard deviation of a row")
    if cfg.hyper and min(cfg.weight_precision, cfg.gamma_shape, cfg.gamma_rate) <= 0:
        raise InputError(
            "a weight_precision, gamma_shape and gamma_rate above 0",
            f"{cfg.weight_precision}, {cfg.gamma_shape} and {cfg.gamma_rate}",
            "raise what is zero, or leave hyper out",
        )
    if min(cfg.bandwidth, cfg.weight_precision) < 0:
        raise InputError(
            "a bandwidth and a weight_precision of at least 0",
            f"{cfg.bandwidth} and {cfg.weight_precision}",
            "pass numbers that are not negative",
        )
