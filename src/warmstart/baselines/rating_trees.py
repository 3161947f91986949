"""Gradient-boosted trees on what can be said of a user and an item before the rating is known.

Columns: the shrunk effects and what they predict, how often the item and how much the user rated, the residuals of
the support's items with like content, the profile, and the item's content. Training users show any share of their
ratings, and once more only few; the effects they are told come from other users (cross-fitting), so that training
looks like test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from warmstart.baselines.rating_means import Bias, fit_bias, residuals, user_effects
from warmstart.baselines.rating_means import Config as Effects
from warmstart.core import Prediction
from warmstart.maths.bilinear import Floats, make_events
from warmstart.maths.trees import Trees, make_trees
from warmstart.tasks.cold_start import SIZES, Users
from warmstart.tasks.features import Features
from warmstart.tasks.profiles import fit_table, numbers_of
from warmstart.tasks.ratings import Ratings, take_rows, take_users


@dataclass(frozen=True)
class Config(Trees):
    folds: int = 3  # of training users
    share: float = 0.05  # of items that must have a column of content for trees to see it
    effects: Effects = Effects()


SPACE: dict[str, list[Any]] = {"trees": [100, 200, 400], "rate": [0.05, 0.1], "leaves": [15, 31]}


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    profile = fit_table(train.users, "users")
    content = numbers_of(fit_table(train.items, "items"), train.items, "items")
    draw = np.random.default_rng(seed)
    fold = draw.permutation(len(train.users)) % min(cfg.folds, len(train.users))
    parts = []
    for held in range(int(fold.max()) + 1):
        others, own = (take_users(train, np.flatnonzero(pick)) for pick in (fold != held, fold == held))
        bias = fit_bias(others, cfg.effects)
        for shown in _shown(own, draw):
            drawn = Users(take_rows(own, shown), take_rows(own, ~shown), np.zeros(int(shown.sum()), dtype=np.int64))
            parts.append((columns(drawn, bias, _counts(others), profile, content, cfg), drawn.asked.value))
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    model = make_trees(cfg, seed).fit(x, y - x[:, 0])
    bias, counts = fit_bias(train, cfg.effects), _counts(train)

    def predict(users: Users) -> Prediction:
        about = columns(users, bias, counts, profile, content, cfg)
        told = about[:, 0] + (model.predict(about) if len(about) else 0.0)
        return Prediction(torch.from_numpy(np.clip(told, *train.scale)))

    return predict


def columns(users: Users, bias: Bias, counts: Floats, profile: Features, content: Floats, cfg: Config) -> Floats:
    """[asked, columns]; the first is what the effects predict."""
    shown, asked = users.shown, users.asked
    effect = user_effects(bias, shown)
    left = residuals(bias, shown)
    ones, values, squares = make_events(shown.user, shown.item, left, (len(shown.users), len(content)))
    unit = content / np.maximum(np.linalg.norm(content, axis=1, keepdims=True), 1e-9)
    liked, seen = values @ unit, ones @ np.abs(unit)
    like = (liked[asked.user] * unit[asked.item]).sum(1)
    near = (seen[asked.user] * np.abs(unit[asked.item])).sum(1)
    number = ones.sum(1)
    spread = np.sqrt((squares.sum(1) + 5.0) / (number + 5.0))
    item, user = bias.item[asked.item], effect[asked.user]
    own = [
        bias.centre + item + user,
        item,
        user,
        np.log1p(counts[asked.item]),
        np.log1p(number)[asked.user],
        spread[asked.user],
        like / (near + 1.0),
        near,
    ]
    frequent = content[:, (content != 0).mean(0) >= cfg.share]
    about = numbers_of(profile, shown.users, "users")
    return np.concatenate([np.stack(own, 1), about[asked.user], frequent[asked.item]], 1)


def _shown(ratings: Ratings, draw: np.random.Generator) -> list[Any]:
    """Which events training users show, at random: any share of them, and as few as at one of the sizes judged."""
    count = np.bincount(ratings.user, minlength=len(ratings.users))
    few = draw.choice(SIZES, size=len(count)) / np.maximum(count, 1)
    return [draw.random(len(ratings.value)) < share[ratings.user] for share in (draw.random(len(count)), few)]


def _counts(train: Ratings) -> Floats:
    """How often each item was rated, relative to the number of users, so that folds compare."""
    counted: Floats = 1000.0 * np.bincount(train.item, minlength=len(train.items)) / len(train.users)
    return counted
