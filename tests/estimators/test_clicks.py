"""Clicks from tables: chances of users whose tastes are planted, how they are put right, and what changes nothing."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, logit

from warmstart.core import InputError, Prediction
from warmstart.estimators.preference_chances import Chances, chance_interval, fit_chances, put_right
from warmstart.estimators.preference_evaluation import evaluate
from warmstart.estimators.preference_judging import errors_of, predictor, split_data
from warmstart.estimators.preference_learner import PreferenceLearner
from warmstart.estimators.preference_methods import METHODS, WEIGHTED, find
from warmstart.estimators.preference_networks import NETWORKS, network_method
from warmstart.estimators.preference_rivals import BASELINES
from warmstart.metrics.ranking import auc, pooled_auc
from warmstart.tasks.cold_start import first
from warmstart.tasks.ratings import read_ratings, to_batch, to_stack
from warmstart.tasks.roles import Roles
from warmstart.training.preferences import Schedule

ROLES = Roles("user", "clicked", item="film", time="time")
SMALL = {"trees.trees": 60, "trees.leaves": 6, "trees.smallest_leaf": 20, "choices": 2, "width": 0.1}


@pytest.fixture(params=["click_bayes", "click_means", "melu"])
def model(request, click_models):
    return click_models[request.param]


@pytest.fixture
def events(arcade):
    """Eight impressions of a user, in the order of time, and the first film once more."""
    own = arcade.log[arcade.log["user"] == "u0007"].head(8).drop(columns=["user", "chance"])
    return pd.concat([own, own.head(1).assign(clicked=1, time=99)])


@pytest.fixture(scope="module")
def data(arcade):
    return split_data(read_ratings(arcade.log, ROLES, arcade.users, arcade.films), 0, True)


def told(model):
    """As users of the model are told."""

    def predict(users):
        said = predictor(model.fitted.method, model.fitted.state)(users)
        shown = np.bincount(users.shown.user, minlength=len(users.shown.users))[users.asked.user]
        return said._replace(mean=torch.from_numpy(model.fitted.put_right(said.mean.numpy(), None, shown)[0]))

    return predict


def test_events_of_unseen_users_help_beyond_the_profile_and_item_effects(click_models, data):
    bayes, means = (told(click_models[name]) for name in ("click_bayes", "click_means"))
    losses = [float(errors_of(bayes, first(data.test, size)).mean()) for size in (0, 5)]
    losses.append(float(errors_of(bayes, data.test).mean()))
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0]
    assert losses[-1] < 0.93 * float(errors_of(means, data.test).mean())
    assert losses[-1] < 0.93 * float(errors_of(means, first(data.test, 0)).mean())


def test_chances_are_near_the_true_ones_and_mostly_inside_their_intervals(click_models, arcade, data):
    model = click_models["click_bayes"]
    names = list(data.split.test)
    own = arcade.log[arcade.log["user"].isin(names)]
    shown, asked = own.groupby("user").head(12), own[own.groupby("user").cumcount() >= 12]
    frame = model.adapt(shown.drop(columns="chance"), arcade.users, names).frame(asked[["user", "film"]], 0.9)
    true = asked["chance"].to_numpy()
    before = model.adapt(None, arcade.users, names).frame(asked[["user", "film"]])
    assert np.abs(frame["prediction"] - true).mean() < 0.75 * np.abs(before["prediction"] - true).mean()
    assert 0.65 < ((frame["low"] <= true) & (true <= frame["high"])).mean() <= 1
    assert (frame["high"] - frame["low"]).mean() < (before["high"] - before["low"]).mean()
    assert (frame["low"] > 0).all() and (frame["low"] < frame["prediction"]).all() and (frame["high"] < 1).all()


def test_values_of_zero_and_one_are_taken_as_clicks_which_is_said(click_models, arcade):
    assert {model.fitted.kind for model in click_models.values()} == {"binary"}
    auto = PreferenceLearner().fit(arcade.log, ROLES, arcade.users, arcade.films)
    assert set(auto.trials_) == {"click_bayes", "click_means"} and "taken as clicks" in auto.notes_[0]
    assert auto.fitted.name == "click_bayes"
    truth = arcade.log.assign(clicked=arcade.log["clicked"].astype(bool))
    means = PreferenceLearner("click_means").fit(truth, ROLES, arcade.users, arcade.films)
    assert not means.notes_ and torch.equal(
        means.fitted.packed()[0]["state/item"], click_models["click_means"].fitted.packed()[0]["state/item"]
    )
    squared = PreferenceLearner("rating_means", kind="squared").fit(arcade.log, ROLES)
    assert squared.fitted.kind == PreferenceLearner("rating_means").fit(arcade.log, ROLES).fitted.kind == "squared"


def test_the_order_of_users_does_not_matter(click_models, arcade):
    names = arcade.log["user"].unique()[::-1]
    place = {name: i for i, name in enumerate(names)}
    turned = arcade.log.sort_values("user", key=lambda column: column.map(place), kind="stable")
    again = PreferenceLearner("click_means").fit(turned, ROLES, arcade.users, arcade.films)
    for name, one in click_models["click_means"].fitted.packed()[0].items():
        if not name.startswith("known/said"):  # by training users, in the order of the table
            torch.testing.assert_close(again.fitted.packed()[0][name], one)


def test_many_users_at_once_are_each_alone(model, arcade):
    names = arcade.users["user"].iloc[-5:].tolist()
    shown = arcade.log[arcade.log["user"].isin(names)].groupby("user").head(6)
    both = model.adapt(shown, arcade.users, users=names[::-1]).recommend(3)
    for name in names[:2]:
        one = model.adapt(shown, arcade.users, users=[name]).recommend(3)
        mine = both.items[both.items["user"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, one.items, check_exact=False, rtol=1e-4)


def test_a_marker_in_held_out_clicks_changes_nothing(click_models, arcade):
    for name, settings in (("click_bayes", SMALL), ("click_means", {})):
        model = click_models[name]
        held = arcade.log["user"].isin(model.fitted.split.test)
        spoiled = arcade.log.assign(clicked=arcade.log["clicked"].where(~held, 1))
        again = PreferenceLearner(name, settings).fit(spoiled, ROLES, arcade.users, arcade.films)
        for one, other in zip(model.fitted.packed()[0].values(), again.fitted.packed()[0].values(), strict=True):
            assert torch.equal(one, other)


def test_saved_models_say_the_same(model, arcade, events, tmp_path):
    model.save(tmp_path / "model")
    again = PreferenceLearner.load(tmp_path / "model")
    one, other = (kept.adapt(events, {"age": 30, "kind": "x"}) for kept in (model, again))
    pd.testing.assert_frame_equal(one.recommend(4).items, other.recommend(4).items, check_dtype=False)
    assert one.recommend(4).reasons.equals(other.recommend(4).reasons)
    assert torch.equal(one.predict(arcade.films[["film"]]).mean, other.predict(arcade.films[["film"]]).mean)
    assert again.fitted.config == model.fitted.config and again.kind == "binary" and again.scale is None
    assert json.loads((tmp_path / "model" / "config.json").read_text())["target"] == "binary"
    assert "none of their impressions" in (tmp_path / "model" / "card.md").read_text()


def test_recommended_are_the_likeliest_clicks_of_what_was_not_shown(model, arcade, events):
    user = model.adapt(events)
    seen = set(events["film"])
    assert user.events.tolist() == [9] and len(seen) < 9  # an item may be shown again
    found = user.recommend(60)
    assert set(found.items["film"]) == set(arcade.films["film"]) - seen and "left to recommend" in found.notes[-1]
    table = user.frame(arcade.films[["film"]]).set_index("film").loc[found.items["film"]]
    assert np.allclose(found.items["prediction"], table["prediction"], atol=1e-5)
    assert (np.diff(found.items["prediction"]) <= 1e-6).all() and found.items["prediction"].between(0, 1).all()
    assert ("low" in found.items) == (model.fitted.name == "click_bayes")
    by_one = model.adapt(events.head(4)).observe(events.iloc[4:])
    assert torch.allclose(by_one.predict(arcade.films[["film"]]).mean, user.predict(arcade.films[["film"]]).mean)
    assert user.recommend(1).reasons["level"].tolist()[0] in ("bias", "adapted")


def test_what_is_put_right_is_the_most_likely_line(data):
    said = np.random.default_rng(0).uniform(0.02, 0.98, len(data.validation.asked.value))
    found = fit_chances(lambda users: Prediction(torch.from_numpy(said)), data.validation, (0, 5))
    asked = data.validation.asked
    weight = 1 / np.bincount(asked.user)[asked.user]

    def loss(point):
        p = expit(point[0] + np.exp(point[1]) * logit(said))
        rows = -np.log(np.where(asked.value > 0.5, p, 1 - p))
        return (weight * rows).sum() + point[0] ** 2 / 2 + point[1] ** 2 / (2 * 0.5**2)

    best = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}).x
    assert found.shift == pytest.approx([best[0]] * 2, abs=1e-3) and found.sizes.tolist() == [0, 5]
    assert found.slope == pytest.approx([np.exp(best[1])] * 2, abs=1e-3)


def test_put_right_by_hand():
    chances = Chances(np.array([0, 5]), np.array([0.5, -1.0]), np.array([1.0, 2.0]))
    p, unsure = np.array([0.3, 0.3, 0.3]), 0.8
    mean, variance = put_right(chances, p, (p * (1 - p) * unsure) ** 2, np.array([0, 4, 9]))
    assert logit(mean) == pytest.approx([0.5 + logit(0.3)] * 2 + [-1 + 2 * logit(0.3)])
    low, high = chance_interval(mean, variance, 0.9)
    half = 1.6448536 * unsure * np.array([1, 1, 2])
    assert logit(high) - logit(mean) == pytest.approx(half) and logit(mean) - logit(low) == pytest.approx(half)
    assert put_right(chances, np.array([0.0, 1.0]), None, np.array([0, 0]))[0] == pytest.approx([0, 1], abs=1e-5)


def test_evaluation_tells_log_loss_and_auc_beside_every_rival(click_models, arcade, data):
    model = click_models["click_bayes"]
    outcome = evaluate(model, arcade.log, arcade.users, arcade.films)
    rows = {(row.method, row.metric, row.setting.get("samples", "80 %")): row for row in outcome.results.rows}
    batch, some = to_batch(data.test.asked), first(data.test, 5)
    mean = to_stack(data.test.asked, told(model)(some).mean)
    assert rows["click_bayes", "AUC", 5].mean == pytest.approx(pooled_auc(mean, batch))
    assert rows["click_bayes", "AUC per user", 5].mean == pytest.approx(float(auc(mean, batch).nanmean()))
    assert rows["click_bayes", "log loss", 5].mean == pytest.approx(float(errors_of(told(model), some).mean()))
    assert {method for method, _, _ in rows} == {"click_bayes", *BASELINES["binary"]}
    assert ("bias", "weighted entropy", "80 %") in rows and ("bias", "MSE", 5) not in rows
    assert "After 5 impressions of an unseen user, click_bayes has a log loss of" in outcome.verdict
    assert sum(bool(section.svg) for section in outcome.sections) == 2
    with pytest.raises(InputError, match="tables that the model was fitted on"):
        evaluate(model, arcade.log.head(2500), arcade.users, arcade.films)


@pytest.mark.parametrize("name", [*NETWORKS, "reg_paml_weighted"])
@pytest.mark.usefixtures("plain_preferences")
def test_networks_learn_clicks_and_are_saved(name, monkeypatch, arcade, events, tmp_path):
    module, config = NETWORKS[name.removesuffix("_weighted")]
    network = {"network": WEIGHTED} if name.endswith("_weighted") else {}
    short = network_method(module.build, config, {}, schedule=Schedule(epochs=2, look=1), **network)
    monkeypatch.setitem(METHODS, name, short)
    model = PreferenceLearner(name, kind="binary", device="cpu").fit(arcade.log, ROLES, arcade.users, arcade.films)
    assert model.fitted.value < 0.693  # of a coin
    model.save(tmp_path / "m")
    again = PreferenceLearner.load(tmp_path / "m")
    one, other = (kept.adapt(events).recommend(3) for kept in (model, again))
    pd.testing.assert_frame_equal(one.items, other.items, check_dtype=False)
    assert one.reasons["rate"][0] > 0 and "low" not in one.items
    film = arcade.films[["film"]].head(5)
    assert not torch.allclose(model.adapt().predict(film).mean, model.adapt(events).predict(film).mean)


def test_what_is_not_clicks_is_refused(click_models, arcade, events):
    model = click_models["click_means"]
    for call, words in (
        (lambda: PreferenceLearner().fit(arcade.log.assign(clicked=1), ROLES), "impressions without one"),
        (lambda: PreferenceLearner("click_bayes").fit(arcade.log.assign(clicked=0), ROLES), "all 0; add rows"),
        (lambda: PreferenceLearner(kind="binary").fit(arcade.log.assign(clicked=2), ROLES), "0 or 1, false or true"),
        (lambda: PreferenceLearner("click_bayes", kind="squared").fit(arcade.log, ROLES), "a method for ratings among"),
        (lambda: PreferenceLearner("preference_bayes", kind="binary").fit(arcade.log, ROLES), "for impressions among"),
        (lambda: PreferenceLearner(kind="binary", scale=(0, 1)).fit(arcade.log, ROLES), "no scale for clicks"),
        (lambda: PreferenceLearner(kind="ordinal").fit(arcade.log, ROLES), "squared or binary"),
        (lambda: PreferenceLearner("click_bayes", {"trees.leave": 3}).fit(arcade.log, ROLES), "did you mean leaves"),
        (lambda: PreferenceLearner("click_bayes", {"trees": 3}).fit(arcade.log, ROLES), "trees like Trees"),
        (lambda: PreferenceLearner("click_bayes", {"folds.x": 3}).fit(arcade.log, ROLES), "'folds.x'"),
        (lambda: model.adapt(events.assign(clicked=0.5)), "0 or 1, false or true in column 'clicked' of the support"),
        (lambda: model.adapt(pd.DataFrame({"film": arcade.films["film"], "clicked": 0})).recommend(), "not been shown"),
        (lambda: model.adapt(events).recommend(1, level=1.5), "between 0 and 1"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    assert find("melu", "binary") is find("melu", "squared")


@pytest.fixture(scope="module")
def screens(arcade):
    """The same films on phones and on screens, where half of all users click more and half much more."""
    draw = np.random.default_rng(5)
    log = arcade.log.assign(place=draw.choice(["phone", "phone", "screen"], len(arcade.log)))
    likes = log["user"].str[-1].astype(int) % 2 * 2.5 + 0.5
    chance = expit(logit(log["chance"]) + np.where(log["place"] == "screen", likes, 0))
    return log.assign(clicked=(draw.random(len(log)) < chance).astype(int))


def test_a_context_is_weighed_told_or_supposed(screens, arcade, tmp_path):
    around = replace(ROLES, context=("place",))
    model = PreferenceLearner("click_bayes", SMALL).fit(screens, around, arcade.users, arcade.films)
    blind = PreferenceLearner("click_bayes", SMALL).fit(screens, ROLES, arcade.users, arcade.films)
    assert model.fitted.value < blind.fitted.value - 0.01 and model.fitted.usual == {"place": "phone"}
    model.save(tmp_path / "m")
    model = PreferenceLearner.load(tmp_path / "m")
    own = screens[screens["user"] == "u0007"].drop(columns=["user", "chance"])
    user = model.adapt(own)
    film = pd.DataFrame({"film": ["f003"] * 2, "place": ["screen", "phone"]})
    screen, phone = user.predict(film).mean.tolist()
    assert screen > phone + 0.1 and phone == user.predict(film[["film"]].head(1)).mean.item()
    assert "taken as usual, place=phone" in user.unknown(film[["film"]])[0] and user.unknown(film) == ()
    assert "context of the support" in model.adapt(own.drop(columns="place")).notes[0]
    told = user.recommend(3, context={"place": "screen"})
    assert not any("context" in note for note in told.notes)
    table = user.frame(told.items[["film"]].assign(place="screen"))
    assert np.allclose(told.items["prediction"], table["prediction"], atol=1e-5)
    untold = user.recommend(3)
    assert "the context of the items" in untold.notes[-1] and untold.reasons.equals(told.reasons)
    by_one = model.adapt(own.head(3)).observe(own.iloc[3:])
    assert torch.allclose(by_one.predict(film).mean, user.predict(film).mean)
    outcome = evaluate(model, screens, arcade.users, arcade.films)
    at = {row.method: row.mean for row in outcome.results.rows if row.metric == "log loss" and "shown" in row.setting}
    assert at["click_bayes"] < at["bias"] and at["boosted trees"] < at["bias"]


def test_contexts_that_are_refused(screens, arcade):
    for roles, rows, words in (
        ({"context": ("plaec",)}, screens, "'plaec'"),
        ({"context": ("place",)}, screens.assign(clicked=screens["time"] % 5), "clicks, where there is a context"),
        ({"context": ("place",)}, screens.assign(place=None), "values in context column 'place'"),
        ({"context": ("value",)}, screens.assign(value=1), "no context named user"),
    ):
        with pytest.raises(InputError, match=words):
            PreferenceLearner().fit(rows, replace(ROLES, **roles))
    with pytest.raises(InputError, match="two for 'time'"):
        replace(ROLES, context=("time",))
    model = PreferenceLearner("click_bayes", SMALL).fit(screens, replace(ROLES, context=("place",)))
    with pytest.raises(InputError, match="'spot'"):
        model.adapt().recommend(1, context={"spot": "phone"})


def test_impressions_of_short_videos(shared_data):
    """KuaiRand: what was learned of others beats the item's effect for users held out, and events help."""
    from warmstart.tasks.kuairand import read_kuairand

    whole = read_kuairand(shared_data / "kuairand_pure")
    log = pd.DataFrame({"user": whole.user, "film": whole.item, "clicked": whole.value, "time": whole.time})
    log = log[log["user"] % 5 == 0].groupby("user").filter(lambda own: len(own) >= 10)
    fast = {"trees.trees": 60, "trees.rate": 0.1, "folds": 3, "sweeps": 5}
    model = PreferenceLearner("click_bayes", fast).fit(log, ROLES)
    parts = split_data(read_ratings(log, ROLES), 0, True)
    bayes, means = told(model), told(PreferenceLearner("click_means").fit(log, ROLES))
    shown, none = (float(errors_of(bayes, users).mean()) for users in (parts.test, first(parts.test, 0)))
    assert shown < none - 0.005 and none < 0.68
    assert shown < float(errors_of(means, first(parts.test, 0)).mean())
