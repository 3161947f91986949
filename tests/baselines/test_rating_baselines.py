"""Rating baselines: what each must do, and each against a hand-written loop."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from warmstart.baselines import autorec, deepfm, neumf, rating_als, rating_items, rating_means, rating_trees
from warmstart.baselines.rating_networks import Training
from warmstart.maths.bilinear import make_events
from warmstart.metrics.errors import squared_error
from warmstart.tasks.cold_start import Protocol, Users, everything, first, split_users
from warmstart.tasks.ratings import take_rows, take_users, to_batch, to_stack

BRIEF = Training(15, 256, 2e-2, 0.3, 2.0, 40, effects=rating_means.Config(2.0, 3.0))
METHODS = {
    "global mean": (rating_means.fit, rating_means.GLOBAL_MEAN),
    "user mean": (rating_means.fit, rating_means.USER_MEAN),
    "item mean": (rating_means.fit, rating_means.ITEM_MEAN),
    "bias": (rating_means.fit, rating_means.Config(2.0, 3.0)),
    "als": (rating_als.fit, rating_als.Config(3, 2.0, 3.0)),
    "neighbours": (rating_items.fit_neighbours, rating_items.Neighbours(8, 5.0, 0.5, most=50)),
    "ease": (rating_items.fit_ease, rating_items.Ease(20.0)),
    "autorec": (autorec.fit, autorec.Config(16, 60, 32, 1e-2, 0.1, effects=rating_means.Config(2.0, 3.0))),
    "neumf": (neumf.fit, neumf.Config(3, (6,), BRIEF)),
    "deepfm": (deepfm.fit, deepfm.Config(3, (6,), 3, BRIEF)),
    "trees": (rating_trees.fit, rating_trees.Config(40, smallest_leaf=10, share=0.0)),
}
PROTOCOL = Protocol(lightest=1.0, seed=1)


@pytest.fixture(scope="module")
def parts(simulated_ratings):
    return split_users(simulated_ratings(), PROTOCOL)


def error(predict, users):
    return float(squared_error(to_stack(users.asked, predict(users).mean.double()), to_batch(users.asked)).mean())


@pytest.mark.parametrize("name", METHODS)
def test_contract(name, parts, simulated_ratings):
    fit, config = METHODS[name]
    train = everything(parts.train)
    predict = fit(train, config, 0)
    said = predict(parts.test).mean
    assert said.shape == (len(parts.test.asked.value),) and (said >= 1).all() and (said <= 5).all()
    assert torch.equal(said, fit(train, config, 0)(parts.test).mean)
    # test users in another order, and some of them alone
    order = np.random.default_rng(0).permutation(len(parts.test.shown.users))[:20]
    some = Users(take_users(parts.test.shown, order), take_users(parts.test.asked, order), np.zeros(0))
    alone = to_stack(some.asked, predict(some).mean)
    assert torch.allclose(alone, to_stack(parts.test.asked, said)[order, : alone.shape[1]], atol=1e-5)
    # what is asked is not read, and a user who showed nothing gets an answer
    hidden = parts.test.asked._replace(value=np.full(len(said), np.nan))
    assert torch.equal(predict(parts.test._replace(asked=hidden)).mean, said)
    assert torch.isfinite(predict(first(parts.test, 0)).mean).all()
    # other test users, with other ratings of other items, change nothing that was fitted
    names = set(parts.test.shown.users.index)
    spoiled = split_users(simulated_ratings(changed=names), PROTOCOL)
    assert set(spoiled.test.shown.users.index) == names and not np.array_equal(
        spoiled.test.shown.value, parts.test.shown.value
    )
    again = fit(everything(spoiled.train), config, 0)
    assert torch.equal(again(spoiled.validation).mean, predict(parts.validation).mean)


def test_more_than_effects_is_learned_where_there_is_more(parts):
    train = everything(parts.train)
    found = {name: error(fit(train, config, 0), parts.test) for name, (fit, config) in METHODS.items()}
    assert found["bias"] < min(found["user mean"], found["item mean"]) < found["global mean"]
    for name in ("als", "neighbours", "ease", "autorec", "neumf", "deepfm", "trees"):
        assert found[name] < 0.9 * found["bias"], (name, found)


def test_effects_are_those_of_a_loop(parts):
    train = everything(parts.train)
    bias = rating_means.fit_bias(train, rating_means.Config(2.0, 3.0, sweeps=2))
    item, user = np.zeros(len(train.items)), np.zeros(len(train.users))
    for _ in range(2):
        for u in range(len(user)):
            mine = train.user == u
            user[u] = (train.value - train.value.mean() - item[train.item])[mine].sum() / (mine.sum() + 3.0)
        for i in range(len(item)):
            mine = train.item == i
            item[i] = (train.value - train.value.mean() - user[train.user])[mine].sum() / (mine.sum() + 2.0)
    assert np.allclose(bias.item, item)
    test = parts.test
    own = test.shown.user == 4
    left = test.shown.value[own] - bias.centre - item[test.shown.item[own]]
    asked = test.asked.item[test.asked.user == 4]
    expected = np.clip(bias.centre + item[asked] + left.sum() / (own.sum() + 3.0), 1, 5)
    said = rating_means.fit(train, rating_means.Config(2.0, 3.0, sweeps=2))(test).mean.numpy()
    assert np.allclose(said[test.asked.user == 4], expected)


def test_folding_in_is_ridge_regression(parts):
    shown, draw = parts.test.shown, np.random.default_rng(2)
    factors = draw.normal(size=(len(shown.items), 3))
    found = rating_als.regress(make_events(shown.user, shown.item, shown.value, (48, len(factors))), factors, 2.5)
    own = shown.user == 7
    expected = Ridge(2.5, fit_intercept=False).fit(factors[shown.item[own]], shown.value[own]).coef_
    assert np.allclose(found[7], expected)


def test_ease_is_a_ridge_regression_on_the_other_items(parts):
    train, test = everything(parts.train), parts.test
    bias = rating_means.fit_bias(train)
    left = np.zeros((len(train.users), len(train.items)))
    left[train.user, train.item] = rating_means.residuals(bias, train)
    said = rating_items.fit_ease(train, rating_items.Ease(20.0))(test).mean.numpy()
    event = 11
    user, item = test.asked.user[event], test.asked.item[event]
    others = np.arange(left.shape[1]) != item
    x, y = left[:, others], left[:, item]
    weight = np.linalg.solve(x.T @ x + 20.0 * np.eye(others.sum()), x.T @ y)
    told = np.zeros(left.shape[1])
    own = test.shown.user == user
    told[test.shown.item[own]] = rating_means.residuals(bias, test.shown)[own]
    effect = rating_means.user_effects(bias, test.shown)[user]
    expected = bias.centre + bias.item[item] + effect + told[others] @ weight
    assert said[event] == pytest.approx(np.clip(expected, 1, 5))


def test_neighbours_are_those_of_a_loop(parts):
    train, test = everything(parts.train), parts.test
    cfg = rating_items.Neighbours(nearest=3, common=5.0, damping=0.5)
    bias = rating_means.fit_bias(train)
    left = {(u, i): r for u, i, r in zip(train.user, train.item, rating_means.residuals(bias, train), strict=True)}

    def similarity(i, j):
        both = [u for u in range(len(train.users)) if (u, i) in left and (u, j) in left]
        a, b = (np.array([left[u, k] for u in both]) for k in (i, j))
        return (a @ b) / np.sqrt((a @ a) * (b @ b)) * len(both) / (len(both) + 5.0) if both else 0.0

    said = rating_items.fit_neighbours(train, cfg)(test).mean.numpy()
    event = 5
    user, item = test.asked.user[event], test.asked.item[event]
    own = np.flatnonzero(test.shown.user == user)
    near = np.array([similarity(item, j) for j in test.shown.item[own]])
    kept = np.argsort(-np.abs(near))[:3]
    told = rating_means.residuals(bias, test.shown)[own]
    more = near[kept] @ told[kept] / (np.abs(near[kept]).sum() + 0.5)
    effect = rating_means.user_effects(bias, test.shown)[user]
    assert said[event] == pytest.approx(np.clip(bias.centre + bias.item[item] + effect + more, 1, 5))


def test_trees_are_told_what_the_support_says(parts):
    train = everything(parts.train)
    bias = rating_means.fit_bias(train)
    empty = take_rows(parts.test.shown, np.zeros(0, dtype=int))
    cfg = rating_trees.Config(share=0.0)
    content = np.eye(len(train.items))  # no two items are alike
    features = rating_trees.fit_table(train.users, "users")
    for shown in (parts.test.shown, empty):
        users = parts.test._replace(shown=shown)
        told = rating_trees.columns(users, bias, np.zeros(len(content)), features, content, cfg)
        assert np.allclose(told[:, 0], bias.centre + told[:, 1] + told[:, 2]) and np.allclose(told[:, 6], 0)
        assert np.allclose(np.expm1(told[:, 4]), np.bincount(shown.user, minlength=48)[parts.test.asked.user])
