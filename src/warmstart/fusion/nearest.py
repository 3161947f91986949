"""The model whose task's descriptor is nearest: retrieval, which fusion has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params
from warmstart.core.trees import take
from warmstart.fusion.network import Network, Pool, Rival


@dataclass(frozen=True)
class Config:
    pass


class State(NamedTuple):
    params: Params
    descriptor: Tensor


def fit(pool: Pool) -> State:
    return State(pool.params, pool.descriptor)


def zero_shot(state: State, descriptor: Tensor) -> Params:
    models: Params = take(state.params, torch.cdist(descriptor.double(), state.descriptor).argmin(1))
    return models


def held_out(state: State) -> Params:
    distance = torch.cdist(state.descriptor, state.descriptor).fill_diagonal_(torch.inf)
    models: Params = take(state.params, distance.argmin(1))
    return models


def build(network: Network, cfg: Config = Config()) -> Rival:
    return Rival(fit, zero_shot, held_out)
