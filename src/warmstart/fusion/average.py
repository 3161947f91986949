"""One model for all tasks, the average of the pool's weights; `ALIGNED` puts hidden units in one order first.

`PRODUCTS` is for low-rank adapters: the best of their rank for the average of their products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params
from warmstart.core.trees import expand, take, tree_map
from warmstart.fusion.adapters import bases, mix
from warmstart.fusion.alignment import align, reaches, symmetries
from warmstart.fusion.network import Network, Pool, Rival


@dataclass(frozen=True)
class Config:
    aligned: bool = False
    rounds: int = 5  # of matching each model to the average of the others, after a first match to one model
    products: bool = False  # of adapters


ALIGNED = Config(aligned=True)
PRODUCTS = Config(products=True)


class State(NamedTuple):
    params: Params  # [n, ...] in one order when aligned


def others(params: Params) -> Params:
    """For each model the average of the others."""
    found: Params = tree_map(lambda value: (value.sum(0, keepdim=True) - value) / (len(value) - 1), params)
    return found


def middle(descriptor: Tensor) -> int:
    """The model whose task is nearest to the mean of all: a fair reference."""
    return int((descriptor - descriptor.mean(0)).square().sum(-1).argmin())


def fit(network: Network, cfg: Config, pool: Pool) -> State:
    if not cfg.aligned:
        return State(pool.params)
    layers = symmetries(network.module)
    reach = reaches(pool.params, network.module, pool.inputs.to(next(iter(pool.params.values()))))
    return State(align(pool.params, layers, middle(pool.descriptor), others, cfg.rounds, reach))


def _mixed(state: State, weights: Tensor) -> Params:
    return mix(bases(state.params), take(state.params, 0), weights)


def zero_shot(cfg: Config, state: State, descriptor: Tensor) -> Params:
    n = len(next(iter(state.params.values())))
    one: Params = tree_map(lambda value: value.mean(0), state.params)
    if cfg.products:
        one = take(_mixed(state, torch.full((1, n), 1 / n)), 0)
    models: Params = expand(one, len(descriptor))
    return models


def held_out(cfg: Config, state: State) -> Params:
    if cfg.products:
        n = len(next(iter(state.params.values())))
        return _mixed(state, (torch.ones(n, n) - torch.eye(n)) / (n - 1))
    return others(state.params)


def build(network: Network, cfg: Config = Config()) -> Rival:
    return Rival(
        lambda pool: fit(network, cfg, pool),
        lambda state, descriptor: zero_shot(cfg, state, descriptor),
        lambda state: held_out(cfg, state),
    )
