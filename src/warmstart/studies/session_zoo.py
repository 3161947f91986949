"""Simulated users who rate sessions, a small transformer that knows their average, and adapters of it for each user.

A session is 6 items of 4 features. A user with traits z attends to items and likes them in ways of their own,

    rating = sum_t softmax_t(p(z) . x_t) tanh(q(z) . x_t + c(z)) + noise,

p, q and c being a fixed vector and a random smooth function of z: no network of the family says it exactly. What is
known of a user is z, three numbers, and a fourth that means nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from warmstart.core import Params
from warmstart.core.trees import concat, take
from warmstart.engine.files import read_tensors, write_tensors
from warmstart.engine.noise import generator
from warmstart.fusion.adapters import DOWN, UP, attach
from warmstart.fusion.network import Network
from warmstart.fusion.zoo import Zoo, make_zoo
from warmstart.maths.optim import adam, cosine
from warmstart.models.mlp import seeded

ITEMS, FEATURES, TRAITS, WAVES = 6, 4, 3, 12
WIDTH, BLOCKS, HEADS, RANK = 16, 2, 2, 4
WIGGLE, NOISE = 0.6, 0.1
ROWS, BATCH, RATE = 500, 64, 2e-2
TOGETHER = 50
COLUMNS = ("first", "second", "third", "mute")


class Block(nn.Module):
    """Attention and a hidden layer, each added to what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).reshape(*x.shape[:-1], 3, HEADS, -1)
        q, k, v = parts.movedim(-3, 0).movedim(-2, -3)  # [..., heads, items, width of a head]
        seen = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v
        x = x + self.out(seen.movedim(-3, -2).flatten(-2))
        out: Tensor = x + self.down(torch.relu(self.up(self.second(x))))
        return out


class Reader(nn.Module):
    """A session [n, ITEMS, FEATURES] to its rating [n, 1]; the order of items plays no part."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x).mean(-2))
        return out


class World(NamedTuple):
    """From traits to p (FEATURES numbers), q (as many) and c."""

    frequency: Tensor  # [TRAITS, WAVES]
    phase: Tensor  # [WAVES]
    size: Tensor  # [WAVES, 2 FEATURES + 1]
    level: Tensor  # [2 FEATURES + 1]


def make_world(seed: int) -> World:
    draw = generator(seed, 20)
    frequency = WIGGLE * torch.randn(TRAITS, WAVES, generator=draw)
    phase = 2 * math.pi * torch.rand(WAVES, generator=draw)
    size = torch.randn(WAVES, 2 * FEATURES + 1, generator=draw) * math.sqrt(2 / WAVES)
    size[:, -1] *= 0.3  # else users differ by a constant before all
    return World(frequency, phase, size, torch.randn(2 * FEATURES + 1, generator=draw))


def rating(world: World, traits: Tensor, x: Tensor) -> Tensor:
    """[u, n] noiseless, of users with traits [u, TRAITS] and sessions x [u, n, ITEMS, FEATURES]."""
    own = (world.level + torch.cos(traits @ world.frequency + world.phase) @ world.size)[:, None, None]
    pull, taste, level = own[..., :FEATURES], own[..., FEATURES:-1], own[..., -1]
    attention = torch.softmax((x * pull).sum(-1), -1)
    return (attention * torch.tanh((x * taste).sum(-1) + level)).sum(-1)


def draw_users(count: int, draw: torch.Generator) -> Tensor:
    """[count, TRAITS + 1] what is known of them."""
    return 2 * torch.rand(count, TRAITS + 1, generator=draw) - 1


def draw_rows(world: World, users: Tensor, rows: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sessions [u, rows, ...] and ratings with noise."""
    x = torch.randn(len(users), rows, ITEMS, FEATURES, generator=draw)
    noise = NOISE * torch.randn(len(users), rows, generator=draw)
    return x, rating(world, users[:, :TRAITS], x) + noise


def train_network(world: World, seed: int, steps: int) -> Reader:
    """On rows of ever new users, without a word about them: it learns their average."""
    draw, optimiser = generator(seed, 21), adam()
    with seeded(seed):
        network = Reader()
    params: Params = {name: value.detach().clone() for name, value in network.named_parameters()}
    memory = optimiser.init(params)

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        said: Tensor = torch.func.functional_call(network, params, (x,))
        return (said[:, 0] - y).square().mean()

    for step in range(steps):
        x, y = draw_rows(world, draw_users(256, draw), 1, draw)
        now = 3e-3 * cosine(torch.tensor(float(step)), steps)
        params, memory = optimiser.update(params, torch.func.grad(loss)(params, x[:, 0], y[:, 0]), memory, now)
    network.load_state_dict(params)
    return network


def starts(network: nn.Module, count: int, seed: int) -> Params:
    """Adapters of the linear layers of all blocks, each from a draw of its own; they change nothing yet."""
    draw = generator(seed, 22)
    found = {}
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear) and name.startswith("blocks."):
            out, width = layer.weight.shape
            found[f"{name}.{DOWN}"] = torch.randn(count, RANK, width, generator=draw) / math.sqrt(width)
            found[f"{name}.{UP}"] = torch.zeros(count, out, RANK)
    return dict(sorted(found.items()))


def fit_adapters(network: Network, begin: Params, x: Tensor, y: Tensor, steps: int, rate: float = RATE) -> Params:
    """Every adapter on rows x [n, k, ...], y [n, k] of its own user, in batches: Adam with a cosine."""
    if len(x) > TOGETHER:
        parts = [slice(i, i + TOGETHER) for i in range(0, len(x), TOGETHER)]
        found: Params = concat([fit_adapters(network, take(begin, p), x[p], y[p], steps, rate) for p in parts])
        return found
    optimiser, draw = adam(), generator(steps, 23)

    def loss(adapter: Params, rows: Tensor, wanted: Tensor) -> Tensor:
        return (network.apply(adapter, rows).squeeze(-1) - wanted).square().mean()

    gradient = torch.func.vmap(torch.func.grad(loss))
    params, memory = begin, optimiser.init(begin)
    for step in range(steps):
        some = torch.randperm(x.shape[1], generator=draw)[:BATCH]
        now = rate * cosine(torch.tensor(float(step)), steps)
        params, memory = optimiser.update(params, gradient(params, x[:, some], y[:, some]), memory, now)
    return {name: value.detach() for name, value in params.items()}


class SessionPool(NamedTuple):
    world: World
    network: Reader  # frozen
    seen: Tensor  # [n, TRAITS + 1]
    unseen: Tensor  # [m, TRAITS + 1]
    params: Params  # [n, ...] adapters of seen users
    own: Params  # [m, ...] of unseen users, trained on as many rows


def train_pool(seed: int, seen: int, unseen: int, first: int, steps: int, place: Path | None = None) -> SessionPool:
    """The network after `first` steps and adapters after `steps`; kept in the file `place` if there is one."""
    world, draw = make_world(seed), generator(seed, 24)
    users = draw_users(seen + unseen, draw)
    x, y = draw_rows(world, users, ROWS, draw)
    network = Reader()
    if place is not None and place.exists():
        kept = read_tensors(place)[0]
        network.load_state_dict({name.removeprefix("/"): v for name, v in kept.items() if name.startswith("/")})
        params = {name: value for name, value in sorted(kept.items()) if not name.startswith("/")}
    else:
        network = train_network(world, seed, first)
        begin = starts(network, len(users), seed)
        params = fit_adapters(attach(network, take(begin, 0)), begin, x, y, steps)
        if place is not None:
            write_tensors(place, {**params, **{f"/{name}": value for name, value in network.state_dict().items()}})
    return SessionPool(
        world, network, users[:seen], users[seen:], take(params, slice(seen)), take(params, slice(seen, None))
    )


def describe(users: Tensor) -> pd.DataFrame:
    return pd.DataFrame(users.double().numpy(), columns=list(COLUMNS))


def as_zoo(pool: SessionPool) -> Zoo:
    names = tuple(f"user {i}" for i in range(len(pool.seen)))
    return make_zoo(names, pool.params, describe(pool.seen).assign(user=names))
