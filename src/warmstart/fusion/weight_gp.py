"""Gaussian processes from the descriptor to the weights, whose hidden units are put in one order first.

    gamma_i = mean + sum_k c_ik u_k,   c_k ~ GP over descriptors with one kernel for all k

Alignment and process take turns: the process says what each model should be from the others, and each model's units
are matched to that. Whatever order the units end in, the models are the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params
from warmstart.core.trees import take, unpack
from warmstart.fusion.alignment import align, balance, symmetries
from warmstart.fusion.average import middle
from warmstart.fusion.network import Network, Pool, Rival
from warmstart.maths import gp
from warmstart.maths.subspace import Subspace, project, subspace


@dataclass(frozen=True)
class Config:
    aligned: bool = True
    balanced: bool = False  # incoming and outgoing weights of a ReLU unit made equally long
    rounds: int = 10  # of alternation
    rank: int = 256  # directions of the weights that are kept
    block: int = gp.BLOCK
    inducing: int = gp.INDUCING


UNALIGNED = Config(aligned=False)


class State(NamedTuple):
    one: Params  # a model, for its shapes
    space: Subspace
    belief: gp.Belief


def fit(network: Network, cfg: Config, pool: Pool) -> State:
    params = pool.params
    one: Params = take(params, 0)
    if cfg.aligned:
        layers = symmetries(network.module)
        params = balance(params, layers) if cfg.balanced else params
        params = align(params, layers, middle(pool.descriptor))
        hyper: list[gp.Hyper] = []

        def predict(stack: Params) -> Params:
            space, coordinates = subspace(_flat(stack), cfg.rank)
            if not hyper:  # one kernel for all rounds, else the objective moves
                hyper.append(gp.fit(pool.descriptor, coordinates, cfg.block, cfg.inducing).hyper)
            belief = gp.given(hyper[0], pool.descriptor, coordinates, cfg.block, cfg.inducing)
            return _models(one, space, gp.leave_one_out(belief)[0])

        params = align(params, layers, middle(pool.descriptor), predict, cfg.rounds)
    space, coordinates = subspace(_flat(params), cfg.rank)
    return State(one, space, gp.fit(pool.descriptor, coordinates, cfg.block, cfg.inducing))


def _flat(params: Params) -> Tensor:
    return torch.cat([value.reshape(len(value), -1) for value in params.values()], 1).double()


def _models(one: Params, space: Subspace, coordinates: Tensor) -> Params:
    like = next(iter(one.values()))
    models: Params = unpack(project(space, coordinates).to(like), one)
    return models


def zero_shot(state: State, descriptor: Tensor) -> Params:
    return _models(state.one, state.space, gp.predict(state.belief, descriptor.double())[0])


def held_out(state: State) -> Params:
    return _models(state.one, state.space, gp.leave_one_out(state.belief)[0])


def build(network: Network, cfg: Config = Config()) -> Rival:
    return Rival(lambda pool: fit(network, cfg, pool), zero_shot, held_out)
