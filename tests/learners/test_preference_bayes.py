"""Empirical Bayes for preferences: exact conditioning against the joint Gaussian, order, and what is learned."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.core import InputError
from warmstart.learners import preference_bayes as bayes
from warmstart.metrics.errors import squared_error
from warmstart.metrics.intervals import coverage, gaussian
from warmstart.tasks.cold_start import Protocol, Users, everything, first, split_users
from warmstart.tasks.profiles import numbers_of
from warmstart.tasks.ratings import make_ratings, take_rows, take_users, to_batch, to_stack

CONFIG = bayes.Config(factors=3, sweeps=25, choices=4, content=0.2, user_ridge=2.0, item_ridge=1.5, noise_events=7.0)
PROTOCOL = Protocol(lightest=1.0, seed=1)


@pytest.fixture(scope="module")
def parts(simulated_ratings):
    return split_users(simulated_ratings(), PROTOCOL)


@pytest.fixture(scope="module")
def state(parts):
    return bayes.learn(everything(parts.train), CONFIG, 0)


def in_units(ratings, unit, shift):
    low, high = ratings.scale
    return ratings._replace(value=unit * ratings.value + shift, scale=(unit * low + shift, unit * high + shift))


def test_another_unit_of_ratings_changes_nothing_else(parts):
    train, asked = everything(parts.train), first(parts.test, 3)
    said = bayes.predict(bayes.learn(train, CONFIG, 0), asked)
    turned = asked._replace(shown=in_units(asked.shown, 25.0, -20.0), asked=in_units(asked.asked, 25.0, -20.0))
    other = bayes.predict(bayes.learn(in_units(train, 25.0, -20.0), CONFIG, 0), turned)
    torch.testing.assert_close(other.mean, 25 * said.mean - 20, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(other.variance, 625 * said.variance, rtol=1e-5, atol=1e-4)


def error(predict, users):
    return float(squared_error(to_stack(users.asked, predict(users).mean), to_batch(users.asked)).mean())


def written_out(state, users, user):
    """Mean and covariance of one user's vector: the prior of profile and choices, and the joint Gaussian of rows.

    An unsure item adds its covariance to the precision of every event, as the mean-field bound has it.
    """
    rows = users.shown.user == user
    item, y = users.shown.item[rows], users.shown.value[rows] - state.centre
    profile = np.append(1.0, numbers_of(state.profile, users.shown.users, "users")[user])
    choices, n = state.choices, len(item)
    expected = profile @ choices.weight
    told, unsure = np.zeros(len(expected)), np.zeros(len(expected))
    for c in range(len(expected)):  # a normal mean with known variances
        precision = 1 / choices.between[c] + n / choices.within[c]
        total = expected[c] / choices.between[c] + choices.basis[item, c].sum() / choices.within[c]
        told[c], unsure[c] = total / precision, 1 / precision
    weight = state.user_prior.weight
    cov = state.user_prior.cov + weight[len(profile) :].T @ np.diag(unsure) @ weight[len(profile) :]
    mean = np.append(profile, told) @ weight
    precision, pull = np.linalg.inv(cov), np.linalg.solve(cov, mean)
    for i, value in zip(item, y, strict=True):
        a, s = state.items.mean[i], np.zeros((len(state.items.mean[i]),) * 2)
        s[np.ix_(state.items.free, state.items.free)] = state.items.cov[i]
        precision = precision + (np.outer(a[1:], a[1:]) + s[1:, 1:]) / state.noise[i]
        pull = pull + (a[1:] * (value - a[0]) - s[1:, 0]) / state.noise[i]
    return np.linalg.solve(precision, pull), np.linalg.inv(precision)


def test_adapting_is_conditioning(state, parts):
    for users in (parts.test, first(parts.test, 2), first(parts.test, 0)):
        adapted = bayes.finish(state, users.shown, bayes.observe(state, users.shown))
        for user in (0, 17):
            mean, cov = written_out(state, users, user)
            assert np.allclose(adapted.user.mean[user, 1:], mean, atol=1e-8)
            assert np.allclose(adapted.user.cov[user], cov, atol=1e-8)


def test_events_one_by_one_are_events_at_once(state, parts):
    shown = parts.test.shown
    whole = bayes.observe(state, shown)
    order = np.random.default_rng(0).permutation(len(shown.value))
    inner = None
    for part in np.array_split(order, 9):
        inner = bayes.observe(state, take_rows(shown, part), inner)
    one, other = (bayes.finish(state, shown, seen).user for seen in (whole, inner))
    assert np.allclose(one.mean, other.mean) and np.allclose(one.cov, other.cov)
    # one more event of one user is a rank-one change of that user's sums (an unsure item: of full rank)
    sure = state._replace(items=state.items._replace(cov=np.zeros_like(state.items.cov)))
    few = take_rows(shown, np.arange(len(shown.value) - 1))
    change = bayes.observe(sure, shown).seen.square - bayes.observe(sure, few).seen.square
    ranks = [np.linalg.matrix_rank(matrix, tol=1e-9) for matrix in change]
    assert ranks[shown.user[-1]] == 1 and sum(ranks) == 1


def test_a_typical_chooser_is_a_shift_of_the_prior(state, parts):
    """What `score` adds is the posterior with each profile's expected choice moved by the item's typical one."""
    users = first(parts.test, 1)
    adapted = bayes.finish(state, users.shown, bayes.observe(state, users.shown))
    said = bayes.score(state, adapted, users.asked)
    event = 30
    user, item = users.asked.user[event], users.asked.item[event]
    moved = state.choices.weight.copy()
    moved[0] += state.choices.typical[item]
    other = state._replace(choices=state.choices._replace(weight=moved))
    mean, _ = written_out(other, users, user)
    a = state.items.mean[item]
    assert float(said.mean[event]) == pytest.approx(state.centre + a[0] + a[1:] @ mean)
    assert np.abs(state.choices.typical).max() > 0.05


def test_profile_choices_and_content_each_help_and_intervals_hold(parts):
    train = everything(parts.train)
    alone = replace(CONFIG, profile=False, choices=0, content=1.0)
    found = {
        name: error(bayes.fit(train, config), first(parts.test, 0))
        for name, config in {"all": CONFIG, "no choices": replace(CONFIG, choices=0), "alone": alone}.items()
    }
    assert found["all"] < found["alone"] and found["no choices"] < 0.97 * found["alone"]
    predict = bayes.fit(train, CONFIG)
    errors = [error(predict, first(parts.test, size)) for size in (0, 2, 5)] + [error(predict, parts.test)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.35
    said = predict(parts.test)
    low, high = gaussian(*(to_stack(parts.test.asked, part) for part in said[:2]), 0.9)
    assert 0.85 < float(coverage(low, high, to_batch(parts.test.asked)).mean()) < 0.96


def test_noises_and_variances_are_found():
    """Effects alone, of known variances, and two kinds of items with noises of 0.3 and 0.9."""
    draw = np.random.default_rng(0)
    users, items = 400, 40
    own, thing = 0.7 * draw.normal(size=users), 0.5 * draw.normal(size=items)
    spread = np.where(np.arange(items) % 2, 0.3, 0.9)
    rows = [
        {"user": f"u{u}", "item": f"i{i:02d}", "value": own[u] + thing[i] + spread[i] * draw.normal()}
        for u in range(users)
        for i in draw.permutation(items)[:15]
    ]
    ratings = make_ratings(pd.DataFrame(rows), pd.DataFrame(), pd.DataFrame(), (-9, 9))
    state = bayes.learn(ratings, bayes.Config(factors=1, sweeps=40, choices=0, noise_events=1.0), 0)
    names = np.array([int(name[1:]) for name in ratings.items.index])
    assert np.allclose(np.sqrt(state.noise), spread[names], rtol=0.15)
    assert state.user_prior.cov[0, 0] == pytest.approx(0.49, rel=0.2)
    assert np.corrcoef(state.items.mean[:, 0], thing[names])[0, 1] > 0.98


def test_new_users_do_not_know_each_other_and_fitting_does_not_know_them(parts, simulated_ratings):
    predict = bayes.fit(everything(parts.train), CONFIG)
    said = predict(parts.test).mean
    order = np.arange(len(parts.test.shown.users))[::-3]
    some = Users(take_users(parts.test.shown, order), take_users(parts.test.asked, order), np.zeros(0))
    alone = to_stack(some.asked, predict(some).mean)
    assert torch.allclose(alone, to_stack(parts.test.asked, said)[order.copy(), : alone.shape[1]])
    hidden = parts.test.asked._replace(value=np.full(len(said), np.nan))
    assert torch.equal(predict(parts.test._replace(asked=hidden)).mean, said)
    changed = simulated_ratings(changed=set(parts.test.shown.users.index))
    spoiled = split_users(changed, PROTOCOL)
    again = bayes.fit(everything(spoiled.train), CONFIG)
    assert torch.equal(again(spoiled.validation).mean, predict(parts.validation).mean)


def test_items_nobody_rated_and_new_values_of_a_profile_are_answered(state, parts):
    users = parts.test
    unrated = len(users.asked.items) - 1
    assert not (everything(parts.train).item == unrated).any()
    strange = users.shown.users.assign(kind="never seen")
    shown = users.shown._replace(users=strange)
    said = bayes.predict(
        state, Users(shown, users.asked._replace(item=np.full_like(users.asked.item, unrated)), users.rank)
    )
    assert torch.isfinite(said.mean).all() and (said.variance > 0).all()
    rated = bayes.predict(state, users)
    assert said.variance.mean() > rated.variance.mean()  # less is known of such an item


def test_bad_configurations_are_refused(parts):
    with pytest.raises(InputError, match="at least one factor"):
        bayes.fit(everything(parts.train), replace(CONFIG, factors=0))


def test_the_catalogue_is_what_score_says_of_every_item(state, parts):
    """One user at a time, and many by one product; all items, and some."""
    users = first(parts.test, 3)
    adapted = bayes.finish(state, users.shown, bayes.observe(state, users.shown))
    people, things = len(users.shown.users), len(users.shown.items)
    pairs = users.asked._replace(user=np.repeat(np.arange(people), things), item=np.tile(np.arange(things), people))
    said = bayes.score(state, adapted, pairs)
    wanted = [part.numpy().reshape(people, things) for part in said[:2]]
    mean, variance = bayes.catalogue(state, adapted)
    assert people > bayes.FEW and (mean > 5).any()  # the scale is left to the caller
    few = bayes.Adapted(bayes.Side(adapted.user.mean[:2], adapted.user.cov[:2], adapted.user.free), adapted.move[:2])
    some = np.array([7, 3, 50])
    for got, which in (
        ((mean, variance), (slice(None), slice(None))),
        (bayes.catalogue(state, few), (slice(0, 2), slice(None))),
        (bayes.catalogue(state, adapted, some), (slice(None), some)),
    ):
        assert np.allclose(np.clip(got[0], 1, 5), wanted[0][which], atol=1e-4)
        assert np.allclose(got[1], wanted[1][which], rtol=1e-4)
