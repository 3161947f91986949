"""One model for all tasks, the average of the pool's weights; `ALIGNED` puts hidden units in one order first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from warmstart.core import Params
from warmstart.core.trees import expand, tree_map
from warmstart.fusion.alignment import align, symmetries
from warmstart.fusion.network import Network, Pool, Rival


@dataclass(frozen=True)
class Config:
    aligned: bool = False
    rounds: int = 5  # of matching each model to the average of the others, after a first match to one model


ALIGNED = Config(aligned=True)


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
    return State(align(pool.params, symmetries(network.module), middle(pool.descriptor), others, cfg.rounds))


def zero_shot(state: State, descriptor: Tensor) -> Params:
    models: Params = expand(tree_map(lambda value: value.mean(0), state.params), len(descriptor))
    return models


def held_out(state: State) -> Params:
    return others(state.params)


def build(network: Network, cfg: Config = Config()) -> Rival:
    return Rival(lambda pool: fit(network, cfg, pool), zero_shot, held_out)
