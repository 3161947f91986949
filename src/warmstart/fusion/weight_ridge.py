"""Ridge regression from the descriptor to each weight, what is left out in turn known in closed form.

    gamma_d = mean_d + (tau - mean tau) B_d,    B_d = (T'T + lambda_d I)^-1 T' (gamma_d - mean_d)
    error of weight d on task i without it = (gamma_id - fitted_id) / (1 - h_ii),    h of lambda_d, the mean included

lambda_d is the one of `ridges` with the smallest squared error of this kind. Weights are taken as they are: for hidden
units in any order this says little, for models on one basis, such as embeddings, much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params
from warmstart.core.trees import take, unpack
from warmstart.fusion.network import Network, Pool, Rival


@dataclass(frozen=True)
class Config:
    ridges: tuple[float, ...] = tuple(10 ** (k / 2 - 1) for k in range(13))  # 0.1 to 100,000


class State(NamedTuple):
    one: Params  # a model, for its shapes
    centre: Tensor  # [p] mean descriptor
    slope: Tensor  # [p, D]
    mean: Tensor  # [D] mean weights
    left_out: Tensor  # [n, D] what the others make of each task


def fit(cfg: Config, pool: Pool) -> State:
    gamma = torch.cat([value.reshape(len(value), -1) for value in pool.params.values()], 1).double()
    n, centre, mean = len(gamma), pool.descriptor.mean(0), gamma.mean(0)
    u, size, v = torch.linalg.svd(pool.descriptor - centre, full_matrices=False)
    along = u.mT @ (gamma - mean)  # [r, D]
    lowest = torch.full_like(mean, torch.inf)
    slope, left_out = torch.zeros_like(along), gamma
    for ridge in cfg.ridges:
        shrink = size.square() / (size.square() + ridge)
        own = u.square() @ shrink + 1 / n  # h_ii
        wrong = (gamma - mean - u @ (shrink[:, None] * along)) / (1 - own).clamp(min=1e-9)[:, None]
        error = wrong.square().mean(0)
        better, lowest = error < lowest, torch.minimum(error, lowest)
        slope = torch.where(better, (size / (size.square() + ridge))[:, None] * along, slope)
        left_out = torch.where(better, gamma - wrong, left_out)
    return State(take(pool.params, 0), centre, v.mT @ slope, mean, left_out)


def _models(one: Params, flat: Tensor) -> Params:
    models: Params = unpack(flat.to(next(iter(one.values()))), one)
    return models


def zero_shot(state: State, descriptor: Tensor) -> Params:
    return _models(state.one, state.mean + (descriptor.double() - state.centre) @ state.slope)


def held_out(state: State) -> Params:
    return _models(state.one, state.left_out)


def build(network: Network, cfg: Config = Config()) -> Rival:
    return Rival(lambda pool: fit(cfg, pool), zero_shot, held_out)
