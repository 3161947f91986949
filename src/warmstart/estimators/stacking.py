"""A boosted stack: what several predictors say of an event, combined by trees; the rival of any single learner.

    level one   held-out training users at every support size: each member, fitted on the users of the other
                folds, says what it thinks of the events that are not shown
    blend       y ~ ridge regression on the members, separately where more or less has been shown
    trees       what the blend leaves over, from the members, the number of events and how often the item was rated

Nothing of a new user but the support is read: members, blend and trees know training users alone. Every user weighs
the same, as in the errors that are reported. Wolpert, 1992; van der Laan, Polley and Hubbard, 2007.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from warmstart.core import InputError, Prediction
from warmstart.maths.bilinear import Floats
from warmstart.maths.trees import Trees, make_trees
from warmstart.tasks.cold_start import PAPER, SIZES, Protocol, Users, first, reveal
from warmstart.tasks.ratings import Ratings, take_users

Predictor: TypeAlias = Callable[[Users], Prediction]
Fit: TypeAlias = Callable[[Ratings], Predictor]


@dataclass(frozen=True)
class Config:
    folds: int = 3  # of training users
    draws: int = 2  # ways in which each held-out user shows events
    sizes: tuple[int, ...] = SIZES  # support events that held-out users show, besides all of theirs
    protocol: Protocol = PAPER  # by which they show them
    ridge: float = 100.0  # of the blend, in users
    half: float = 5.0  # support events after which the blend is half way from that of none to that of many
    trees: Trees = Trees(trees=150, rate=0.03, leaves=8, smallest_leaf=500, l2=50.0)


class Level(NamedTuple):
    """What members say of events that they were not fitted on."""

    said: dict[str, Floats]
    number: Floats  # of events that the user has shown
    rated: Floats  # times that 1,000 training users rated the item
    value: Floats
    weight: Floats  # sums to 1 for each user and size


def level_one(train: Ratings, members: Mapping[str, Fit], cfg: Config = Config(), seed: int = 0) -> Level:
    """Rows to learn a combination from; each member is fitted once per fold."""
    if len(train.users) < cfg.folds or cfg.folds < 2:
        raise InputError(f"at least {max(cfg.folds, 2)} training users", f"{len(train.users)}", "pass more users")
    fold = np.random.default_rng(seed).permutation(len(train.users)) % cfg.folds
    parts: list[Level] = []
    for held in range(cfg.folds):
        others, own = (take_users(train, np.flatnonzero(pick)) for pick in (fold != held, fold == held))
        predictors = {name: fit(others) for name, fit in members.items()}
        for draw in range(cfg.draws):
            known = reveal(own, replace(cfg.protocol, seed=cfg.draws * seed + draw))
            for shown in (*(first(known, size) for size in cfg.sizes), known):
                parts.append(ask(predictors, shown, _rated(others)))
    said = {name: np.concatenate([part.said[name] for part in parts]) for name in members}
    return Level(said, *(np.concatenate(rest) for rest in zip(*(part[1:] for part in parts), strict=True)))


def ask(predictors: Mapping[str, Predictor], users: Users, rated: Floats) -> Level:
    """What the members say of each event asked about."""
    who, count = users.asked.user, len(users.shown.users)
    said = {name: predict(users).mean.double().numpy() for name, predict in predictors.items()}
    number = np.bincount(users.shown.user, minlength=count)[who].astype(float)
    asked = np.bincount(who, minlength=count)[who]
    return Level(said, number, rated[users.asked.item], users.asked.value, 1.0 / asked)


def combine(
    level: Level, names: Sequence[str], scale: tuple[float, float], cfg: Config, seed: int
) -> Callable[[Level], Floats]:
    """How to tell the value from what the named members say."""
    told, value, weight = _told(level, names), level.value, level.weight
    centre = float(np.average(value, weights=weight))
    blend = _blended(told - centre, level.number, cfg.half)
    root = np.sqrt(weight)[:, None]
    weights = np.linalg.solve(
        (blend * root).T @ (blend * root) + cfg.ridge * np.eye(blend.shape[1]),
        # the ridge pulls to the plain average of the members, with few rows too
        blend.T @ (weight * (value - centre)) + cfg.ridge * _average(len(names)),
    )

    def blended(told: Floats, number: Floats) -> Floats:
        found: Floats = centre + _blended(told - centre, number, cfg.half) @ weights
        return found

    def columns(level: Level, told: Floats, start: Floats) -> Floats:
        return np.column_stack([told, start, np.log1p(level.number), np.log1p(level.rated)])

    start = blended(told, level.number)
    model = make_trees(cfg.trees, seed)
    model.fit(columns(level, told, start), value - start, sample_weight=weight * len(weight) / weight.sum())

    def tell(level: Level) -> Floats:
        told = _told(level, names)
        start = blended(told, level.number)
        more = model.predict(columns(level, told, start)) if len(told) else 0.0
        return np.clip(start + more, *scale)

    return tell


def fit(train: Ratings, members: Mapping[str, Fit], cfg: Config = Config(), seed: int = 0) -> Predictor:
    """The stack of the members, each fitted on all training users, combined as held-out ones prefer."""
    level = level_one(train, members, cfg, seed)
    return assemble(train, {name: fit(train) for name, fit in members.items()}, level, cfg, seed)


def assemble(train: Ratings, predictors: Mapping[str, Predictor], level: Level, cfg: Config, seed: int) -> Predictor:
    """The same from members that are fitted already, so that stacks of some of them can share rows."""
    tell = combine(level, tuple(predictors), train.scale, cfg, seed)
    rated = _rated(train)
    return lambda users: Prediction(torch.from_numpy(tell(ask(predictors, users, rated))))


def _told(level: Level, names: Sequence[str]) -> Floats:
    return np.column_stack([level.said[name] for name in names])


def _blended(told: Floats, number: Floats, half: float) -> Floats:
    """Members as they weigh with nothing shown, and how that changes with more."""
    much = (number / (number + half))[:, None]
    return np.concatenate([told * (1 - much), told * much], 1)


def _average(members: int) -> Floats:
    return np.full(2 * members, 1.0 / members)


def _rated(train: Ratings) -> Floats:
    """Relative to the number of users, so that folds compare."""
    counted: Floats = 1000.0 * np.bincount(train.item, minlength=len(train.items)) / len(train.users)
    return counted
