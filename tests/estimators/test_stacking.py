"""The stack: rows out of fold, a blend that can be written down, and nothing but the support of a new user."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from warmstart.baselines import rating_als, rating_means
from warmstart.core import InputError, Prediction
from warmstart.estimators import stacking
from warmstart.maths.trees import Trees
from warmstart.metrics.errors import squared_error
from warmstart.tasks.cold_start import Protocol, Users, everything, first, split_users
from warmstart.tasks.ratings import take_users, to_batch, to_stack

CONFIG = stacking.Config(
    folds=4, draws=3, sizes=(0, 2, 6), protocol=Protocol(support=0.7), ridge=3.0, half=2.0, trees=Trees(20, 0.1, 4, 80)
)
PLAIN = replace(CONFIG, trees=Trees(trees=1, rate=1e-9))
MEMBERS = {
    "bias": lambda train: rating_means.fit(train, rating_means.Config(2.0, 3.0)),
    "als": lambda train: rating_als.fit(train, rating_als.Config(2, 2.0, 3.0)),
}


@pytest.fixture(scope="module")
def parts(simulated_ratings):
    return split_users(simulated_ratings(users=150), Protocol(lightest=1.0, seed=1))


def error(predict, users):
    return float(squared_error(to_stack(users.asked, predict(users).mean.double()), to_batch(users.asked)).mean())


def test_rows_are_out_of_fold_at_every_size_and_users_weigh_the_same(parts):
    train = everything(parts.train)
    fitted, told = [], []

    def member(others):
        fitted.append(set(others.users.index))

        def predict(users):
            assert not fitted[-1] & set(users.shown.users.index)
            told.append(len(users.shown.value))
            return Prediction(torch.zeros(len(users.asked.value)))

        return predict

    level = stacking.level_one(train, {"one": member}, CONFIG, seed=5)
    assert len(fitted) == 4 and set.intersection(*fitted) == set()
    assert len(told) == 4 * 3 * 4 and sum(told[::4]) == 0  # folds, draws, sizes
    assert level.weight.sum() == pytest.approx(len(train.users) * 3 * 4)
    assert len(np.unique(level.number)) > 3 and len(level.value) == len(level.said["one"])


def test_the_blend_is_the_ridge_regression_it_says():
    draw = np.random.default_rng(0)
    n = 500
    said = {"a": draw.normal(3, 1, n), "b": draw.normal(3, 1, n)}
    number = draw.integers(0, 9, n).astype(float)
    much = number / (number + 2.0)
    value = 3 + (1 - much) * (said["a"] - 3) + much * (0.2 * (said["a"] - 3) + 0.8 * (said["b"] - 3))
    level = stacking.Level(said, number, np.ones(n), value, draw.uniform(0.5, 1.5, n))
    found = stacking.combine(level, ["a", "b"], (-9.0, 9.0), replace(PLAIN, ridge=1e-9), 0)(level)
    assert np.abs(found - value).max() < 0.05
    shrunk = stacking.combine(level, ["a", "b"], (-9.0, 9.0), replace(PLAIN, ridge=1e9), 0)(level)
    average = (said["a"] + said["b"]) / 2  # but for a constant, which the trees put right
    assert np.allclose(shrunk - shrunk.mean(), average - average.mean(), atol=1e-4)
    assert np.average(shrunk, weights=level.weight) == pytest.approx(np.average(value, weights=level.weight))
    kept = stacking.combine(level, ["a", "b"], (2.5, 3.5), PLAIN, 0)(level)
    assert kept.min() == 2.5 and kept.max() == 3.5


def test_a_stack_is_as_good_as_its_best_member_and_reads_the_support_alone(parts):
    train = everything(parts.train)
    predict = stacking.fit(train, MEMBERS, CONFIG, 0)
    best = min(error(fit(train), parts.test) for fit in MEMBERS.values())
    assert error(predict, parts.test) < 1.03 * best
    said = predict(parts.test).mean
    hidden = parts.test.asked._replace(value=np.full(len(said), np.nan))
    assert torch.equal(predict(parts.test._replace(asked=hidden)).mean, said)
    order = np.arange(len(parts.test.shown.users))[::-2]
    some = Users(take_users(parts.test.shown, order), take_users(parts.test.asked, order), np.zeros(0))
    alone = to_stack(some.asked, predict(some).mean)
    assert torch.allclose(alone, to_stack(parts.test.asked, said)[order.copy(), : alone.shape[1]])
    assert torch.isfinite(predict(first(parts.test, 0)).mean).all()


def test_stacks_share_rows(parts):
    train = everything(parts.train)
    level = stacking.level_one(train, MEMBERS, CONFIG, 0)
    alone = stacking.level_one(train, {"als": MEMBERS["als"]}, CONFIG, 0)
    assert np.array_equal(level.said["als"], alone.said["als"]) and np.array_equal(level.weight, alone.weight)
    fitted = {name: fit(train) for name, fit in MEMBERS.items()}
    shared = stacking.assemble(train, fitted, level, CONFIG, 0)(parts.test).mean
    assert torch.equal(shared, stacking.fit(train, MEMBERS, CONFIG, 0)(parts.test).mean)


def test_too_few_users_are_refused(parts):
    few = take_users(everything(parts.train), np.arange(3))
    with pytest.raises(InputError, match="at least 4 training users"):
        stacking.level_one(few, MEMBERS, CONFIG)
