"""Alternating least squares: effects of items and users, and factors of both, with a new user folded in.

    y = mu + b_i + b_u + q_i . p_u,      ridge regressions of p on q and of q on p in turn

A new user's p is one more ridge regression, on the support. Hu, Koren and Volinsky, 2008; Koren et al., 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from warmstart.baselines.rating_means import Bias, fit_bias, on_scale, residuals
from warmstart.baselines.rating_means import Config as Effects
from warmstart.core import Prediction
from warmstart.maths.bilinear import Events, Floats, Side, condition, gather, make_events
from warmstart.tasks.cold_start import Users
from warmstart.tasks.ratings import Ratings


@dataclass(frozen=True)
class Config:
    factors: int = 16
    user_ridge: float = 8.0
    item_ridge: float = 8.0
    sweeps: int = 10
    effects: Effects = Effects()


SPACE: dict[str, list[Any]] = {
    "factors": [8, 16, 32],
    "user_ridge": [4.0, 8.0, 16.0],
    "item_ridge": [4.0, 8.0, 16.0],
}


class Factors(NamedTuple):
    """What is learned of items."""

    bias: Bias
    item: Floats  # [items, factors]


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    factors = factorise(train, cfg, seed)

    def predict(new: Users) -> Prediction:
        found, asked = fold_in(factors, new.shown, cfg), new.asked
        return on_scale(new, factors.bias, (found[asked.user] * factors.item[asked.item]).sum(1))

    return predict


def factorise(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Factors:
    bias = fit_bias(train, cfg.effects)
    shape = (len(train.users), len(train.items))
    events = make_events(train.user, train.item, residuals(bias, train), shape)
    back = events.turned
    items = np.random.default_rng(seed).normal(size=(shape[1], cfg.factors)) / cfg.factors**0.5
    for _ in range(cfg.sweeps):
        users = regress(events, items, cfg.user_ridge)
        items = regress(back, users, cfg.item_ridge)
    return Factors(bias, items)


def fold_in(factors: Factors, shown: Ratings, cfg: Config = Config()) -> Floats:
    """[users, factors] of users, new or not, from what they show."""
    left = residuals(factors.bias, shown)
    events = make_events(shown.user, shown.item, left, (len(shown.users), len(shown.items)))
    return regress(events, factors.item, cfg.user_ridge)


def regress(events: Events, other: Floats, ridge: float) -> Floats:
    """Ridge regression of each row's values on the other side's factors."""
    n, d = events.ones.shape[0], other.shape[1]
    sure = Side(other, np.zeros((len(other), 0, 0)), np.arange(0))
    zero = np.zeros((n, d))
    return condition(gather(events, sure), zero, np.arange(d), zero, np.eye(d) / ridge).mean
