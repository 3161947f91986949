"""A Gaussian process from the descriptor to the function, and a network that makes an adapter of a function.

    f_tau(X) = mean + sum_k c_k(tau) v_k,   c_k ~ GP over descriptors with one kernel for all k
    (B, A)(tau) = start + scale * net(c(tau)),   net <- net - lr * grad E_c mean_x |adapted(net(c))(x) - f_c(x)|^2 / var

X are the inputs, v_k the principal directions of what the frozen network says of them with the pool's adapters.
Adapters trained apart differ by far more than their functions do; here they are seen by their functions alone, which
no choice of factors changes. The functions that the network learns to say are mixtures of two of the pool's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Model, Params, functional
from warmstart.core.trees import take, tree_map, unpack
from warmstart.engine.noise import generator
from warmstart.fusion.adapters import canonical
from warmstart.fusion.average import middle
from warmstart.fusion.network import Network, Pool, Rival
from warmstart.maths import gp
from warmstart.maths.optim import adam, cosine
from warmstart.maths.subspace import subspace
from warmstart.models.mlp import MLP, seeded


@dataclass(frozen=True)
class Config:
    rank: int = 32  # directions of the functions that are kept
    hidden: tuple[int, ...] = (64,)
    steps: int = 800
    lr: float = 0.01
    tasks: int = 24  # in a step
    points: int = 64  # in a step
    block: int = gp.BLOCK
    inducing: int = gp.INDUCING
    seed: int = 0


class State(NamedTuple):
    one: Params  # the adapter where it starts
    scale: Tensor  # [D] size of the pool's factors
    unit: Tensor  # [] of the coordinates
    net: Params
    belief: gp.Belief  # of the functions' coordinates


def _make(cfg: Config, columns: int, size: int) -> Model:
    with seeded(cfg.seed):
        return functional(MLP(columns, cfg.hidden, size, "silu"))


def _models(cfg: Config, state: State, coordinates: Tensor) -> Params:
    model = _make(cfg, coordinates.shape[1], len(state.scale))
    return _adapters(model, state, state.net, coordinates)


def _adapters(model: Model, state: State, net: Params, coordinates: Tensor) -> Params:
    start = torch.cat([value.reshape(-1) for value in state.one.values()])
    change = model.apply(net, (coordinates / state.unit).to(start))
    found: Params = unpack(start + state.scale * change, state.one)
    return found


def fit(network: Network, cfg: Config, pool: Pool) -> State:
    n, points, outputs = pool.outputs.shape
    space, coordinates = subspace(pool.outputs.reshape(n, -1), cfg.rank)
    belief = gp.fit(pool.descriptor, coordinates, cfg.block, cfg.inducing)
    balanced = canonical(pool.params)
    one: Params = take(balanced, middle(pool.descriptor))
    sizes = [value.square().mean().sqrt().clamp(min=1e-6).expand(value[0].numel()) for value in balanced.values()]
    model = _make(cfg, coordinates.shape[1], sum(map(len, sizes)))
    net = {name: value * (0.1 if name.startswith("head") else 1.0) for name, value in model.params.items()}
    state = State(one, torch.cat(sizes), coordinates.square().mean(0).max().sqrt(), net, belief)
    like = next(iter(one.values()))
    inputs, spread = pool.inputs.to(like), pool.outputs.var(1).mean().clamp(min=1e-12)
    draw, optimiser = generator(cfg.seed, n), adam()

    def loss(net: Params, some: Tensor, x: Tensor, wanted: Tensor) -> Tensor:
        said = torch.func.vmap(network.apply, (0, None))(_adapters(model, state, net, some), x)
        return (said - wanted).square().mean() / spread

    memory = optimiser.init(net)
    for done in range(cfg.steps):
        first, second = coordinates[torch.randint(n, (2, cfg.tasks), generator=draw)]
        some = torch.lerp(first, second, torch.rand(cfg.tasks, 1, generator=draw).to(first))
        rows = torch.randperm(points, generator=draw)[: cfg.points]
        wanted = (space.mean + some @ space.directions).reshape(-1, points, outputs)[:, rows]
        grads = torch.func.grad(loss)(net, some, inputs[rows], wanted.to(like))
        rate = cfg.lr * cosine(torch.tensor(float(done)), cfg.steps)
        net, memory = optimiser.update(net, grads, memory, rate)
    return state._replace(net=tree_map(torch.Tensor.detach, net))


def zero_shot(cfg: Config, state: State, descriptor: Tensor) -> Params:
    return _models(cfg, state, gp.predict(state.belief, descriptor.double())[0])


def held_out(cfg: Config, state: State) -> Params:
    """The network has seen all adapters' functions; the processes have not."""
    return _models(cfg, state, gp.leave_one_out(state.belief)[0])


def build(network: Network, cfg: Config = Config()) -> Rival:
    return Rival(
        lambda pool: fit(network, cfg, pool),
        lambda state, descriptor: zero_shot(cfg, state, descriptor),
        lambda state: held_out(cfg, state),
    )
