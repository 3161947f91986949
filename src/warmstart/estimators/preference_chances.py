"""Chances of clicks that mean what they say: put right by validation users, with intervals.

    logit p' = shift + slope logit p,      a pair for each number of events shown,      shift, log slope ~ N(0, prior)

Platt, 1999. Every validation user counts once; the prior keeps few of them from changing much. As a slope is above
zero, the order of a user's items stays. A chance is never seen, only whether a click came, so an interval is what the
method believes of the user: logit p +- z sd, put right alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit

from warmstart.core import Prediction
from warmstart.metrics.errors import SMALLEST
from warmstart.metrics.intervals import z_score
from warmstart.tasks.cells import Floats, Ints
from warmstart.tasks.cold_start import Users, first
from warmstart.tasks.ratings import Ratings

SHIFT, SLOPE = 1.0, 0.5  # standard deviations of the prior


class Chances(NamedTuple):
    """How chances are put right, by how many events users have shown."""

    sizes: Ints  # [s]
    shift: Floats  # [s]
    slope: Floats  # [s]


def fit_chances(predict: Callable[[Users], Prediction], users: Users, sizes: Sequence[int]) -> Chances:
    found = [_fit(predict(first(users, size)).mean.double().numpy(), users.asked) for size in sizes]
    return Chances(np.array(sizes), *np.array(found).T)


def put_right(
    chances: Chances, mean: NDArray[Any], variance: NDArray[Any] | None, shown: Ints
) -> tuple[Floats, Floats | None]:
    """The same for rows whose users have shown so many events."""
    place = np.maximum(np.searchsorted(chances.sizes, shown, side="right"), 1) - 1
    said = expit(chances.shift[place] + chances.slope[place] * _logit(mean))
    if variance is None:
        return said, None
    spread = chances.slope[place] * _spread(mean, variance)
    return said, (said * (1 - said) * spread) ** 2


def chance_interval(mean: Floats, variance: Floats, level: float) -> tuple[Floats, Floats]:
    half = z_score(level) * _spread(mean, variance)
    return expit(_logit(mean) - half), expit(_logit(mean) + half)


def put_right_by(predict: Callable[[Users], Prediction], chances: Chances) -> Callable[[Users], Prediction]:
    """A predictor of clicks whose chances are put right."""

    def again(users: Users) -> Prediction:
        shown = np.bincount(users.shown.user, minlength=len(users.shown.users))[users.asked.user]
        return Prediction(torch.from_numpy(put_right(chances, predict(users).mean.numpy(), None, shown)[0]))

    return again


def _fit(said: Floats, asked: Ratings) -> tuple[float, float]:
    """Shift and slope."""
    given, sign = _logit(said), 2 * asked.value - 1
    weight = 1 / np.bincount(asked.user, minlength=len(asked.users))[asked.user]

    def loss(point: Floats) -> tuple[float, Floats]:
        slope = np.exp(point[1])
        margin = sign * (point[0] + slope * given)
        back = -weight * expit(-margin) * sign
        prior = point / np.array([SHIFT, SLOPE]) ** 2
        value = -(weight * log_expit(margin)).sum() + 0.5 * (prior * point).sum()
        return value, prior + np.array([back.sum(), slope * (back * given).sum()])

    found = minimize(loss, np.zeros(2), jac=True).x
    return float(found[0]), float(np.exp(found[1]))


def _logit(mean: NDArray[Any]) -> Floats:
    found: Floats = logit(np.clip(mean.astype(np.float64), SMALLEST, 1 - SMALLEST))
    return found


def _spread(mean: NDArray[Any], variance: NDArray[Any]) -> Floats:
    """Of the logit."""
    kept = np.clip(mean.astype(np.float64), SMALLEST, 1 - SMALLEST)
    found: Floats = np.sqrt(variance) / (kept * (1 - kept))
    return found
