"""A network from the descriptor to the weights, judged by the function that the weights make.

    h <- h - lr * grad sum_i mean_x |model(h(tau_i))(x) - model_i(x)|^2 / var_i

The loss sees functions, so the order of hidden units plays no part. The network starts at one model of the pool for all
tasks. To say what it would make of a task that it has not seen, `folds` more networks train in the same program, each
without its share of the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Model, Params, functional
from warmstart.core.trees import stack, take, tree_map, unpack
from warmstart.engine.noise import generator
from warmstart.fusion.average import middle
from warmstart.fusion.network import Network, Pool, Rival
from warmstart.maths.optim import adam, cosine
from warmstart.models.mlp import MLP, seeded


@dataclass(frozen=True)
class Config:
    hidden: tuple[int, ...] = (64, 64)
    steps: int = 1500
    lr: float = 3e-3
    tasks: int = 24  # in a step
    points: int = 64  # in a step
    folds: int = 5
    seed: int = 0


class State(NamedTuple):
    one: Params  # the model where it starts
    scale: Tensor  # [D] how far the pool goes in each weight
    nets: Params  # [folds + 1, ...]; the last has seen all
    descriptor: Tensor  # [n, p] of the pool
    fold: Tensor  # [n] which network has not seen the model


def _make(cfg: Config, columns: int, size: int) -> Model:
    with seeded(cfg.seed):
        return functional(MLP(columns, cfg.hidden, size, "silu"))


def _weights(model: Model, state: State, net: Params, descriptor: Tensor) -> Params:
    """Models [q, ...] of one hypernetwork."""
    start = torch.cat([value.reshape(-1) for value in state.one.values()])
    models: Params = unpack(start + state.scale * model.apply(net, descriptor.to(start)), state.one)
    return models


def fit(network: Network, cfg: Config, pool: Pool) -> State:
    n, points, _ = pool.outputs.shape
    like = next(iter(pool.params.values()))
    flat = torch.cat([value.reshape(n, -1) for value in pool.params.values()], 1)
    folds = min(cfg.folds, n)
    draw = generator(cfg.seed, n)
    fold = torch.randperm(n, generator=draw) % folds
    one: Params = take(pool.params, middle(pool.descriptor))
    model = _make(cfg, pool.descriptor.shape[1], flat.shape[1])
    base = {name: value * (0.1 if name.startswith("head") else 1.0) for name, value in model.params.items()}
    state = State(one, flat.std(0), stack([base] * (folds + 1)), pool.descriptor, fold)
    target = pool.outputs.to(like)
    spread = target.var((1, 2)).clamp(min=1e-12)
    seen = torch.stack([(fold != k).float() for k in range(folds)] + [torch.ones(n)])
    descriptor, inputs = pool.descriptor.to(like), pool.inputs.to(like)

    def loss(net: Params, rows: Tensor, x: Tensor, y: Tensor) -> Tensor:
        models = _weights(model, state, net, descriptor[rows])
        said = torch.func.vmap(network.apply, (0, None))(models, x)
        return ((said - y).square().mean((1, 2)) / spread[rows]).mean()

    step = torch.func.vmap(torch.func.grad(loss), (0, 0, None, 0))
    optimiser = adam()
    nets, memory = state.nets, optimiser.init(state.nets)
    for done in range(cfg.steps):
        rows = torch.multinomial(seen, cfg.tasks, replacement=True, generator=draw)
        some = torch.randperm(points, generator=draw)[: cfg.points]
        grads = step(nets, rows, inputs[some], target[rows][:, :, some])
        rate = cfg.lr * cosine(torch.tensor(float(done)), cfg.steps)
        nets, memory = optimiser.update(nets, grads, memory, rate)
    return state._replace(nets=tree_map(torch.Tensor.detach, nets))


def zero_shot(cfg: Config, state: State, descriptor: Tensor) -> Params:
    model = _make(cfg, state.descriptor.shape[1], len(state.scale))
    return _weights(model, state, take(state.nets, -1), descriptor)


def held_out(cfg: Config, state: State) -> Params:
    """By the network that has not seen the model's fold."""
    model = _make(cfg, state.descriptor.shape[1], len(state.scale))
    made = [_weights(model, state, take(state.nets, k), state.descriptor) for k in range(int(state.fold.max()) + 1)]
    rows = torch.arange(len(state.fold))
    models: Params = tree_map(lambda *parts: torch.stack(parts)[state.fold, rows], *made)
    return models


def build(network: Network, cfg: Config = Config()) -> Rival:
    return Rival(
        lambda pool: fit(network, cfg, pool),
        lambda state, descriptor: zero_shot(cfg, state, descriptor),
        lambda state: held_out(cfg, state),
    )
