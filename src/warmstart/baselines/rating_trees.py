"""Gradient-boosted trees on what can be said of a user and an item before the rating is known.

Columns: the shrunk effects and what they predict, how often the item and how much the user rated, the residuals of
the support's items with like content, the profile, and the item's content. Training users show a random share of
their ratings; the effects they are told come from other users (cross-fitting), so that training looks like test.
Trees are LightGBM's where it is installed (extra `boost`), else scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from warmstart.baselines.rating_means import Bias, fit_bias, residuals, user_effects
from warmstart.baselines.rating_means import Config as Effects
from warmstart.core import Prediction
from warmstart.maths.bilinear import Floats, make_events
from warmstart.tasks.cold_start import Users
from warmstart.tasks.features import Features
from warmstart.tasks.profiles import fit_table, numbers_of
from warmstart.tasks.ratings import Ratings, take_rows, take_users


@dataclass(frozen=True)
class Config:
    trees: int = 200
    rate: float = 0.05
    leaves: int = 31
    smallest_leaf: int = 50
    l2: float = 10.0
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
        share = draw.random(len(own.users))
        shown = draw.random(len(own.value)) < share[own.user]
        drawn = Users(take_rows(own, shown), take_rows(own, ~shown), np.zeros(int(shown.sum()), dtype=np.int64))
        bias = fit_bias(others, cfg.effects)
        parts.append((columns(drawn, bias, _counts(others), profile, content, cfg), drawn.asked.value))
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    model = _model(cfg, seed).fit(x, y - x[:, 0])
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


def _counts(train: Ratings) -> Floats:
    """How often each item was rated, relative to the number of users, so that folds compare."""
    counted: Floats = 1000.0 * np.bincount(train.item, minlength=len(train.items)) / len(train.users)
    return counted


def _model(cfg: Config, seed: int) -> Any:
    if find_spec("lightgbm") is not None:
        from lightgbm import LGBMRegressor

        return LGBMRegressor(
            n_estimators=cfg.trees,
            learning_rate=cfg.rate,
            num_leaves=cfg.leaves,
            min_child_samples=cfg.smallest_leaf,
            reg_lambda=cfg.l2,
            random_state=seed,
            n_jobs=1,
            verbose=-1,
        )
    return HistGradientBoostingRegressor(
        max_iter=cfg.trees,
        learning_rate=cfg.rate,
        max_leaf_nodes=cfg.leaves,
        min_samples_leaf=cfg.smallest_leaf,
        l2_regularization=cfg.l2,
        early_stopping=False,
        random_state=seed,
    )
