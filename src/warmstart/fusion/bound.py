"""Theorem 1 of *Model fusion for personalized learning*, term by term, and the objective H that it suggests.

    |G(q) - G(oracle)| <= KL(q | pi) + G(oracle) / r + log(D + c + e^psi sqrt(log(4m / delta) / (2m - 1)))
    D = mean_i E_pi exp l(x_i, y_i),   psi = sup l,   c = Pr(l_oracle > G(oracle) / r) / exp(G(oracle) / r - 2 psi)
    H(q, pi) = log D - L(q)

The proof needs a loss that is bounded and obeys the triangle inequality. Squared error does neither; the absolute error
over a range, at most 1, does both. Lemma 1: q = p exp(E log p(gamma | w, w0)) / Z maximises L, which is then log Z.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import InputError, Params
from warmstart.core.trees import unpack
from warmstart.engine.noise import generator
from warmstart.fusion.meta_model import Config, Draws, State, draws, evidence_bound, sample
from warmstart.fusion.network import Network, Pool
from warmstart.maths.optim import adam

LARGEST = 1.0  # psi, the largest value of the loss


class Terms(NamedTuple):
    """The right-hand side; `total` is their sum."""

    divergence: float  # KL(q | pi)
    oracle: float  # G(oracle) / r
    data: float  # log mean_i E_pi exp l: at least 0, for any number of rows, since l is
    constant: float  # what c and the sample size add inside the logarithm
    total: float


def bounded_loss(said: Tensor, y: Tensor, size: float) -> Tensor:
    """min(|f(x) - y| / size, 1): a metric of outputs, never above 1."""
    return ((said - y).abs() / size).clamp(max=LARGEST)


def optimal_base(log_prior: Tensor, log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    """Lemma 1 on a grid of bases: log q and log Z, from log p(w0) [k] and sum_i E log p(gamma_i | w_i, w0) [k]."""
    log_z = torch.logsumexp(log_prior + log_likelihood, -1)
    return log_prior + log_likelihood - log_z, log_z


def data_term(losses: Tensor) -> Tensor:
    """log mean_i E_pi exp l of losses [draws, rows]."""
    return torch.logsumexp(losses.flatten(), 0) - math.log(losses.numel())


def smallest_c(oracle: Tensor, r: float) -> float:
    """The least c that the assumption of the theorem allows, from losses of the oracle."""
    mean = float(oracle.double().mean())
    return float((oracle > mean / r).double().mean()) / math.exp(mean / r - 2 * LARGEST)


def bound(divergence: float, oracle: Tensor, drawn: Tensor, r: float, delta: float = 0.05) -> Terms:
    """The terms, from losses of the oracle [any] and of draws of pi at the task's rows [draws, m]."""
    if r <= 1 or not 0 < delta < 1:
        raise InputError("r above 1 and delta between 0 and 1", f"{r} and {delta}", "correct them")
    m = drawn.shape[1]
    inside = float(data_term(drawn.double()).exp())
    slack = smallest_c(oracle, r) + math.exp(LARGEST) * math.sqrt(math.log(4 * m / delta) / (2 * m - 1))
    first, data = float(oracle.double().mean()) / r, math.log(inside)
    constant = math.log(inside + slack) - data
    return Terms(divergence, first, data, constant, divergence + first + data + constant)


def draw_models(state: State, descriptor: Tensor, noise: Draws, weights: Tensor) -> Params:
    """Models [s, ...] of one task from pi: draws of all latent variables, and of the weights by normals [s, D]."""
    mean, variance = sample(state.theta, descriptor.float().reshape(1, -1), None, noise)
    drawn: Params = unpack(state.centre + state.scale * (mean + variance.sqrt() * weights[:, None])[:, 0], state.one)
    return drawn


def objective(
    network: Network, pool: Pool, state: State, rows: Tensor, descriptor: Tensor, x: Tensor, y: Tensor,
    few: Draws, own: Draws, weights: Tensor, weight: float = 1.0,
) -> Tensor:  # fmt: skip
    """H, with L estimated on the pool's `rows`, for one task with rows x [k, ...] and y [k, o]."""
    size = float(pool.outputs.amax() - pool.outputs.amin())
    said = torch.func.vmap(network.apply, (0, None))(draw_models(state, descriptor, own, weights), x)
    losses = bounded_loss(said, y, size).mean(-1)
    at = pool.descriptor.float()[rows]
    told = evidence_bound(state.theta, state.gamma[rows], at, state.order[rows], few, len(state.gamma))
    return data_term(losses) - weight * told


def fine_tune(
    network: Network, cfg: Config, pool: Pool, state: State, descriptor: Tensor, x: Tensor, y: Tensor,
    steps: int = 20, lr: float = 1e-3, weight: float = 1.0,
) -> State:  # fmt: skip
    """Gradient steps of the whole meta-model on H for one task; `meta_model.zero_shot` then gives the task's model."""
    draw, optimiser = generator(cfg.seed, 6), adam()
    theta, memory = state.theta, optimiser.init(state.theta)
    for _ in range(steps):
        rows = torch.randint(len(state.gamma), (cfg.tasks,), generator=draw)
        few, own = draws(cfg, cfg.tasks, draw), draws(cfg, 1, draw)
        weights = torch.randn(cfg.samples, len(state.centre), generator=draw)

        def loss(theta: Params, rows: Tensor, few: Draws, own: Draws, weights: Tensor) -> Tensor:
            moved = state._replace(theta=theta)
            return objective(network, pool, moved, rows, descriptor, x, y, few, own, weights, weight)

        grads = torch.func.grad(loss)(theta, rows, few, own, weights)
        theta, memory = optimiser.update(theta, grads, memory, lr)
    return state._replace(theta=theta)
