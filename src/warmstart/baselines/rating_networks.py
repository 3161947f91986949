"""Networks that read a user's own numbers and an item: how they are trained, and how a new user joins.

    theta = argmin mean over ratings (say(theta, v_u, u, i) - r_ui)^2,      decayed weights, minibatches
    v_new = argmin sum over the support (say(theta, v, u, i) - r_ui)^2 + ridge |v - mean v_u|^2

on residuals r of the shrunk effects. A new user's numbers v start at the mean of all users, where one who shows
nothing stays; everything else is held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.baselines.rating_means import Config as Effects
from warmstart.baselines.rating_means import fit_bias, on_scale, residuals
from warmstart.core import Params, Prediction
from warmstart.engine.loop import run
from warmstart.engine.noise import generator
from warmstart.maths.optim import adam, cosine
from warmstart.maths.outer import Delta, Info, State, outer
from warmstart.tasks.cells import Floats
from warmstart.tasks.cold_start import Users
from warmstart.tasks.ratings import Ratings

# shared weights, the users' own numbers [b, k], their profiles [b, p], items [b] -> ratings [b]
Say: TypeAlias = Callable[[Params, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Training:
    epochs: int = 10
    batch: int = 1024
    rate: float = 5e-3  # at first; falls to zero as a cosine
    decay: float = 2.0  # of weights, per unit of rate
    ridge: float = 10.0  # of a new user's numbers
    steps: int = 60  # that fit them, ten times as fast
    effects: Effects = Effects()


class Rows(NamedTuple):
    user: Tensor
    item: Tensor
    left: Tensor  # what the effects do not explain


def fit_network(
    train: Ratings,
    say: Say,
    shared: Params,
    own: int,
    profile: Callable[[Ratings], Floats],
    cfg: Training,
    seed: int,
) -> Callable[[Users], Prediction]:
    """Each user has `own` numbers; `profile` gives the columns that describe users."""
    bias = fit_bias(train, cfg.effects)
    about = torch.from_numpy(profile(train)).float()
    rows = _rows(train, residuals(bias, train))
    first = 0.1 * torch.randn(len(about), own, generator=generator(seed, 1))
    batch = min(cfg.batch, len(rows.left))
    steps = cfg.epochs * -(-len(rows.left) // batch)
    out = outer(cfg.rate, steps, cfg.decay)

    def loss(theta: Any, some: Rows) -> Tensor:
        said = say(theta["shared"], theta["own"][some.user], about[some.user], some.item)
        return (said - some.left).square().mean()

    def advance(state: State, some: Rows) -> tuple[State, Info]:
        grads, value = torch.func.grad_and_value(loss)(state.theta, some)
        return out.update(state, Delta(grads), torch.ones_like(value)), Info(value)

    def source(step: int) -> Rows:
        drawn = torch.randint(len(rows.left), (batch,), generator=generator(seed, 2, step))
        return Rows(*(part[drawn] for part in rows))

    theta = run(advance, out.init({"shared": shared, "own": first}), source, steps)[0].theta

    def predict(new: Users) -> Prediction:
        known = torch.from_numpy(profile(new.shown)).float()
        middle = theta["own"].mean(0).expand(len(known), -1)
        found = join(say, theta["shared"], middle, known, _rows(new.shown, residuals(bias, new.shown)), cfg)
        user, item = torch.from_numpy(new.asked.user), torch.from_numpy(new.asked.item)
        with torch.no_grad():
            said = say(theta["shared"], found[user], known[user], item)
        return on_scale(new, bias, said.double().numpy())

    return predict


def join(say: Say, shared: Params, middle: Tensor, about: Tensor, shown: Rows, cfg: Training) -> Tensor:
    """[users, own] the numbers of new users, by steps of Adam; each user's are independent of the others'."""

    def loss(own: Tensor) -> Tensor:
        wrong = say(shared, own[shown.user], about[shown.user], shown.item) - shown.left
        return wrong.square().sum() + cfg.ridge * (own - middle).square().sum()

    optimiser, own = adam(), middle
    memory = optimiser.init(own)
    for _ in range(cfg.steps):
        rate = 10 * cfg.rate * cosine(memory.done, cfg.steps)
        own, memory = optimiser.update(own, torch.func.grad(loss)(own), memory, rate)
    return own


def _rows(ratings: Ratings, left: Floats) -> Rows:
    return Rows(torch.from_numpy(ratings.user), torch.from_numpy(ratings.item), torch.from_numpy(left).float())
