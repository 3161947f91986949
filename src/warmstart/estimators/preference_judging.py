"""Judging what is said of new users' ratings or clicks: errors and intervals by how many events they have shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from warmstart.core import Prediction
from warmstart.estimators.judging import LEFT_OUT, Calibration, scale
from warmstart.estimators.preference_chances import Chances, fit_chances
from warmstart.estimators.preference_contract import PreferenceMethod
from warmstart.metrics.errors import log_loss, squared_error
from warmstart.tasks.cold_start import SIZES, Protocol, Users, first, split_users
from warmstart.tasks.ratings import Ratings, take_users, to_batch, to_stack
from warmstart.tasks.split import Split

Predictor: TypeAlias = Callable[[Users], Prediction]
METRIC = {"squared": "MSE", "binary": "log loss"}  # what is chosen by
CALIBRATED = (*SIZES, 50)  # events for which validation users are asked apart


class Data(NamedTuple):
    train: Ratings
    validation: Users
    test: Users
    split: Split


def split_data(ratings: Ratings, seed: int, by_time: bool, context: Sequence[str] = ()) -> Data:
    """7 : 1 : 2 of users; those with a single event can only be trained on. Columns of events that are no context go.

    Of each user four fifths of the events are shown and the rest is asked about; with times, the first are shown.
    """
    ratings = ratings._replace(context=ratings.context[list(context)])
    parts = split_users(ratings, Protocol(lightest=1.0, least=2, by_time=by_time, seed=seed))
    judged = {name for part in parts[1:] for name in part.shown.users.index}
    rest = np.array([i for i, name in enumerate(ratings.users.index) if name not in judged])
    names = (tuple(sorted(map(str, part.shown.users.index))) for part in parts[1:])
    train = take_users(ratings, rest)
    return Data(train, parts.validation, parts.test, Split(tuple(sorted(map(str, train.users.index))), *names))


def predictor(method: PreferenceMethod, state: Any) -> Predictor:
    """A fitted method as a function of what users have shown and are asked."""

    def predict(users: Users) -> Prediction:
        adapted = method.finish(state, users.shown, method.observe(state, users.shown, None))
        return method.score(state, adapted, users.asked)

    return predict


def errors_of(predict: Predictor, users: Users) -> Tensor:
    """[users] squared error, or log loss of clicks."""
    score = log_loss if users.asked.kind == "binary" else squared_error
    return score(to_stack(users.asked, predict(users).mean.double()), to_batch(users.asked))


def user_errors(predict: Predictor, users: Users) -> Tensor:
    """[users] what is chosen by: the error, its mean over what they have shown: 0, 1, 2, 5, 10, 20 and all they may."""
    shown = [first(users, size) for size in SIZES] + [users]
    return torch.stack([errors_of(predict, some) for some in shown]).mean(0)


def mean_error(predict: Predictor, users: Users) -> float:
    return float(user_errors(predict, users).nanmean())


def calibrate(predict: Predictor, users: Users, sizes: Sequence[int] = CALIBRATED) -> Calibration | Chances:
    """Conformal scores of validation users; of clicks, how chances are put right by them."""
    if users.asked.kind == "binary":
        return fit_chances(predict, users, sizes)
    return conformal(predict, users, sizes)


def conformal(predict: Predictor, users: Users, sizes: Sequence[int] = CALIBRATED) -> Calibration:
    """Scores at each size of the users who have shown as many events."""
    batch, count = to_batch(users.asked), np.bincount(users.shown.user, minlength=len(users.shown.users))
    scores = []
    for size in sizes:
        said = predict(first(users, size))
        far = (torch.from_numpy(users.asked.value) - said.mean.double()).abs() / scale(said).double()
        there = torch.from_numpy(count >= size).unsqueeze(-1)
        scores.append(torch.where(there, to_stack(users.asked, far), LEFT_OUT))
    return Calibration(torch.tensor(list(sizes)), torch.stack(scores), batch.mask)
