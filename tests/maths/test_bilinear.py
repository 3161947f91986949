"""Beliefs about two sides that multiply, against Gaussian conditioning written out and against draws."""

import numpy as np
import pytest

from warmstart.maths.bilinear import Side, condition, expected_error, gather, make_events, moments


def spd(draw, n, d):
    root = draw.normal(size=(n, d, d))
    return root @ root.swapaxes(1, 2) / d + 0.1 * np.eye(d)


def whole(side):
    """Covariances of all coordinates."""
    full = np.zeros((*side.mean.shape, side.mean.shape[1]))
    full[:, side.free[:, None], side.free] = side.cov
    return full


@pytest.fixture
def problem():
    """Three users, five items; item coordinate 1 is fixed at 1, user coordinate 0 too."""
    draw = np.random.default_rng(0)
    who, what = np.array([0, 0, 0, 2, 2]), np.array([0, 3, 4, 1, 3])
    y = draw.normal(size=5)
    items = Side(draw.normal(size=(5, 3)), 0.3 * spd(draw, 5, 2), np.array([0, 2]))
    items.mean[:, 1] = 1.0
    return who, what, y, items, 0.5 + draw.random(5), spd(draw, 1, 2)[0], draw.normal(size=(3, 2))


def test_conditioning_on_sure_items_is_bayesian_regression(problem):
    who, what, y, items, noise, before, prior = problem
    sure = Side(items.mean, np.zeros((5, 0, 0)), np.arange(0))
    found = condition(
        gather(make_events(who, what, y, (3, 5)), sure, 1 / noise), np.ones((3, 3)), np.array([1, 2]), prior, before
    )
    for user in range(3):
        rows = np.flatnonzero(who == user)
        f = items.mean[what[rows]][:, 1:]
        # the joint Gaussian of weights and values, conditioned on the values
        k = f @ before @ f.T + np.diag(noise[what[rows]])
        gain = before @ f.T @ np.linalg.inv(k)
        left = y[rows] - items.mean[what[rows], 0] - f @ prior[user]
        assert np.allclose(found.mean[user, 1:], prior[user] + gain @ left)
        assert np.allclose(found.cov[user], before - gain @ f @ before)
    assert (found.mean[:, 0] == 1).all()
    assert np.allclose(found.mean[1, 1:], prior[1])  # no event


def test_each_user_may_have_a_prior_covariance(problem):
    who, what, y, items, noise, before, prior = problem
    sums = gather(make_events(who, what, y, (3, 5)), items, 1 / noise)
    arguments = (sums, np.ones((3, 3)), np.array([1, 2]), prior)
    each = condition(*arguments, np.stack([before, 2 * before, 3 * before]))
    for user, factor in enumerate((1, 2, 3)):
        same = condition(*arguments, factor * before)
        assert np.allclose(each.mean[user], same.mean[user]) and np.allclose(each.cov[user], same.cov[user])


def test_sums_error_and_moments_are_expectations(problem):
    who, what, y, items, noise, before, prior = problem
    sums = gather(make_events(who, what, y, (3, 5)), items, 1 / noise)
    users = condition(sums, np.ones((3, 3)), np.array([1, 2]), prior, before)
    draw = np.random.default_rng(1)
    a, w = (
        np.stack([draw.multivariate_normal(m, c, 200_000) for m, c in zip(side.mean, whole(side), strict=True)], 1)
        for side in (items, users)
    )
    error = np.zeros(3)
    for u, i, v in zip(who, what, y, strict=True):
        error[u] += ((v - (w[:, u] * a[:, i]).sum(1)) ** 2).mean() / noise[i]
    assert np.allclose(expected_error(sums, users), error, rtol=0.02)
    mean, variance = moments(users, items, np.array([0, 2]), np.array([1, 4]))
    for place, (u, i) in enumerate(((0, 1), (2, 4))):
        product = (w[:, u] * a[:, i]).sum(1)
        assert mean[place] == pytest.approx(product.mean(), abs=0.02)
        assert variance[place] == pytest.approx(product.var(), rel=0.03)
    second = sum((items.mean[i][:, None] * items.mean[i] + whole(items)[i]) / noise[i] for i in (0, 3, 4))
    assert np.allclose(sums.square[0], second)


def test_a_pair_that_comes_twice_counts_twice(problem):
    who, what, y, items, noise, *_ = problem
    once = gather(make_events(who, what, y, (3, 5)), items, 1 / noise)
    more = gather(make_events(np.append(who, 0), np.append(what, 3), np.append(y, 2.0), (3, 5)), items, 1 / noise)
    assert np.allclose((more.energy - once.energy)[0], 4.0 / noise[3]) and np.allclose(more.energy[1:], once.energy[1:])
    assert np.allclose(more.cross[0] - once.cross[0], 2.0 * items.mean[3] / noise[3])
