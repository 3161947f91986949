"""Baselines for clicks: effects against the most likely ones, trees that see the context and the support."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from warmstart.baselines import click_means, click_trees
from warmstart.tasks.cold_start import CLICKS, everything, first, split_users
from warmstart.tasks.impressions import columns, cross_fitted, fit_known, folds_of
from warmstart.tasks.ratings import make_ratings, take_users

TREES = click_trees.Config(trees=40, rate=0.1, leaves=6, smallest_leaf=20, folds=3, shrink=4.0, least=3, damping=2.0)


@pytest.fixture(scope="module")
def parts():
    draw = np.random.default_rng(1)
    item_level, level = 0.8 * draw.normal(size=20), draw.normal(size=150)
    rows = []
    for user in range(150):
        for time, item in enumerate(draw.integers(0, 20, 16)):
            tab = draw.choice(["a", "b"])
            value = float(draw.random() < expit(item_level[item] + level[user] + (1.0 if tab == "b" else -1.0)))
            rows.append({"user": f"u{user}", "item": f"i{item}", "value": value, "time": time, "tab": tab})
    ratings = make_ratings(pd.DataFrame(rows), pd.DataFrame(), pd.DataFrame(), kind="binary")
    return split_users(ratings, replace(CLICKS, seed=2))


def loss(predict, users):
    said, y = predict(users).mean.numpy(), users.asked.value
    return -np.log(np.where(y > 0.5, said, 1 - said)).mean()


def test_effects_are_the_most_likely_ones():
    draw = np.random.default_rng(0)
    index, offset = draw.integers(0, 3, 40), draw.normal(size=40)
    y = (draw.random(40) < 0.7).astype(float)
    found = click_means.effects(index, y, offset, 4, 1.7)

    def penalised(b):
        s = offset + b[index]
        return -(y * s - np.log1p(np.exp(s))).sum() + 1.7 * (b**2).sum() / 2

    assert np.allclose(found, minimize(penalised, np.zeros(4)).x, atol=1e-3) and found[3] == 0


def test_every_step_helps(parts):
    train = everything(parts.train)
    rate, bias = (click_means.fit(train, cfg) for cfg in (click_means.CLICK_RATE, click_means.Config(2.0, 1.0)))
    blind, trees = (click_trees.fit(train, replace(TREES, context=seen)) for seen in (False, True))
    assert np.allclose(rate(parts.test).mean, train.value.mean(), atol=1e-6)
    assert loss(bias, parts.test) < loss(bias, first(parts.test, 0)) < loss(rate, parts.test)
    assert loss(trees, parts.test) < loss(trees, first(parts.test, 0))
    assert loss(trees, parts.test) < 0.93 * min(loss(bias, parts.test), loss(blind, parts.test))


def test_shares_of_clicks_come_from_other_users(parts):
    train = everything(parts.train)
    known, fold = fit_known(train, 4.0, 3), folds_of(train, 3, 7)
    found = cross_fitted(known, train, fold, 4.0)
    event = 123
    others = take_users(train, np.flatnonzero(fold != fold[train.user[event]]))
    same = others.item == train.item[event]
    expected = (others.value[same].sum() + 4.0 * others.value.mean()) / (same.sum() + 4.0)
    assert found[event, 0] == pytest.approx(expected)
    assert found[event, 1] == pytest.approx(np.log1p(1000 * same.sum() / len(others.users)))
    assert np.allclose(found[:, 2:], columns(known, train)[:, 2:])


def test_the_support_is_told_by_hand(parts):
    users = parts.test
    known = fit_known(everything(parts.train), 4.0, 3)
    told = click_trees.seen(known, users, TREES)
    event = 31
    user, asked = users.asked.user[event], users.asked
    own = users.shown.user == user
    left = users.shown.value[own] - known.rate[users.shown.item[own]]
    level = left.sum() / (own.sum() + 2.0)
    assert told[event, 1] == pytest.approx(level) and told[event, 2] == own.sum()
    alike = users.shown.context["tab"].to_numpy()[own] == asked.context["tab"].iloc[event]
    assert told[event, 3] == pytest.approx((left - level)[alike].sum() / (alike.sum() + 2.0))
    assert told[event, 4] == pytest.approx(alike.sum())
