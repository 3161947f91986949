"""What a method for preferences is: it learns from ratings or clicks of many users and adapts to a new one's events.

Of clicks it tells the chance of each and, where it has one, the variance of that chance, not of the click. A method
that keeps sums over a user's events brings its own steps; one that only predicts from all events of a user becomes the
same by `by_events`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from warmstart.core import Prediction
from warmstart.engine.loop import Report
from warmstart.tasks.cells import Floats, Ints
from warmstart.tasks.cold_start import Users
from warmstart.tasks.features import Features
from warmstart.tasks.ratings import Ratings, join_ratings

Scores = tuple[
    NDArray[np.float32], NDArray[np.float32] | None
]  # [users, items]: mean, perhaps beyond the scale, and variance


Learn: TypeAlias = Callable[[Ratings, Users, Any, int, torch.device, Report], Any]
Open: TypeAlias = Callable[[Any, Any], Any]


def as_saved(config: Any, saved: Any) -> Any:
    """What is saved is what is worked with."""
    return saved


class PreferenceMethod(NamedTuple):
    config: Any  # the default
    space: Mapping[str, Sequence[Any]]  # what a search may try
    saved: type  # a named tuple of arrays, tensors, numbers, features and further ones
    learn: Learn  # training users, validation users to stop by, configuration, seed, where, progress -> what is saved
    observe: Callable[[Any, Ratings, Any], Any]  # State, events, Inner before or None -> Inner
    finish: Callable[[Any, Ratings, Any], Any]  # State, users, Inner -> Adapted
    score: Callable[[Any, Any, Ratings], Prediction]  # State, Adapted, events asked about -> one number for each
    catalogue: Callable[[Any, Any, Ints | None], Scores]  # State, Adapted, which items or all -> those for every user
    rates: Callable[[Any, Any], Floats] | None = None  # State, Adapted -> [users] learning rates
    open: Open = as_saved  # configuration, what is saved -> State: a network is made of its weights, say
    kinds: tuple[str, ...] = ("squared",)  # of what users say: ratings, or "binary", clicks
    context: Callable[[Any], Features] | None = None  # State -> columns and values of the context, where it is used


def by_events(
    config: Any,
    space: Mapping[str, Sequence[Any]],
    saved: type,
    learn: Learn,
    predict: Callable[[Any, Users], Prediction],
    rates: Callable[[Any, Ratings], Floats] | None = None,
    open: Open = as_saved,
    kinds: tuple[str, ...] = ("squared",),
    context: Callable[[Any], Features] | None = None,
) -> PreferenceMethod:
    """A method that adapts from all events of a user at once: what it has seen is the events themselves."""

    def observe(state: Any, shown: Ratings, before: Ratings | None) -> Ratings:
        return shown if before is None else join_ratings(before, shown)

    def finish(state: Any, users: Ratings, inner: Ratings) -> Ratings:
        return inner

    def score(state: Any, shown: Ratings, asked: Ratings) -> Prediction:
        return predict(state, Users(shown, asked, np.arange(len(shown.user)) - np.searchsorted(shown.user, shown.user)))

    def catalogue(state: Any, shown: Ratings, which: Ints | None) -> Scores:
        return score_each(score, state, shown, shown, which, {})

    return PreferenceMethod(config, space, saved, learn, observe, finish, score, catalogue, rates, open, kinds, context)


def score_each(
    score: Callable[[Any, Any, Ratings], Prediction],
    state: Any,
    adapted: Any,
    users: Ratings,
    which: Ints | None,
    context: Mapping[str, Any],
) -> Scores:
    """What a method says of some items, or all, for every user, shown in one context."""
    everybody = np.arange(len(users.users))
    around = pd.DataFrame(dict(context), index=range(len(everybody)))
    return score_in(score, state, adapted, users, everybody, which, around)


def score_in(
    score: Callable[[Any, Any, Ratings], Prediction],
    state: Any,
    adapted: Any,
    users: Ratings,
    who: Ints,
    which: Ints | None,
    around: pd.DataFrame,
) -> Scores:
    """[rows, items]: the same for a user and a context in each row."""
    items = np.arange(len(users.items)) if which is None else which
    rows = np.repeat(np.arange(len(who)), len(items))
    nothing = np.zeros(len(rows))
    asked = users._replace(
        user=who[rows],
        item=np.tile(items, len(who)),
        value=nothing,
        time=nothing,
        context=around.iloc[rows].reset_index(drop=True),
    )
    said = score(state, adapted, asked)
    mean = said.mean.numpy().astype(np.float32).reshape(len(who), len(items))
    variance = getattr(said.variance, "numpy", lambda: None)()
    return mean, None if variance is None else variance.astype(np.float32).reshape(mean.shape)
