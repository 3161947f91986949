"""Boosted trees on clicks: what is known of an impression (tasks/impressions.py) and what its user's support says.

Of the support: how many events, how much more than expected the user clicked, in all, in contexts like this one and
on items like this one. Training users show their first events: any share of them, 80 %, and only few; the shares of
clicks that they are told come from other users, so that training looks like test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from warmstart.core import Prediction
from warmstart.maths.bilinear import make_events
from warmstart.maths.trees import Trees, make_trees
from warmstart.tasks.cells import Floats, Ints
from warmstart.tasks.cold_start import SIZES, Users
from warmstart.tasks.impressions import Known, columns, context_of, fit_known, folds_of, users_in_order, without
from warmstart.tasks.ratings import Ratings, take_rows, take_users


@dataclass(frozen=True)
class Config(Trees):
    trees: int = 200
    rate: float = 0.03
    leaves: int = 15
    folds: int = 5
    shrink: float = 10.0  # impressions' worth of the mean in an item's share of clicks
    least: int = 50  # rows that must have a value of a table for it to count
    damping: float = 3.0  # events' worth of nothing in what the support says
    context: bool = True  # whether the context is seen


NO_CONTEXT = Config(context=False)
SPACE: dict[str, list[Any]] = {
    "trees": [100, 200, 400],
    "leaves": [8, 15, 31],
    "shrink": [5.0, 10.0, 20.0],
    "damping": [2.0, 3.0, 6.0],
}


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    if not cfg.context:
        train = _blind(train)
    train = users_in_order(train)
    known = fit_known(train, cfg.shrink, cfg.least)
    fold, draw = folds_of(train, cfg.folds, seed), np.random.default_rng(seed)
    parts = []
    for held in range(int(fold.max()) + 1):
        own, told = take_users(train, np.flatnonzero(fold == held)), without(known, train, fold, held, cfg.shrink)
        for users in _drawn(own, draw):
            parts.append((seen(told, users, cfg), users.asked.value))
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    model = make_trees(cfg, seed, clicks=True).fit(x, y)

    def predict(users: Users) -> Prediction:
        if not cfg.context:
            users = users._replace(shown=_blind(users.shown), asked=_blind(users.asked))
        found = model.predict_proba(seen(known, users, cfg))[:, 1] if len(users.asked.value) else np.zeros(0)
        return Prediction(torch.from_numpy(found))

    return predict


def seen(known: Known, users: Users, cfg: Config) -> Floats:
    """[asked, columns]"""
    shown, asked = users.shown, users.asked
    left = shown.value - known.rate[shown.item]
    count = np.bincount(shown.user, minlength=len(shown.users))
    level = np.bincount(shown.user, left, minlength=len(shown.users)) / (count + cfg.damping)
    left = left - level[shown.user]
    about = [known.rate[asked.item] + level[asked.user], level[asked.user], count[asked.user].astype(float)]
    of_shown, of_asked = context_of(known, shown), context_of(known, asked)
    for one, other in ((of_shown, of_asked), (known.content[shown.item], known.content[asked.item])):
        about += _alike(one, other, left, shown.user, asked.user, len(shown.users), cfg.damping)
    return np.concatenate([np.column_stack(about), columns(known, asked)], 1)


def _alike(
    one: Floats, other: Floats, left: Floats, who: Ints, asker: Ints, users: int, damping: float
) -> list[Floats]:
    """What the user's events that are like each event asked about left over on average, and how many those are."""
    one, other = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-9) for part in (one, other))
    ones, values, _ = make_events(who, np.arange(len(who)), left, (users, len(who)))
    near = ((ones @ np.abs(one))[asker] * np.abs(other)).sum(1)
    like = ((values @ one)[asker] * other).sum(1)
    return [like / (near + damping), near]


def _drawn(own: Ratings, draw: np.random.Generator) -> list[Users]:
    """Training users who show their first events: any share, most, and as few as at one of the sizes judged."""
    count = np.bincount(own.user, minlength=len(own.users))
    place = np.arange(len(own.user)) - np.searchsorted(own.user, own.user)
    sizes = (
        draw.random(len(count)) * count,
        np.minimum(np.round(0.8 * count), count - 1),
        draw.choice(SIZES, len(count)),
    )
    found = []
    for size in sizes:
        shown = place < size[own.user]
        found.append(Users(take_rows(own, shown), take_rows(own, ~shown), place[shown]))
    return found


def _blind(ratings: Ratings) -> Ratings:
    return ratings._replace(context=ratings.context.iloc[:, :0])
