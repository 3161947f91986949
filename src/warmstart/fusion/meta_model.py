"""The meta-model of *Model fusion for personalized learning*: weights from a base and from what a task adds to it.

    w0 ~ p(w0; alpha), a normal whose mean and variance a layer makes of noise; q(w0) = N(m, diag s^2)
    w_i = warp(g(tau_i)),   g_k ~ GP with inducing inputs of its own,   q(inducing outputs) learned
    gamma_i ~ N(A_i mean(w0, w_i), diag A_i var(w0, w_i))           the crossing network
    L = sum_i E_q log p(gamma_i | w_i, w0) - KL(q(w0) | p(w0)) - KL(q(s) | p(s))

Continuous parameters follow the gradient of L; orders A_i of the hidden units, or of the crossing network's latent
coordinates (the paper's A.3), are found by linear assignment in turn. `refit` steps then fit functions, not weights.
The terms of L are of single tasks, whose marginals under PIC do not depend on the blocks, so none are needed.
Differs from the paper: see docs/methods/meta_model.md.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from warmstart.core import InputError, Params
from warmstart.core.trees import take, unpack
from warmstart.engine.noise import generator
from warmstart.fusion import weight_gp
from warmstart.fusion.alignment import Hidden, assign, permute, signatures, symmetries
from warmstart.fusion.network import Network, Pool
from warmstart.maths import gp
from warmstart.maths.optim import adam, cosine

ALIGNMENTS = ("units", "latent", "none")
START = weight_gp.Config(start="activations", references=5, rounds=15)  # orders of units to begin with


@dataclass(frozen=True)
class Config:
    """Sizes as in Appendix A.3."""

    base: int = 100
    specific: int = 100
    gps: int = 10
    inducing: int = 50
    length: float = 1.0  # about which the kernels' lengths start; many columns put tasks far apart
    warp: int = 256
    crossing: tuple[int, int] = (64, 32)
    samples: int = 100  # of the latent variables in a step
    epochs: int = 100
    tasks: int = 20  # in a step
    lr: float = 3e-3
    alignment: str = "units"
    every: int = 30  # epochs between assignments; early on they only make a poor guess certain
    refit: int = 0  # steps in function space afterwards
    seed: int = 0


class State(NamedTuple):
    theta: Params  # all that gradients move
    one: Params  # a model, for its shapes
    gamma: Tensor  # [n, D] the pool's weights, aligned and standardised
    centre: Tensor  # [D] their mean
    scale: Tensor  # [D] their unit
    order: Tensor  # [n, latent] of the crossing network's coordinates


class Passed(NamedTuple):
    """What an epoch has come to."""

    seconds: float  # of the processor, since training began
    bound: float  # per model, the mean of the epoch's steps


class Draws(NamedTuple):
    """Standard normals of one step: s samples of the base and its prior, and of each task's processes."""

    base: Tensor  # [s, base]
    prior: Tensor  # [s, base]
    task: Tensor  # [s, t, gps]


def _dense(fan: int, width: int, draw: torch.Generator) -> Tensor:
    """[fan + 1, width], the bias last."""
    return torch.cat([torch.randn(fan, width, generator=draw) / math.sqrt(fan), torch.zeros(1, width)])


def _layer(weight: Tensor, x: Tensor) -> Tensor:
    return x @ weight[:-1] + weight[-1]


def init(cfg: Config, descriptor: Tensor, size: int) -> Params:
    draw = generator(cfg.seed, 3)
    near = descriptor[gp.spread_out(descriptor, cfg.inducing)].float()
    inducing = near.expand(cfg.gps, -1, -1) + 0.05 * torch.randn(cfg.gps, *near.shape, generator=draw)
    hidden, latent = cfg.crossing
    return {
        "base_mean": torch.zeros(cfg.base),
        "base_log_sd": torch.full((cfg.base,), -2.0),
        "prior_mean": _dense(cfg.base, cfg.base, draw) * 0.1,
        "prior_var": _dense(cfg.base, cfg.base, draw) * 0.1,
        "inducing": inducing,
        "log_length": math.log(cfg.length) + 0.3 * torch.randn(cfg.gps, descriptor.shape[1], generator=draw),
        "outputs_mean": torch.randn(cfg.gps, near.shape[0], generator=draw),
        "outputs_log_sd": torch.full((cfg.gps, near.shape[0]), -3.0),
        "warp_in": _dense(cfg.gps, cfg.warp, draw),
        "warp_out": _dense(cfg.warp, cfg.specific, draw),
        "cross_in": _dense(cfg.base + cfg.specific, hidden, draw),
        "cross_latent": _dense(hidden, latent, draw),
        "mean": _dense(latent, size, draw) * 0.1,
        "var": _dense(latent, size, draw) * 0.1,
    }


def process(theta: Params, descriptor: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance [gps, q] of the processes at descriptors [q, p], their inducing outputs summed out."""
    length = theta["log_length"].double().exp()
    hyper = gp.Hyper(length, torch.ones_like(length[:, 0]), torch.zeros_like(length[:, 0]))
    z, at = theta["inducing"].double(), descriptor.double().expand(len(length), -1, -1)
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    chol = torch.linalg.cholesky(gp.kernel(hyper, z, z) + 1e-5 * eye)
    a = torch.linalg.solve_triangular(chol, gp.kernel(hyper, z, at), upper=False)  # [gps, m, q]
    mean = (a * theta["outputs_mean"].double()[..., None]).sum(1)
    spread = (a.square() * theta["outputs_log_sd"].double().exp().square()[..., None]).sum(1)
    variance = (1 - a.square().sum(1) + spread).clamp(min=1e-9)
    return mean.float(), variance.float()


def cross(theta: Params, base: Tensor, g: Tensor, order: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance [..., D] of standardised weights from base [..., b] and processes [..., gps]."""
    w = _layer(theta["warp_out"], torch.tanh(_layer(theta["warp_in"], g)))
    both = torch.cat([base.expand(*w.shape[:-1], base.shape[-1]), w], -1)
    latent = torch.relu(_layer(theta["cross_latent"], torch.relu(_layer(theta["cross_in"], both))))
    if order is not None:
        latent = latent.gather(-1, order.expand_as(latent))
    return _layer(theta["mean"], latent), F.softplus(_layer(theta["var"], latent) - 2.0) + 1e-4


def draws(cfg: Config, tasks: int, draw: torch.Generator) -> Draws:
    base, prior = torch.randn(2, cfg.samples, cfg.base, generator=draw)
    return Draws(base, prior, torch.randn(cfg.samples, tasks, cfg.gps, generator=draw))


def sample(theta: Params, descriptor: Tensor, order: Tensor | None, noise: Draws) -> tuple[Tensor, Tensor]:
    """Mean and variance [s, t, D] of the weights of tasks, given draws of all latent variables."""
    mean, variance = process(theta, descriptor)
    g = mean.mT + variance.mT.sqrt() * noise.task
    base = theta["base_mean"] + theta["base_log_sd"].exp() * noise.base
    return cross(theta, base[:, None], g, order)


def divergence(theta: Params, noise: Draws) -> Tensor:
    """KL of base and inducing outputs; the base's prior is a mixture over noise, and this bounds its KL from above."""
    mean = _layer(theta["prior_mean"], noise.prior)
    spread = torch.tanh(_layer(theta["prior_var"], noise.prior))
    spread = (spread - spread.mean(0)) / (spread.var(0) + 1e-5).sqrt() if len(spread) > 1 else spread
    variance = F.softplus(spread) + 1e-3
    own = theta["base_log_sd"].mul(2).exp()
    base = 0.5 * ((own + (theta["base_mean"] - mean).square()) / variance - 1 + (variance / own).log()).sum(-1).mean()
    v, log_sd = theta["outputs_mean"], theta["outputs_log_sd"]
    return base + 0.5 * (log_sd.mul(2).exp() + v.square() - 1 - 2 * log_sd).sum()


def evidence_bound(
    theta: Params, gamma: Tensor, descriptor: Tensor, order: Tensor | None, noise: Draws, total: int
) -> Tensor:
    """L, estimated on tasks with standardised weights gamma [t, D], as a sum over `total` tasks."""
    mean, variance = sample(theta, descriptor, order, noise)
    rows = -0.5 * ((gamma - mean).square() / variance + variance.log() + math.log(2 * math.pi)).sum(-1)
    return rows.mean(0).sum() * (total / len(gamma)) - divergence(theta, noise)


def fit(network: Network, cfg: Config, pool: Pool, log: list[Passed] | None = None) -> State:
    """Alternate epochs of gradient steps with assignments; `log` receives what every epoch has come to."""
    began = time.process_time()
    if cfg.alignment not in ALIGNMENTS:
        raise InputError(f"an alignment among {', '.join(ALIGNMENTS)}", repr(cfg.alignment), "use one of these")
    n, params = len(pool.descriptor), pool.params
    layers: tuple[Hidden, ...] = symmetries(network.module) if cfg.alignment == "units" else ()
    params = weight_gp.aligned(network, START, pool) if layers else params
    gamma, centre, scale = _standard(params)
    descriptor, one = pool.descriptor.float(), take(pool.params, 0)
    theta = init(cfg, descriptor, gamma.shape[1])
    order = torch.arange(cfg.crossing[1]).expand(n, -1) if cfg.alignment == "latent" else None
    draw, optimiser = generator(cfg.seed, 4), adam()
    memory, total = optimiser.init(theta), cfg.epochs * -(-n // cfg.tasks)

    def loss(theta: Params, rows: Tensor, slots: Tensor | None, noise: Draws) -> Tensor:
        return -evidence_bound(theta, gamma[rows], descriptor[rows], slots, noise, n) / n

    for epoch in range(cfg.epochs):
        bound = 0.0
        for rows in torch.split(torch.randperm(n, generator=draw), cfg.tasks):
            noise, slots = draws(cfg, len(rows), draw), None if order is None else order[rows]
            grads, value = torch.func.grad_and_value(loss)(theta, rows, slots, noise)
            theta, memory = optimiser.update(theta, grads, memory, cfg.lr * cosine(memory.done, total))
            bound -= float(value) * len(rows) / n
        if log is not None:
            log.append(Passed(time.process_time() - began, bound))
        if (epoch + 1) % cfg.every or epoch + 1 == cfg.epochs:
            continue
        if layers:
            mean, variance = _predict(theta, descriptor)
            said = unpack(centre + scale * mean, one), unpack(scale.square() * variance, one)
            params = _assign_units(params, layers, *said)  # the weights as they are: each place has its own centre
            gamma = (_flat(params) - centre) / scale
        elif order is not None:
            order = _latent_order(theta, gamma, descriptor)
    slots = torch.arange(cfg.crossing[1]).expand(n, -1) if order is None else order
    state = State(theta, one, gamma, centre, scale, slots)
    return refit(network, cfg, pool, state) if cfg.refit else state


def _flat(params: Params) -> Tensor:
    return torch.cat([value.reshape(len(value), -1) for value in params.values()], 1)


def _standard(params: Params) -> tuple[Tensor, Tensor, Tensor]:
    """Weights less their mean, in units of their tensor's spread; what makes them weights again."""
    flat = _flat(params)
    centre = flat.mean(0)
    units = [(value - value.mean(0)).square().mean().sqrt().clamp(min=1e-6) for value in params.values()]
    parts = zip(units, params.values(), strict=True)
    scale = torch.cat([unit.expand(value[0].numel()) for unit, value in parts])
    return (flat - centre) / scale, centre, scale


def _predict(theta: Params, descriptor: Tensor) -> tuple[Tensor, Tensor]:
    """Standardised weights at the means of all latent variables, and their variance."""
    mean, _ = process(theta, descriptor)
    return cross(theta, theta["base_mean"], mean.mT)


def _assign_units(params: Params, layers: tuple[Hidden, ...], mean: Params, variance: Params) -> Params:
    """Units of each model put where the crossing network's normals give them the largest density (Eq. 18 by units)."""
    for hidden in layers:
        ours, m, v = (signatures(part, hidden) for part in (params, mean, variance))
        scores = ours @ (m / v).mT - 0.5 * ours.square() @ (1 / v).mT
        params = permute(params, hidden, assign(scores - 0.5 * (m.square() / v + v.log()).sum(-1)[:, None]))
    return params


def _latent_order(theta: Params, gamma: Tensor, descriptor: Tensor) -> Tensor:
    """[n, latent] for each model the order of the latent coordinates that says its weights best.

    Products of different coordinates are left out of the square, else this would be no linear assignment.
    """
    mean, _ = process(theta, descriptor)
    w = _layer(theta["warp_out"], torch.tanh(_layer(theta["warp_in"], mean.mT)))
    both = torch.cat([theta["base_mean"].expand(len(w), -1), w], -1)
    latent = torch.relu(_layer(theta["cross_latent"], torch.relu(_layer(theta["cross_in"], both))))  # [n, latent]
    columns = theta["mean"][:-1]  # [latent, D]
    pull = (gamma - theta["mean"][-1]) @ columns.mT  # [n, slots]
    size = columns.square().sum(-1)
    scores = 2 * latent[:, :, None] * pull[:, None] - latent.square()[:, :, None] * size
    return assign(scores)


def refit(network: Network, cfg: Config, pool: Pool, state: State) -> State:
    """Gradient steps on E |model drawn for task i (x) - model_i(x)|^2 / var_i, over tasks of the pool."""
    draw, optimiser = generator(cfg.seed, 5), adam()
    descriptor, inputs = pool.descriptor.float(), pool.inputs.float()
    target = pool.outputs.float()
    spread = target.var((1, 2)).clamp(min=1e-12)

    def loss(theta: Params, rows: Tensor, some: Tensor, noise: Draws) -> Tensor:
        mean, _ = sample(theta, descriptor[rows], None, noise)
        weights = state.centre + state.scale * mean.flatten(0, 1)
        said = torch.func.vmap(network.apply, (0, None))(unpack(weights, state.one), inputs[some])
        wanted = target[rows][:, some].repeat(len(mean), 1, 1)
        return ((said - wanted).square().mean((1, 2)) / spread[rows].repeat(len(mean))).mean()

    theta, memory = state.theta, optimiser.init(state.theta)
    for _ in range(cfg.refit):
        rows = torch.randint(len(target), (cfg.tasks,), generator=draw)
        some = torch.randperm(len(inputs), generator=draw)[:64]
        grads = torch.func.grad(loss)(theta, rows, some, draws(replace(cfg, samples=2), cfg.tasks, draw))
        theta, memory = optimiser.update(theta, grads, memory, cfg.lr * cosine(memory.done, cfg.refit))
    return state._replace(theta=theta)


def zero_shot(state: State, descriptor: Tensor) -> tuple[Params, Params]:
    """Models [q, ...] for descriptors [q, p], and the variances of their weights."""
    mean, variance = _predict(state.theta, descriptor.float())
    return unpack(state.centre + state.scale * mean, state.one), unpack(state.scale.square() * variance, state.one)
