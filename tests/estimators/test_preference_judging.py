"""Intervals of ratings are calibrated by the users who had shown as many."""

import numpy as np
import torch

from warmstart.core import Prediction
from warmstart.estimators.judging import LEFT_OUT, reaches
from warmstart.estimators.preference_judging import conformal
from warmstart.tasks.cold_start import PAPER, split_users


def test_users_who_had_shown_fewer_do_not_count(simulated_ratings):
    users = split_users(simulated_ratings(users=200), PAPER).validation
    count = np.bincount(users.shown.user, minlength=len(users.shown.users))
    size = int(np.median(count))
    wrong = np.where(count >= size, 3.0, 1.0)[users.asked.user]  # a method that is worse at users who show many

    def predict(shown):
        return Prediction(torch.from_numpy(users.asked.value - wrong), torch.full((len(wrong),), 4.0))

    found = conformal(predict, users, (0, size))
    real = found.mask > 0
    many = torch.from_numpy(count >= size).unsqueeze(1) & real
    assert 0 < int(many.any(1).sum()) < len(count)
    assert (found.scores[1][many] == 1.5).all() and (found.scores[1][real & ~many] == LEFT_OUT).all()
    assert (found.scores[0][real & ~many] == 0.5).all()
    assert reaches(found, 0.5).tolist()[1] == 1.5


def test_a_size_that_nobody_reached_is_as_the_one_before(simulated_ratings):
    users = split_users(simulated_ratings(users=200), PAPER).validation
    spread = Prediction(torch.from_numpy(users.asked.value + 1.0), torch.ones(len(users.asked.value)))
    assert reaches(conformal(lambda shown: spread, users, (0, 10_000)), 0.8).tolist() == [1.0, 1.0]
