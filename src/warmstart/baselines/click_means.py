"""Clicks by effects: the logit of all, of the item and of the user, each shrunk.

    logit P(click) = mu + b_i + b_u,      b_i ~ N(0, 1 / item_precision),      b_u likewise

Item effects come from training users, in turns with theirs, by Newton's steps; a new user's from the support.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit, logit

from warmstart.core import InputError, Prediction
from warmstart.tasks.cells import Floats, Ints
from warmstart.tasks.cold_start import Users
from warmstart.tasks.ratings import Ratings

STEPS = 4  # of Newton
NEVER = float("inf")  # an effect with so much precision is zero


@dataclass(frozen=True)
class Config:
    item_precision: float = 3.0
    user_precision: float = 2.0
    sweeps: int = 3  # in which items and training users take turns


CLICK_RATE = Config(NEVER, NEVER)
ITEM_RATE = Config(user_precision=NEVER)
USER_RATE = Config(item_precision=NEVER)
SPACE: dict[str, list[Any]] = {"item_precision": [1.5, 3.0, 6.0], "user_precision": [1.0, 2.0, 4.0]}


class Effects(NamedTuple):
    centre: float  # the logit of all
    item: Floats  # [items]
    user_precision: float


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    found = fit_effects(train, cfg)
    return lambda users: predict(found, users)


def fit_effects(train: Ratings, cfg: Config = Config()) -> Effects:
    if not min(cfg.item_precision, cfg.user_precision) > 0:
        got = f"{cfg.item_precision:g} and {cfg.user_precision:g}"
        raise InputError("precisions of items and users above 0", got, "raise them")
    centre = float(logit(np.clip(train.value.mean(), 1e-6, 1 - 1e-6)))
    item = np.zeros(len(train.items))
    for _ in range(cfg.sweeps):
        user = effects(train.user, train.value, centre + item[train.item], len(train.users), cfg.user_precision)
        item = effects(train.item, train.value, centre + user[train.user], len(train.items), cfg.item_precision)
    return Effects(centre, item, cfg.user_precision)


def predict(found: Effects, users: Users) -> Prediction:
    shown, asked = users.shown, users.asked
    offset = found.centre + found.item
    own = effects(shown.user, shown.value, offset[shown.item], len(shown.users), found.user_precision)
    return Prediction(torch.from_numpy(expit(offset[asked.item] + own[asked.user])))


def effects(index: Ints, y: Floats, offset: Floats, size: int, precision: float) -> Floats:
    """The most likely effect of each index, given the rest of the logit."""
    found = np.zeros(size)
    if not np.isfinite(precision):
        return found
    for _ in range(STEPS):
        p = expit(offset + found[index])
        slope = np.bincount(index, y - p, minlength=size) - precision * found
        found = found + slope / (np.bincount(index, p * (1 - p), minlength=size) + precision)
    return found
