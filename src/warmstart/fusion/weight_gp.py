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

from warmstart.core import Params, check_names
from warmstart.core.trees import take, unpack
from warmstart.fusion.alignment import align, balance, match_activations, reaches, symmetries
from warmstart.fusion.network import Network, Pool, Rival, run_models
from warmstart.maths import gp
from warmstart.maths.subspace import Subspace, project, subspace


@dataclass(frozen=True)
class Config:
    aligned: bool = True
    balanced: bool = False  # incoming and outgoing weights of a ReLU unit made equally long
    start: str = "activations"  # what units are first matched to one model by: weights or activations
    references: int = 1  # models tried as that one, far from each other; functions of models left out decide
    rounds: int = 10  # of alternation
    rank: int = 256  # directions of the weights that are kept
    block: int = gp.BLOCK
    inducing: int = gp.INDUCING


UNALIGNED = Config(aligned=False)


class State(NamedTuple):
    one: Params  # a model, for its shapes
    space: Subspace
    belief: gp.Belief


def aligned(network: Network, cfg: Config, pool: Pool) -> Params:
    """The pool with hidden units in one order: matched to one model, then in turn to what the process says of each."""
    check_names([cfg.start], ("weights", "activations"), "a start")
    params = balance(pool.params, symmetries(network.module)) if cfg.balanced else pool.params
    # the first is the one in the middle
    tried = gp.spread_out(pool.descriptor, cfg.references).tolist()
    found = [_aligned_to(network, cfg, pool, params, reference) for reference in tried]
    return min(found, key=lambda pair: pair[1])[0]


def _aligned_to(network: Network, cfg: Config, pool: Pool, params: Params, reference: int) -> tuple[Params, float]:
    """With how far, relative to what models say, the process is from each model that it has not seen."""
    layers, one = symmetries(network.module), take(params, 0)
    inputs = pool.inputs.to(next(iter(params.values())))
    reach = reaches(params, network.module, inputs)
    if cfg.start == "activations":
        target = {name: value[reference, None] for name, value in params.items()}
        params = match_activations(params, network.module, inputs, target)
    else:
        params = align(params, layers, reference, reach=reach)
    hyper: list[gp.Hyper] = []

    def predict(stack: Params) -> Params:
        space, coordinates = subspace(_flat(stack), cfg.rank)
        if not hyper:  # one kernel for all rounds, else the objective moves
            hyper.append(gp.fit(pool.descriptor, coordinates, cfg.block, cfg.inducing).hyper)
        belief = gp.given(hyper[0], pool.descriptor, coordinates, cfg.block, cfg.inducing)
        return _models(one, space, gp.leave_one_out(belief)[0])

    params = align(params, layers, None, predict, cfg.rounds, reach)
    if cfg.references == 1:
        return params, 0.0
    said = run_models(network, held_out(_conditioned(cfg, pool, params)), inputs)
    spread = pool.outputs.var((1, 2)).clamp(min=1e-12)
    return params, float(((said - pool.outputs).square().mean((1, 2)) / spread).mean())


def fit(network: Network, cfg: Config, pool: Pool) -> State:
    return _conditioned(cfg, pool, aligned(network, cfg, pool) if cfg.aligned else pool.params)


def _conditioned(cfg: Config, pool: Pool, params: Params) -> State:
    space, coordinates = subspace(_flat(params), cfg.rank)
    return State(take(params, 0), space, gp.fit(pool.descriptor, coordinates, cfg.block, cfg.inducing))


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
