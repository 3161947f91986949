"""Empirical Bayes for clicks: what trees leave over is learned of each user, and known users do not matter."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit

from warmstart.baselines import click_means
from warmstart.core import InputError
from warmstart.learners import click_bayes as bayes
from warmstart.maths.trees import Trees
from warmstart.metrics.errors import log_loss
from warmstart.tasks.cold_start import CLICKS, everything, first, split_users
from warmstart.tasks.ratings import make_ratings, take_users, to_batch, to_stack

CONFIG = bayes.Config(
    trees=Trees(30, 0.1, 6, 20, 1.0), folds=4, shrink=4.0, least=3, choices=2, width=0.3, sweeps=40, rounds=5
)
LEVELS, TABS = 1.2, 0.9  # standard deviations of what users differ in


def simulate(users=400, seed=0):
    """Users with a level of their own and a taste for tab b of their own; items and tab a differ for all alike."""
    draw = np.random.default_rng(seed)
    item_level, level, taste = (
        0.8 * draw.normal(size=30),
        LEVELS * draw.normal(size=users),
        TABS * draw.normal(size=users),
    )
    rows = []
    for user in range(users):
        for time, item in enumerate(draw.integers(0, 30, 24)):
            tab = draw.choice(["a", "b"])
            logit = -0.3 + item_level[item] + level[user] + (tab == "b") * (0.7 + taste[user])
            value = float(draw.random() < expit(logit))
            rows.append({"user": f"u{user}", "item": f"i{item}", "value": value, "time": time, "tab": tab})
    return make_ratings(pd.DataFrame(rows), pd.DataFrame(), pd.DataFrame(), kind="binary")


@pytest.fixture(scope="module")
def parts():
    return split_users(simulate(), replace(CLICKS, seed=2))


@pytest.fixture(scope="module")
def state(parts):
    return bayes.learn(everything(parts.train), CONFIG, 0)


def loss(predict, users):
    return float(log_loss(to_stack(users.asked, predict(users).mean), to_batch(users.asked)).mean())


def test_the_prior_is_that_of_the_population(state):
    """What users differ in on each of the two tabs, and a slope of more than 1."""
    spread = sorted(state.cov[0, 0] + 2 * state.cov[0, c] + state.cov[c, c] for c in (2, 3))
    assert spread == pytest.approx([LEVELS**2, LEVELS**2 + TABS**2], rel=0.35)
    assert 1.0 < state.beta[1] < 1.8  # the trees average over users, so their logits are too small


def test_events_help_and_the_context_is_weighed(state, parts):
    def predict(users):
        return bayes.score(state, bayes.finish(state, users.shown), users.asked)

    losses = [loss(predict, first(parts.test, size)) for size in (0, 2, 5)] + [loss(predict, parts.test)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.85 * losses[0]
    level = bayes.fit(everything(parts.train), replace(CONFIG, choices=0, context=False), 0)
    assert losses[-1] < loss(level, parts.test)
    said = predict(parts.test).mean
    assert said.min() > 0 and said.max() < 1
    assert abs(float(said.mean()) - parts.test.asked.value.mean()) < 0.05


def test_what_is_asked_is_not_read(state, parts):
    users = bayes.finish(state, parts.test.shown)
    said = bayes.score(state, users, parts.test.asked).mean
    hidden = parts.test.asked._replace(value=np.full(len(said), np.nan))
    assert torch.equal(bayes.score(state, users, hidden).mean, said)


def test_ratings_are_refused(simulated_ratings):
    with pytest.raises(InputError, match="clicks of 0 and 1"):
        bayes.fit(simulated_ratings(users=30))


@pytest.mark.parametrize("share", [0.006, 0.03])
def test_rare_clicks_are_said_to_be_rare(share):
    """Clicks that depend on nothing: the chances said of unseen users are near their share, not pulled to a half."""
    draw, users = np.random.default_rng(4), 300
    frame = pd.DataFrame(
        {"user": np.repeat([f"u{i:03d}" for i in range(users)], 20), "time": np.tile(range(20), users)}
    )
    frame["item"] = [f"i{item}" for item in draw.integers(0, 20, len(frame))]
    frame["value"] = (draw.random(len(frame)) < share).astype(float)
    parts = split_users(make_ratings(frame, pd.DataFrame(), pd.DataFrame(), kind="binary"), replace(CLICKS, seed=0))
    train = everything(parts.train)
    state = bayes.learn(train, replace(CONFIG, sweeps=10), 0)
    for users in (first(parts.test, 0), parts.test):
        said = float(bayes.score(state, bayes.finish(state, users.shown), users.asked).mean.mean())
        assert 0.5 * train.value.mean() < said < 1.6 * train.value.mean()


def test_the_order_of_users_in_a_log_changes_nothing(parts, state):
    train = everything(parts.train)
    turned = bayes.learn(take_users(train, np.arange(len(train.users))[::-1]), CONFIG, 0)
    said = [bayes.score(one, bayes.finish(one, parts.test.shown), parts.test.asked).mean for one in (state, turned)]
    torch.testing.assert_close(*said, rtol=1e-6, atol=1e-8)


def test_settings_and_users_that_will_not_do_are_refused(parts):
    train = everything(parts.train)
    for wrong in ({"rounds": 0}, {"folds": 1}, {"trees": Trees(leaves=1)}, {"trees": Trees(trees=0)}):
        with pytest.raises(InputError, match=r"change them|raise them"):
            bayes.learn(train, replace(CONFIG, **wrong), 0)
    with pytest.raises(InputError, match="two training users"):
        bayes.learn(take_users(train, np.arange(1)), CONFIG, 0)
    with pytest.raises(InputError, match="above 0"):
        click_means.fit(train, click_means.Config(user_precision=0.0))
