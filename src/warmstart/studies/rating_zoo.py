"""Pools of rating models: users are tasks (or, with the table turned, items), and a factorisation trains their models.

    r_ui = (mu + b_u) + b_i + p_u . q_i

So the model of a user is one linear layer that reads [q_i, b_i] of an item: weights [p_u, 1], bias mu + b_u. All of
a pool share one basis, and there is nothing to align. Ratings of *context* items are no part of it: they describe the
users, seen and unseen alike, by the shrunk effect, how many there are and coordinates of a factorisation of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from warmstart.baselines import rating_als
from warmstart.baselines.rating_means import Config as Effects
from warmstart.baselines.rating_means import user_effects
from warmstart.fusion.zoo import Zoo, make_zoo
from warmstart.tasks.cells import Floats
from warmstart.tasks.cold_start import Users
from warmstart.tasks.ratings import Ratings, join_ratings, take_rows, take_users

SEEN, CONTEXT = 800, 300  # by number: users after the first, items up to the second
FEWEST = 10  # ratings by seen users that an item must have to be drawn as unseen
# a pool that shrinks its models little leaves the shrinking to whoever fuses them
MODELS = rating_als.Config(user_ridge=2.0, item_ridge=8.0, effects=Effects(2.0, 2.0))
TASTES = rating_als.Config(factors=16)  # of ratings on context

Mask = NDArray[np.bool_]


class Split(NamedTuple):
    train: Ratings  # seen tasks, without context: what the pool's models are trained on
    meta: Ratings  # seen tasks on context
    new: Users  # unseen tasks: context is shown, the rest is asked

    @property
    def seen(self) -> Ratings:
        """All ratings of the seen tasks, which fusion has not."""
        return join_ratings(self.meta, self.train)


class RatingPool(NamedTuple):
    zoo: Zoo
    known: pd.DataFrame  # descriptors of the unseen tasks
    inputs: Tensor  # [items, dims + 1] what a model reads of each
    compared: Tensor  # those of them that somebody rated
    factors: rating_als.Factors


def numbers(names: pd.Index[Any]) -> NDArray[np.int64]:
    return names.astype(int).to_numpy()


def cut(ratings: Ratings, unseen: Mask, context: Mask) -> Split:
    seen, new = (take_users(ratings, np.flatnonzero(pick)) for pick in (~unseen, unseen))
    on, told = context[seen.item], context[new.item]
    shown = Users(take_rows(new, told), take_rows(new, ~told), np.zeros(int(told.sum()), dtype=np.int64))
    return Split(take_rows(seen, ~on), take_rows(seen, on), shown)


def new_users(ratings: Ratings, drawn: int | None) -> tuple[Mask, Mask]:
    """Which users are unseen: those after number 800, or as many drawn by a seed; and which items are context."""
    unseen = numbers(ratings.users.index) > SEEN
    if drawn is not None:
        unseen = unseen[np.random.default_rng(drawn).permutation(len(unseen))]
    return unseen, numbers(ratings.items.index) <= CONTEXT


def split_users(ratings: Ratings, drawn: int | None = None) -> Split:
    return cut(ratings, *new_users(ratings, drawn))


def split_items(ratings: Ratings, drawn: int) -> Split:
    """The table turned: a tenth of the items is unseen; context are the unseen users, whom the pool does not know."""
    unseen, context = new_users(ratings, None)
    turned = turn(ratings)
    kept = take_users(turned, np.flatnonzero(~context))
    count = np.bincount(kept.user[~unseen[kept.item]], minlength=len(kept.users))
    often = np.flatnonzero(count >= FEWEST)
    kept = take_users(kept, often)
    order = np.random.default_rng(drawn).permutation(len(often))
    return cut(kept, order < len(often) // 10, unseen)


def turn(ratings: Ratings) -> Ratings:
    """Items in the place of users."""
    rows = take_rows(ratings, np.argsort(ratings.item, kind="stable"))
    return rows._replace(user=rows.item, item=rows.user, users=ratings.items, items=ratings.users)


def describe(split: Split, columns: Sequence[str], seed: int) -> list[pd.DataFrame]:
    """Of seen and of unseen tasks, one row each: what their ratings on context say, and columns of their table."""
    factors = rating_als.factorise(split.meta, TASTES, seed)
    found: list[pd.DataFrame] = []
    axes = np.eye(TASTES.factors)
    for shown in (split.meta, split.new.shown):
        taste = rating_als.fold_in(factors, shown, TASTES)
        if not found:  # principal axes of the seen tasks, largest first
            axes = np.linalg.svd(taste - taste.mean(0), full_matrices=False)[2].T
        count = np.bincount(shown.user, minlength=len(shown.users))
        told: dict[str, Floats] = {"effect": user_effects(factors.bias, shown), "count": np.log1p(count)}
        told |= {f"taste {k + 1}": part for k, part in enumerate((taste @ axes).T)}
        found.append(pd.DataFrame(told).join(shown.users[list(columns)].reset_index(drop=True)))
    return found


def train_pool(split: Split, dims: int, seed: int, columns: Sequence[str] = ()) -> RatingPool:
    """One model for each seen task; of tasks with the same descriptor the first is kept."""
    cfg = replace(MODELS, factors=dims)
    factors = rating_als.factorise(split.train, cfg, seed)
    own = rating_als.fold_in(factors, split.train, cfg)
    level = factors.bias.centre + user_effects(factors.bias, split.train)
    seen, known = describe(split, columns, seed)
    kept = np.flatnonzero(~seen.duplicated().to_numpy())
    weight = np.concatenate([own, np.ones((len(own), 1))], 1)[kept]
    params = {
        "0.weight": torch.from_numpy(weight[:, None]).float(),
        "0.bias": torch.from_numpy(level[kept, None]).float(),
    }
    names = tuple(map(str, split.train.users.index[kept]))
    zoo = make_zoo(names, params, seen.iloc[kept].assign(task=names), "task")
    inputs = torch.from_numpy(np.concatenate([factors.item, factors.bias.item[:, None]], 1)).float()
    rated = np.bincount(split.train.item, minlength=len(inputs)) > 0
    return RatingPool(zoo, known, inputs, inputs[torch.from_numpy(rated)], factors)
