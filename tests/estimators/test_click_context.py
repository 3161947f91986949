"""The context of clicks: empty, absent, strange or several values, items that are not known, and rows of the file."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit

from warmstart.core import InputError
from warmstart.estimators.preference_context import usual_context
from warmstart.estimators.preference_judging import predictor, split_data
from warmstart.estimators.preference_learner import PreferenceLearner
from warmstart.tasks.ratings import read_ratings, take_rows
from warmstart.tasks.roles import Roles

ROLES = Roles("user", "clicked", item="film", time="time", context=("tab", "hour"))
SMALL = {"trees.trees": 40, "trees.leaves": 6, "trees.smallest_leaf": 20, "choices": 2, "width": 0.1, "sweeps": 4}


@pytest.fixture(scope="module")
def log(arcade):
    """A tab that is not told for a fifth of the impressions, which are clicked most, and an hour that matters."""
    draw = np.random.default_rng(8)
    tab = draw.choice(["home", "home", "search", "feed", None], len(arcade.log))
    hour = draw.integers(0, 24, len(arcade.log))
    more = pd.Series(tab).map({"home": -1.5, "search": 0.5, "feed": 0.0}).fillna(2.5).to_numpy() + 0.1 * (hour - 12)
    clicked = (draw.random(len(tab)) < expit(logit(arcade.log["chance"]) + more)).astype(int)
    return arcade.log.drop(columns="chance").assign(tab=tab, hour=hour, clicked=clicked)


@pytest.fixture(scope="module")
def model(log):
    return PreferenceLearner("click_bayes", SMALL).fit(log, ROLES)


@pytest.fixture
def own(log):
    return log[log["user"] == "u0007"].head(6).drop(columns="user")


def test_an_empty_cell_means_to_adapt_what_it_means_to_evaluate(model, log):
    trained = model.fitted
    data = split_data(read_ratings(log, ROLES), 0, True, ROLES.context)
    name = trained.split.test[0]
    at = list(data.test.asked.users.index).index(name)
    asked, shown = (take_rows(part, part.user == at) for part in (data.test.asked, data.test.shown))
    judged = predictor(trained.method, trained.state)(data.test).mean.numpy()[data.test.asked.user == at]
    rows = pd.DataFrame({"film": asked.items.index[asked.item], "user": name}).join(asked.context)
    support = pd.DataFrame({"film": shown.items.index[shown.item], "clicked": shown.value, "user": name})
    user = model.adapt(support.join(shown.context))
    assert rows["tab"].isna().any() and shown.context["tab"].isna().any()
    count = np.full(len(rows), len(shown.user))
    assert np.allclose(user.predict(rows).mean, trained.put_right(judged, None, count)[0])
    film = pd.DataFrame({"film": "f003", "tab": ["home", "search", None], "hour": 12})
    home, search, empty = model.adapt().predict(film).mean.tolist()
    assert home < search < empty
    absent = model.adapt().predict(film[["film", "hour"]].head(1)).mean.item()
    assert absent == home and trained.usual["tab"] == "home"


def test_an_item_that_is_not_known_is_asked_in_the_context_of_its_row(model, own, monkeypatch):
    user = model.adapt(own)
    rows = pd.DataFrame({"film": "new", "tab": ["search", "home", "search", None], "hour": [20, 3, 20, 20]})
    found = user.frame(rows)["prediction"].to_numpy()
    assert found[0] == found[2] > found[1] and found[3] > found[0]
    every = pd.DataFrame({"film": model.fitted.items.index, "tab": "search", "hour": 20})
    who = np.zeros(1, dtype=np.int64)
    mean, _ = model.fitted.any_item(user.adapted, user.shown, who, rows.head(1))
    asked = user.shown._replace(
        user=np.zeros(len(every), dtype=np.int64),
        item=np.arange(len(every)),
        value=np.zeros(len(every)),
        time=np.zeros(len(every)),
        context=every[["tab", "hour"]],
    )
    assert mean.item() == pytest.approx(
        float(model.fitted.method.score(model.fitted.state, user.adapted, asked).mean.mean())
    )
    monkeypatch.setattr("warmstart.estimators.preference_model.CELLS", 1)  # one at a time
    assert np.allclose(user.frame(rows)["prediction"], found)


def test_many_users_ask_of_items_that_are_not_known(model, log):
    names = log["user"].unique()[-3:]
    users = model.adapt(log[log["user"].isin(names)])
    rows = pd.DataFrame({"user": [*names, *names], "film": "new", "tab": ["home"] * 3 + ["feed"] * 3, "hour": 9})
    found = users.frame(rows)["prediction"].to_numpy()
    for place, name in enumerate(rows["user"]):
        one = model.adapt(log[log["user"] == name]).frame(rows.iloc[[place]])["prediction"].item()
        assert one == pytest.approx(found[place], rel=1e-5)


def test_several_usual_values_are_one_text_with_the_separator(log):
    tags = np.array([["b", "c"], ["a"], ["b", "c"], None, []], dtype=object)[np.arange(len(log)) % 5]
    roles = replace(ROLES, context=("tags",))
    data = read_ratings(log.assign(tags=tags), roles)
    assert usual_context(data._replace(context=data.context[["tags"]])) == {"tags": "b|c"}
    text = read_ratings(log.assign(tags=["b|c", "a"] * (len(log) // 2) + ["b|c"] * (len(log) % 2)), roles)
    assert usual_context(text._replace(context=text.context[["tags"]])) == {"tags": "b|c"}
    model = PreferenceLearner("click_bayes", SMALL).fit(log.assign(tags=tags), roles)
    film = pd.DataFrame({"film": ["f003"] * 2, "tags": [["b", "c"], ["a"]]})
    both, one = model.adapt().predict(film).mean.tolist()
    assert model.adapt().predict(film[["film"]]).mean.tolist() == [both, both] and both != one
    assert "'tags' is 'z', which" in model.adapt().unknown(film.assign(tags="a|z"))[0]


def test_what_is_supposed_or_strange_is_said(model, own):
    user = model.adapt(own)
    assert user.notes == () and user.recommend(1, context={"tab": "feed", "hour": "20"}).notes == ()
    note = "'tab' is 'nosuch', which no or few training impressions have: taken as unknown"
    assert user.recommend(1, context={"tab": "nosuch", "hour": 20}).notes == (note,)
    assert user.unknown(pd.DataFrame({"film": ["f003"], "tab": "nosuch", "hour": 1})) == (note,)
    assert model.adapt(own.assign(tab="nosuch")).notes == (note,)
    more = user.observe(own.assign(tab="nosuch").drop(columns="hour"))
    assert more.notes == (note, "the context of the support is not told in full: taken as usual, hour=12")
    assert more.observe(own.drop(columns="hour")).notes == more.notes
    for value in ("", " ", None, np.nan):
        with pytest.raises(InputError, match="a value of context 'tab', got none; write for instance tab=home, or"):
            user.recommend(1, context={"tab": value})


def test_a_method_without_context_says_so_and_keeps_none(log, own, tmp_path):
    model = PreferenceLearner("click_means").fit(log, ROLES)
    assert model.notes_[-1] == "click_means does not use the context (tab, hour): the model has none"
    model.save(tmp_path / "m")
    again = PreferenceLearner.load(tmp_path / "m")
    assert again.fitted.usual == {} and again.fitted.roles.context == ()
    user = again.adapt(own)
    assert user.notes == () and user.unknown(own[["film"]]) == ()
    with pytest.raises(InputError, match="no context, since the model has none, got 'tab'; leave it out"):
        user.recommend(1, context={"tab": "home"})


def test_errors_tell_the_row_of_the_file(model, log, own):
    turned = log.iloc[::-1].reset_index(drop=True).astype({"hour": object})
    turned.loc[41, "hour"] = "abc"
    with pytest.raises(InputError, match="'hour' of the ratings, got 'abc' in row 42; declare"):
        PreferenceLearner("click_means").fit(turned, ROLES)
    others = pd.concat([own.assign(user="b"), own.assign(user="a")], ignore_index=True).astype({"hour": object})
    others.loc[8, "hour"] = "abc"
    words = "a number in column 'hour' of the {}, got 'abc' in row {}; correct it or leave it empty"
    for call, place in (
        (lambda: model.adapt(others), ("support", 9)),
        (lambda: model.adapt(others.iloc[::-1], users=["a"]), ("support", 4)),
        (lambda: model.adapt(users=["a", "b"]).observe(others), ("support", 9)),
        (lambda: model.adapt(users=["a", "b"]).predict(others.assign(film=["new", "f003"] * 6)), ("query", 9)),
    ):
        with pytest.raises(InputError, match=words.format(*place)):
            call()
    assert model.adapt(others, users=["b"]).events.tolist() == [6]
    with pytest.raises(InputError, match="'hour' of the context, got 'abc'; write for instance hour=12"):
        model.adapt().recommend(1, context={"hour": "abc"})


def test_an_empty_column_is_refused_before_anything_is_trained(log, monkeypatch):
    monkeypatch.setattr("warmstart.estimators.preference_learner.choose", lambda *given, **more: pytest.fail("trained"))
    for cell in (None, np.nan, " "):
        with pytest.raises(InputError, match="values in context column 'tab' of the training users, got none; leave"):
            PreferenceLearner("click_bayes").fit(log.assign(tab=cell), ROLES)
