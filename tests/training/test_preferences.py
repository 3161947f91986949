"""Learners on ratings: tasks hold what users showed, nothing of new users is fitted, and training beats its start."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from warmstart.baselines import rating_als, rating_means
from warmstart.learners import at_paml, melu, paml, pretrain
from warmstart.metrics.errors import squared_error
from warmstart.models.likelihoods import binary
from warmstart.models.preference import SLOW
from warmstart.tasks.cold_start import PAPER, everything, first, split_users
from warmstart.tasks.ratings import places, to_batch, to_stack
from warmstart.training.preferences import (
    CLICK,
    Network,
    Schedule,
    catalogue,
    fill_in,
    fit,
    fit_tables,
    to_tasks,
)

NET = Network(hidden=(8,), embedding=4, factors=4)
WEIGHTED = Network(hidden=(8,), embedding=4, factors=4, weights=CLICK)
SHORT = Schedule(epochs=15, users=16, look=3, patience=15)


@pytest.fixture(scope="module")
def parts(simulated_ratings):
    return split_users(simulated_ratings(users=160), PAPER)


def error(predict, users):
    return float(squared_error(to_stack(users.asked, predict(users).mean.double()), to_batch(users.asked)).nanmean())


def test_tasks_hold_the_events_of_their_users(parts):
    train = everything(parts.train)
    tables = fit_tables(train, NET)
    tasks = fill_in(to_tasks(tables, parts.test), catalogue(tables, parts.test.shown))
    shown = parts.test.shown
    assert tasks.support.mask.sum() == len(shown.value)
    for event in (0, 7, len(shown.value) - 1):
        at = shown.user[event], places(shown)[event]
        assert float(tasks.support.y[at]) == pytest.approx(shown.value[event] - tables.centre, abs=1e-5)
        name = str(shown.items.index[shown.item[event]])
        wanted = tables.item.values.index(name) + 2 if name in tables.item.values else 1
        assert int(tasks.support.x["categorical"][at][0]) == wanted
        kind = shown.users["kind"].iloc[shown.user[event]]
        vocabulary = next(part for part in tables.users.categorical if part.name == "kind")
        assert int(tasks.support.x["categorical"][at][1]) == vocabulary.values.index(kind) + 2
    padded = tasks.query.mask == 0
    assert float(tasks.query.y[padded].abs().sum()) == 0


def stretched(parts, by):
    """The same users with ratings on a scale that is so many times as wide."""

    def wider(ratings):
        return ratings._replace(value=by * ratings.value, scale=tuple(by * end for end in ratings.scale))

    return type(parts)(*(part._replace(shown=wider(part.shown), asked=wider(part.asked)) for part in parts))


@pytest.mark.parametrize("by", [1.0, 2.5])
def test_factors_of_items_start_at_those_of_a_factorisation_and_serve_who_fine_tunes(parts, by):
    """Training on the rows of all users tells one taste of all, and nothing of what tells users apart."""
    parts = stretched(parts, by)
    train, found = everything(parts.train), {}
    cfg = pretrain.Config(inner_lr=0.05, test_steps=5, shrink=8.0, outer_lr=1e-9)  # where it starts
    for factorised in (False, True):
        network = replace(NET, factorised=factorised)
        found[factorised] = fit(
            pretrain.build, train, cfg, 0, parts.validation, "cpu", network, replace(SHORT, epochs=3)
        )
    weight = found[True].state.theta["encoder.item.weight"]
    wanted = rating_als.factorise(train, rating_als.Config(factors=4), 0).item
    tables = fit_tables(train, NET)
    for place, name in enumerate(train.items.index):
        if str(name) in tables.item.values:
            row = SLOW * weight[tables.item.values.index(str(name)) + 2, :-1]
            near = torch.from_numpy(wanted[place] / by**0.5)  # their product with a user's is of targets in units
            torch.testing.assert_close(row.double(), near, rtol=1e-4, atol=1e-5)
    assert float(weight[:2, :-1].abs().sum()) == 0
    assert error(found[True].predict, parts.test) < error(found[False].predict, parts.test)


@pytest.mark.parametrize("identity", [True, False])
def test_learners_beat_where_they_start(parts, identity):
    train = everything(parts.train)
    network = Network(identity=identity, hidden=(8,), embedding=4, factors=4)
    cfg = paml.Config(rate=0.2, inner_steps=2, shrink=4.0, outer_lr=0.02)
    fitted = fit(paml.build, train, cfg, 0, parts.validation, network=network, schedule=SHORT)
    start = rating_means.fit(train, rating_means.Config() if identity else rating_means.GLOBAL_MEAN)
    assert error(fitted.predict, parts.test) < error(start, parts.test) - 0.01
    embedding, rate = fitted.about(parts.test)
    assert embedding.shape[0] == len(rate) == len(parts.test.shown.users) and float(rate.min()) > 0
    said = fitted.predict(parts.test).mean
    assert float(said.min()) >= 1 and float(said.max()) <= 5


def test_another_unit_of_the_ratings_changes_nothing_else(simulated_ratings):
    ratings, said = simulated_ratings(users=120), []
    for unit in (1.0, 20.0):
        scale = (unit * ratings.scale[0], unit * ratings.scale[1])
        parts = split_users(ratings._replace(value=unit * ratings.value, scale=scale), PAPER)
        cfg = paml.Config(rate=0.2, inner_steps=2, shrink=4.0, outer_lr=0.02)
        short = Schedule(epochs=2, users=16)
        fitted = fit(paml.build, everything(parts.train), cfg, 0, parts.validation, network=NET, schedule=short)
        said.append(fitted.predict(parts.test).mean / unit)
    torch.testing.assert_close(said[1], said[0], rtol=1e-4, atol=1e-4)


def test_a_warm_up_ends_with_the_first_epoch(parts):
    """With few users a hundred updates would be all there are, and every user would have the same rate."""
    cfg = at_paml.Config(warm_up=100, warm_rate=0.05, memory=64, ways=4)
    short = Schedule(epochs=2, users=16, look=1)
    fitted = fit(at_paml.build, everything(parts.train), cfg, 0, parts.validation, network=NET, schedule=short)
    rate = fitted.about(parts.test)[1]
    assert float(rate.std()) > 1e-6 and not (rate == 0.05).all()


def test_what_a_new_user_shows_matters_and_only_that(parts):
    train = everything(parts.train)
    cfg = melu.Config(inner_lr=0.1, shrink=4.0)
    fitted = fit(melu.build, train, cfg, 0, parts.validation, network=NET, schedule=SHORT)
    test = parts.test
    asked = test.asked._replace(value=np.full_like(test.asked.value, 5.0))
    torch.testing.assert_close(fitted.predict(test._replace(asked=asked)).mean, fitted.predict(test).mean)
    assert not torch.equal(fitted.predict(first(test, 0)).mean, fitted.predict(test).mean)


def test_nothing_of_other_users_is_seen(simulated_ratings):
    """Users of the test part give other ratings to other items: what was fitted says the same of the rest."""
    found = {}
    plain = split_users(simulated_ratings(users=120), PAPER)
    names = tuple(plain.test.shown.users.index)
    for changed in ((), names):
        parts = split_users(simulated_ratings(users=120, changed=changed), PAPER)
        cfg = at_paml.Config(warm_up=3, memory=64, ways=4)
        short = Schedule(epochs=2, users=16)
        found[changed] = fit(
            at_paml.build, everything(parts.train), cfg, 0, parts.validation, network=NET, schedule=short
        )
    torch.testing.assert_close(
        found[()].predict(plain.validation).mean, found[names].predict(plain.validation).mean, rtol=0, atol=0
    )


def test_predictions_do_not_depend_on_the_order_of_users(parts):
    from warmstart.tasks.cold_start import Users
    from warmstart.tasks.ratings import take_users

    cfg = pretrain.Config(inner_lr=0.03, test_steps=2)
    short = Schedule(epochs=1, users=16)
    fitted = fit(pretrain.build, everything(parts.train), cfg, 0, parts.validation, network=NET, schedule=short)
    order = np.random.default_rng(0).permutation(len(parts.test.shown.users))
    turned = Users(take_users(parts.test.shown, order), take_users(parts.test.asked, order), parts.test.rank)
    by_user = lambda users: [  # noqa: E731
        fitted.predict(users).mean[users.asked.user == k] for k in range(len(users.shown.users))
    ]
    before, after = by_user(parts.test), by_user(turned)
    for place, user in enumerate(order):
        torch.testing.assert_close(after[place], before[user], rtol=1e-5, atol=1e-5)


def test_clicks_have_an_entropy_of_their_own_weights(simulated_ratings):
    ratings = simulated_ratings(users=120)
    clicked = ratings._replace(value=(ratings.value > 3.5).astype(float), scale=(0.0, 1.0), kind="binary")
    parts = split_users(clicked, PAPER)
    tables = fit_tables(everything(parts.train), WEIGHTED)
    assert tables.centre == 0
    losses = tables.likelihood.loss(torch.zeros(2, 1), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(losses, 2 * torch.tensor(CLICK) * math.log(2))
    assert fit_tables(everything(parts.train), NET).likelihood is binary
    cfg = paml.Config(rate=0.2)
    short = Schedule(epochs=2, users=16)
    fitted = fit(paml.build, everything(parts.train), cfg, 0, parts.validation, network=NET, schedule=short)
    said = fitted.predict(parts.test).mean.numpy()
    assert said.min() >= 0 and said.max() <= 1
    value = parts.test.asked.value
    assert said[value > 0.5].mean() > said[value < 0.5].mean()


def test_chances_do_not_depend_on_the_weights_of_clicks(simulated_ratings):
    """Users are judged by two to six events, mostly by none that was clicked: weights are felt there too."""
    ratings = simulated_ratings(users=300)
    draw = np.random.default_rng(0)
    rare = ratings._replace(
        value=(draw.random(len(ratings.value)) < 0.2).astype(float), scale=(0.0, 1.0), kind="binary"
    )
    parts = split_users(rare, PAPER)
    schedule, network = Schedule(epochs=60, users=16), replace(WEIGHTED, identity=False)
    still = melu.Config(inner_lr=1e-4, outer_lr=3e-3)  # so that one chance is said of all
    fitted = fit(melu.build, everything(parts.train), still, 0, parts.validation, network=network, schedule=schedule)
    said = float(fitted.predict(parts.test).mean.mean())
    asked = to_batch(parts.validation.asked)  # whose rate is where training stops
    rate = (asked.y * asked.mask).sum(1) / asked.mask.sum(1)
    assert abs(said - float(rate.mean())) < 0.02, said
