"""Impressions as rows of numbers: what is known of one before it is clicked or not, and before its user shows anything.

Columns: the share of clicks of the item, shrunk to that of all, how often it was shown, the context, the profile and
the item's content. For training users the share comes from other users (cross-fitting), so that training looks like
test.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from warmstart.tasks.cells import Floats, Ints
from warmstart.tasks.features import Features
from warmstart.tasks.profiles import fit_table, numbers_of
from warmstart.tasks.ratings import Ratings, take_rows, take_users

SHARE = 20


class Known(NamedTuple):
    """How an impression becomes a row; fitted on training users alone."""

    rate: Floats  # [items] shrunk share of clicks
    often: Floats  # [items] log(1 + times that it was shown to 1,000 users)
    content: Floats  # [items, c]
    profile: Features
    context: Features


def fit_known(train: Ratings, shrink: float, least: int) -> Known:
    """`shrink`: impressions' worth of the mean in an item's share; `least`: rows that must have a value.

    In a side table of fewer than 20 times as many rows, one in 20 of them must.
    """
    few = {
        what: min(least, max(2, len(table) // SHARE))
        for what, table in (("items", train.items), ("users", train.users))
    }
    content = numbers_of(fit_table(train.items, "items", few["items"]), train.items, "items")
    profile = fit_table(train.users, "users", few["users"])
    return Known(*_rates(train, shrink), content, profile, fit_table(train.context, "context", least))


def columns(known: Known, events: Ratings) -> Floats:
    """[events, columns]; the first is the item's share of clicks."""
    about = numbers_of(known.profile, events.users, "users")[events.user]
    own = np.column_stack([known.rate[events.item], known.often[events.item]])
    return np.concatenate([own, context_of(known, events), about, known.content[events.item]], 1)


def context_of(known: Known, events: Ratings) -> Floats:
    return numbers_of(known.context, events.context, "context")


def users_in_order(train: Ratings) -> Ratings:
    """With users in the order of their names, so that what is learned does not depend on the order of a log."""
    return take_users(train, np.argsort(train.users.index.to_numpy(dtype=str), kind="stable"))


def folds_of(train: Ratings, folds: int, seed: int) -> Ints:
    """[users] the fold of each training user."""
    shuffled: Ints = np.random.default_rng(seed).permutation(len(train.users)) % min(folds, len(train.users))
    return shuffled


def without(known: Known, train: Ratings, fold: Ints, held: int, shrink: float) -> Known:
    """The same with shares of clicks that do not know the users of one fold."""
    rate, often = _rates(take_users(train, np.flatnonzero(fold != held)), shrink)
    return known._replace(rate=rate, often=often)


def cross_fitted(known: Known, train: Ratings, fold: Ints, shrink: float) -> Floats:
    """`columns` of every training event, told by the users of other folds."""
    parts, places = [], []
    for held in range(int(fold.max(initial=0)) + 1):
        rows = np.flatnonzero(fold[train.user] == held)
        parts.append(columns(without(known, train, fold, held, shrink), take_rows(train, rows)))
        places.append(rows)
    found: Floats = np.concatenate(parts)[np.argsort(np.concatenate(places))]
    return found


def _rates(train: Ratings, shrink: float) -> tuple[Floats, Floats]:
    count = np.bincount(train.item, minlength=len(train.items))
    clicks = np.bincount(train.item, train.value, minlength=len(train.items))
    rate = (clicks + shrink * train.value.mean()) / (count + shrink)
    return rate, np.log1p(1000.0 * count / len(train.users))
