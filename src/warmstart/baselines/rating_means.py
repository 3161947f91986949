"""Ratings by means: of all, of the user, of the item, and both shrunk, which is what any method must beat.

    y = mu + b_i + b_u,    b_i = sum (y - mu - b_u) / (n_i + item_shrink),    b_u likewise with user_shrink

Item effects come from training users, in turns with theirs; a new user's effect comes from the support.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from warmstart.core import Prediction
from warmstart.tasks.cells import Floats
from warmstart.tasks.cold_start import Users
from warmstart.tasks.ratings import Ratings

NEVER = float("inf")  # an effect shrunk by so much is zero


@dataclass(frozen=True)
class Config:
    item_shrink: float = 2.0  # ratings' worth of zero effect; inf leaves the effect out
    user_shrink: float = 8.0
    sweeps: int = 5  # in which items and training users take turns


GLOBAL_MEAN = Config(NEVER, NEVER)
USER_MEAN = Config(NEVER, 1e-9)
ITEM_MEAN = Config(1e-9, NEVER, 1)
SPACE: dict[str, list[Any]] = {
    "item_shrink": [1.0, 2.0, 4.0, 8.0, 16.0],
    "user_shrink": [2.0, 4.0, 8.0, 16.0],
}


class Bias(NamedTuple):
    centre: float
    item: Floats  # [items]
    user_shrink: float
    scale: tuple[float, float]


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    bias = fit_bias(train, cfg)

    def predict(users: Users) -> Prediction:
        return on_scale(users, bias, np.zeros(len(users.asked.value)))

    return predict


def fit_bias(train: Ratings, cfg: Config = Config()) -> Bias:
    bias = Bias(float(train.value.mean()), np.zeros(len(train.items)), cfg.user_shrink, train.scale)
    for _ in range(cfg.sweeps):
        left = train.value - bias.centre - user_effects(bias, train)[train.user]
        bias = bias._replace(item=effects(train.item, left, len(train.items), cfg.item_shrink))
    return bias


def user_effects(bias: Bias, shown: Ratings) -> Floats:
    """[users], 0 for one who has shown nothing."""
    return effects(shown.user, shown.value - bias.centre - bias.item[shown.item], len(shown.users), bias.user_shrink)


def residuals(bias: Bias, shown: Ratings) -> Floats:
    """What items and users do not explain, one number per event."""
    left: Floats = shown.value - bias.centre - bias.item[shown.item] - user_effects(bias, shown)[shown.user]
    return left


def on_scale(users: Users, bias: Bias, more: Floats) -> Prediction:
    """Both effects and `more`, one number per event asked about, kept on the scale."""
    asked = users.asked
    told = bias.centre + bias.item[asked.item] + user_effects(bias, users.shown)[asked.user] + more
    return Prediction(torch.from_numpy(np.clip(told, *bias.scale)))


def effects(index: Any, values: Floats, size: int, shrink: float) -> Floats:
    """Shrunk means of the values of each index."""
    count = np.bincount(index, minlength=size)
    found: Floats = np.bincount(index, values, minlength=size) / np.maximum(count + shrink, 1e-9)
    return found
