"""A Gaussian process from the descriptor to the function, and a shared body whose last layer says that function.

    f_tau(X) = mean + sum_k c_k(tau) v_k,   c_k ~ GP over descriptors with one kernel for all k
    model(tau) = (body, W(tau)),   W(tau) = argmin |Phi W - f_tau(X)|^2 + ridge |W|^2

X are the inputs, v_k the principal directions of what the pool's models say of them, Phi the features of one body for
all tasks. The body is the one of the pool whose features say most of all functions, then moved by gradient steps to
say more. Both steps are linear in the functions, so a model for a new task is two products. Functions have no hidden
units: there is nothing to align.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params
from warmstart.core.trees import expand, take, tree_map
from warmstart.fusion.network import Network, Pool, Rival, head_params, run_features, without_head
from warmstart.maths import gp
from warmstart.maths.optim import adam, cosine
from warmstart.maths.subspace import Subspace, project, subspace


@dataclass(frozen=True)
class Config:
    rank: int = 32  # directions of the functions that are kept
    bodies: int = 16  # of the pool, tried as the shared one
    steps: int = 200  # that move the best of them
    lr: float = 0.01
    ridge: float = 1e-5  # of the mean square of the features
    block: int = gp.BLOCK
    inducing: int = gp.INDUCING


class State(NamedTuple):
    body: Params  # shared, without the head
    heads: Subspace  # heads [outputs * (h + 1)] of the mean function and of each direction
    belief: gp.Belief  # of the functions' coordinates


def solve_heads(features: Tensor, functions: Tensor, ridge: float) -> Tensor:
    """[k, outputs, h + 1] the heads that say functions [k, P, outputs] with features [P, h + 1]."""
    gram = features.mT @ features / len(features)
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    right = features.mT @ functions / len(features)
    found: Tensor = torch.linalg.solve(gram + ridge * gram.diagonal().mean() * eye, right)
    return found.mT


def fit(network: Network, cfg: Config, pool: Pool) -> State:
    n, points, outputs = pool.outputs.shape
    space, coordinates = subspace(pool.outputs.reshape(n, -1), cfg.rank)
    # what a body has to say: the mean, and each direction as far as the pool goes along it
    wanted = torch.cat([space.mean[None], space.directions * coordinates.square().mean(0).sqrt()[:, None]])
    body = shared_body(network, cfg, pool, wanted.reshape(-1, points, outputs))
    features = run_features(network, tree_map(lambda value: value[None], body), pool.inputs)[0]
    basis = torch.cat([space.mean[None], space.directions]).reshape(-1, points, outputs)
    heads = solve_heads(features, basis, cfg.ridge).flatten(1)
    belief = gp.fit(pool.descriptor, coordinates, cfg.block, cfg.inducing)
    return State(without_head(body, network.head), Subspace(heads[0], heads[1:]), belief)


def shared_body(network: Network, cfg: Config, pool: Pool, wanted: Tensor) -> Params:
    """The pool's body with the smallest error on the wanted functions [k, P, outputs], moved to make it smaller."""

    def error(features: Tensor) -> Tensor:
        heads = solve_heads(features, wanted, cfg.ridge)
        return (features @ heads.mT - wanted).square().sum() / wanted.square().sum()

    tried = gp.spread_out(pool.descriptor, cfg.bodies)
    seen = run_features(network, take(pool.params, tried), pool.inputs)
    best = int(torch.stack([error(features) for features in seen]).argmin())
    body: Params = tree_map(lambda value: value.double(), take(pool.params, int(tried[best])))
    inputs, ones = pool.inputs.double(), seen[0][:, -1:]
    optimiser = adam()
    state = optimiser.init(body)
    lowest, kept = float("inf"), body
    for step in range(cfg.steps):

        def loss(params: Params) -> Tensor:
            return error(torch.cat([network.features(params, inputs), ones], -1))

        grads, value = torch.func.grad_and_value(loss)(body)
        if float(value) < lowest:
            lowest, kept = float(value), body
        body, state = optimiser.update(body, grads, state, cfg.lr * cosine(torch.tensor(float(step)), cfg.steps))
    return {name: value.to(pool.params[name]) for name, value in kept.items()}


def _models(network: Network, state: State, coordinates: Tensor) -> Params:
    layer = network.module.get_submodule(network.head)
    like = next(layer.parameters())
    weights = project(state.heads, coordinates).reshape(len(coordinates), like.shape[0], -1).to(like.dtype)
    body: Params = expand(state.body, len(coordinates))
    return {**body, **head_params(network, weights)}


def zero_shot(network: Network, state: State, descriptor: Tensor) -> Params:
    return _models(network, state, gp.predict(state.belief, descriptor.double())[0])


def held_out(network: Network, state: State) -> Params:
    """The body has seen all models; the processes have not."""
    return _models(network, state, gp.leave_one_out(state.belief)[0])


def build(network: Network, cfg: Config = Config()) -> Rival:
    return Rival(
        lambda pool: fit(network, cfg, pool),
        lambda state, descriptor: zero_shot(network, state, descriptor),
        lambda state: held_out(network, state),
    )
