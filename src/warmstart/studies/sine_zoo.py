"""Pools of networks [1-100-1] that are trained on sines apart from each other, as one stacked program."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from warmstart.core import Params, functional
from warmstart.core.trees import concat, stack, take
from warmstart.engine.files import read_tensors, write_tensors
from warmstart.engine.noise import generator
from warmstart.fusion.zoo import Zoo, make_zoo
from warmstart.maths.optim import adam, cosine
from warmstart.models.mlp import MLP, seeded
from warmstart.tasks import sine

UNITS, ROWS, STEPS, RATE = 100, 100, 2000, 1e-2
TOGETHER = 100
SPAN = (-5.0, 5.0)
SEEN, UNSEEN = 200, 100
COLUMNS = ("a", "b")


class SinePool(NamedTuple):
    """Networks of seen and of unseen tasks; the latter are the floor."""

    seen: Tensor  # [n, 3] amplitude, phase, frequency
    unseen: Tensor  # [m, 3]
    params: Params  # [n, ...]
    floor: Params  # [m, ...]


def module(hidden: tuple[int, ...] = (UNITS,)) -> MLP:
    return MLP(1, hidden, 1)


def fit_networks(starts: Params, x: Tensor, y: Tensor, steps: int, rate: float = RATE) -> Params:
    """Every network of the stack on rows x [n, k, 1], y [n, k] of its own: full-batch Adam with a cosine.

    In stacks of `TOGETHER`, whose activations a cache holds.
    """
    if len(x) > TOGETHER:
        parts = [slice(i, i + TOGETHER) for i in range(0, len(x), TOGETHER)]
        found: Params = concat([fit_networks(take(starts, part), x[part], y[part], steps, rate) for part in parts])
        return found
    model, optimiser = functional(module((starts["head.weight"].shape[-1],))), adam()

    def loss(params: Params, rows: Tensor, wanted: Tensor) -> Tensor:
        return (model.apply(params, rows).squeeze(-1) - wanted).square().mean()

    gradient = torch.func.vmap(torch.func.grad(loss))
    params, memory = starts, optimiser.init(starts)
    for step in range(steps):
        now = rate * cosine(torch.tensor(float(step)), steps)
        params, memory = optimiser.update(params, gradient(params, x, y), memory, now)
    return {name: value.detach() for name, value in params.items()}


def starts(count: int, seed: int) -> Params:
    """Networks as a user would begin with, each from a seed of its own."""
    made = []
    for i in range(count):
        with seeded(100_000 * seed + i):
            made.append(functional(module()).params)
    found: Params = stack(made)
    return found


def draw_tasks(family: sine.Family, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Amplitude, phase and frequency of the seen and of the unseen tasks."""
    return sine.parameters(family, SEEN, draw), sine.parameters(family, UNSEEN, draw)


def train_pool(family: sine.Family, seed: int, steps: int = STEPS, place: Path | None = None) -> SinePool:
    """`SEEN` + `UNSEEN` networks of a family, 100 noiseless rows each; kept in the file `place` if there is one."""
    draw = generator(seed, 1)
    tasks = torch.cat(draw_tasks(family, draw))
    if place is not None and place.exists():
        params = read_tensors(place)[0]
    else:
        x = SPAN[0] + (SPAN[1] - SPAN[0]) * torch.rand(len(tasks), ROWS, generator=draw)
        params = fit_networks(starts(len(tasks), seed), x[..., None], sine.curve(tasks, x), steps)
        if place is not None:
            write_tensors(place, params)
    return SinePool(tasks[:SEEN], tasks[SEEN:], take(params, slice(SEEN)), take(params, slice(SEEN, None)))


def as_zoo(pool: SinePool, count: int = SEEN) -> Zoo:
    """The first `count` networks, described by amplitude and phase."""
    names = tuple(f"sine {i}" for i in range(count))
    table = pd.DataFrame(pool.seen[:count, :2].double().numpy(), columns=list(COLUMNS)).assign(model=names)
    return make_zoo(names, {name: value[:count].contiguous() for name, value in pool.params.items()}, table)


def describe(tasks: Tensor) -> pd.DataFrame:
    return pd.DataFrame(tasks[:, :2].double().numpy(), columns=list(COLUMNS))
