"""Items that are liked by the same users: nearest neighbours, and EASE, both on what effects leave over.

    neighbours   r_ui = sum_j s_ij r_uj / (sum_j |s_ij| + damping),   s: correlation, shrunk by common raters
    EASE         r_ui = sum_j B_ij r_uj,   B = I - P diag(1 / P_jj),   P = (R'R + ridge I)^-1

with j over the items of the support. Sarwar et al., 2001; Steck, 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstart.baselines.rating_means import Config as Effects
from warmstart.baselines.rating_means import fit_bias, on_scale, residuals
from warmstart.core import Prediction
from warmstart.maths.bilinear import Events, Floats, make_events
from warmstart.tasks.cold_start import Users
from warmstart.tasks.ratings import Ratings


@dataclass(frozen=True)
class Neighbours:
    nearest: int = 40  # items of the support that count
    common: float = 50.0  # users' worth of shrinkage of a correlation
    damping: float = 1.0
    most: int = 6000  # items, the most rated, that may have neighbours
    effects: Effects = Effects()


@dataclass(frozen=True)
class Ease:
    ridge: float = 300.0
    most: int = 6000
    effects: Effects = Effects()


NEIGHBOURS_SPACE: dict[str, list[Any]] = {
    "nearest": [20, 40, 80],
    "common": [25.0, 50.0, 100.0],
    "damping": [0.3, 1.0, 2.0],
}
EASE_SPACE: dict[str, list[Any]] = {"ridge": [100.0, 200.0, 400.0]}


def fit_neighbours(train: Ratings, cfg: Neighbours = Neighbours(), seed: int = 0) -> Callable[[Users], Prediction]:
    bias = fit_bias(train, cfg.effects)
    kept, place = most_rated(train, cfg.most)
    events = _events(train, residuals(bias, train))
    ones, left = events.ones[:, kept], events.values[:, kept]
    product, square = (left.T @ left).toarray(), left.multiply(left).tocsr()
    shared = (square.T @ ones).toarray()  # sum over common raters of r_ui^2
    common = (ones.T @ ones).toarray()
    similar = product / np.sqrt(np.maximum(shared * shared.T, 1e-12)) * common / (common + cfg.common)
    np.fill_diagonal(similar, 0.0)

    def one(told: Floats, shown: Any, asked: Any) -> Floats:
        near = similar[np.ix_(asked, shown)]
        if near.shape[1] > cfg.nearest:
            edge = -np.partition(-np.abs(near), cfg.nearest - 1, axis=1)[:, cfg.nearest - 1 : cfg.nearest]
            near = np.where(np.abs(near) >= edge, near, 0.0)
        found: Floats = near @ told / (np.abs(near).sum(1) + cfg.damping)
        return found

    return lambda users: on_scale(users, bias, _each(users, residuals(bias, users.shown), place, one))


def fit_ease(train: Ratings, cfg: Ease = Ease(), seed: int = 0) -> Callable[[Users], Prediction]:
    bias = fit_bias(train, cfg.effects)
    kept, place = most_rated(train, cfg.most)
    left = _events(train, residuals(bias, train)).values[:, kept]
    gram = (left.T @ left).toarray()
    gram[np.diag_indices_from(gram)] += cfg.ridge
    inverse = np.linalg.inv(gram)
    weight = -inverse / np.diag(inverse)  # column i holds what predicts item i
    np.fill_diagonal(weight, 0.0)

    def one(told: Floats, shown: Any, asked: Any) -> Floats:
        found: Floats = told @ weight[np.ix_(shown, asked)]
        return found

    return lambda users: on_scale(users, bias, _each(users, residuals(bias, users.shown), place, one))


def most_rated(train: Ratings, most: int) -> tuple[Any, Any]:
    """The rated items, at most so many, and each item's place among them, -1 for the others."""
    count = np.bincount(train.item, minlength=len(train.items))
    order = np.argsort(-count, kind="stable")[: min(most, int((count > 0).sum()))]
    place = np.full(len(count), -1)
    place[order] = np.arange(len(order))
    return order, place


def _events(ratings: Ratings, values: Floats) -> Events:
    return make_events(ratings.user, ratings.item, values, (len(ratings.users), len(ratings.items)))


def _each(users: Users, told: Floats, place: Any, one: Callable[[Floats, Any, Any], Floats]) -> Floats:
    """`one` for each user, over those of the items that have a place; 0 for the others."""
    shown, asked = users.shown, users.asked
    found = np.zeros(len(asked.value))
    rows = [np.flatnonzero(place[part.item] >= 0) for part in (shown, asked)]
    owners = [part.user[row] for part, row in zip((shown, asked), rows, strict=True)]
    starts, ends = (
        [np.searchsorted(owner, np.arange(len(shown.users)), side) for owner in owners] for side in ("left", "right")
    )
    for user in range(len(shown.users)):
        have, want = (rows[i][starts[i][user] : ends[i][user]] for i in (0, 1))
        if len(have) and len(want):
            found[want] = one(told[have], place[shown.item[have]], place[asked.item[want]])
    return found
