"""A Gaussian process from the descriptor to the products of low-rank adapters, and the best adapter of their rank.

    D_tau = sum_i w_i(tau) B_i A_i,   w(tau) = 1/n + sum_k c_k(tau) a_k,   c_k ~ GP over descriptors, one kernel for all
    (B, A)(tau) = argmin |B A - D_tau|^2 over factors of rank r

a_k are the principal directions of the products, as weights of the pool: they come from the n x n matrix of inner
products, which factors of rank r give without a product being made. Nothing depends on which factors a product has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params
from warmstart.core.trees import take
from warmstart.fusion.adapters import Bases, bases, gram, mix
from warmstart.fusion.network import Network, Pool, Rival
from warmstart.maths import gp


@dataclass(frozen=True)
class Config:
    directions: int = 32  # of the products that are kept
    block: int = gp.BLOCK
    inducing: int = gp.INDUCING


class State(NamedTuple):
    one: Params  # an adapter, for its shapes
    spaces: dict[str, Bases]
    weights: Tensor  # [k, n] the directions
    belief: gp.Belief  # of the coordinates


def fit(cfg: Config, pool: Pool) -> State:
    weights, coordinates = directions(gram(pool.params), cfg.directions)
    belief = gp.fit(pool.descriptor, coordinates, cfg.block, cfg.inducing)
    return State(take(pool.params, 0), bases(pool.params), weights, belief)


def directions(inner: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Principal directions [k, n] as weights of the rows, and coordinates [n, k], from inner products [n, n]."""
    centred = inner - inner.mean(0) - inner.mean(1, keepdim=True) + inner.mean()
    size, vectors = torch.linalg.eigh(centred)
    size, vectors = size.flip(0), vectors.flip(1)
    kept = max(1, min(count, int((size > 1e-10 * size[0].clamp(min=1e-30)).sum())))
    root = size[:kept].clamp(min=1e-30).sqrt()
    # columns sum to zero, so the mean that they are taken from drops out
    return (vectors[:, :kept] / root).mT.contiguous(), vectors[:, :kept] * root


def _models(state: State, coordinates: Tensor) -> Params:
    return mix(state.spaces, state.one, 1 / state.weights.shape[1] + coordinates @ state.weights)


def zero_shot(state: State, descriptor: Tensor) -> Params:
    return _models(state, gp.predict(state.belief, descriptor.double())[0])


def held_out(state: State) -> Params:
    """The mean and the directions have seen all adapters; the processes have not."""
    return _models(state, gp.leave_one_out(state.belief)[0])


def build(network: Network, cfg: Config = Config()) -> Rival:
    return Rival(lambda pool: fit(cfg, pool), zero_shot, held_out)
