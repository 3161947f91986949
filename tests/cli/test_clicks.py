"""Clicks at the command line: fit, adapt, recommend and evaluate, and ratings where they are asked for."""

import json

import pandas as pd
import pytest

from warmstart.estimators.preference_learner import PreferenceLearner
from warmstart.estimators.preference_rivals import BASELINES
from warmstart.tasks.films import simulate_films

NEW = "u00119"


def document(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture(scope="module")
def arcade(tmp_path_factory):
    """clicks.csv, users.csv, films.csv, the impressions of a new user and a query: not to be written to."""
    folder = tmp_path_factory.mktemp("arcade")
    made = simulate_films(120, 30, seed=2, fewest=6, most=15)
    log = made.ratings.assign(clicked=made.ratings["rating"] >= 4).drop(columns="rating")
    own = log["user"] == NEW
    log[~own].to_csv(folder / "clicks.csv", index=False)
    made.users.to_csv(folder / "users.csv", index=False)
    made.films.to_csv(folder / "films.csv", index=False)
    log[own].head(4).to_csv(folder / "new.csv", index=False)
    log[own].iloc[4:][["user", "film"]].to_csv(folder / "query.csv", index=False)
    return folder


def test_clicks_are_fitted_adapted_recommended_and_evaluated(cli, arcade, tmp_path, monkeypatch):
    kept = {"bias": BASELINES["binary"]["bias"], "click rate": BASELINES["binary"]["click rate"]}
    monkeypatch.setattr("warmstart.estimators.preference_rivals.BASELINES", {"binary": kept})
    tables = ("--task-table", arcade / "users.csv", "--item-table", arcade / "films.csv")
    line = ("fit", arcade / "clicks.csv", "--preferences", "--task", "user", "--target", "clicked", *tables)
    done = cli(*line, "-o", tmp_path / "m")
    assert done.code == 0 and done.err == "" and done.out.count("taken as clicks") == 1
    trained = PreferenceLearner.load(tmp_path / "m").fitted
    assert f"Validation log loss: {trained.value:.4g}" in done.out and "NEW_CLICKS.csv" in done.out
    told = document(cli(*line, "--method", "click_bayes", "--set", "trees.trees=20", "-o", tmp_path / "b", "--json"))
    assert told["kind"] == "binary" and told["settings"]["trees"]["trees"] == 20 and told["notes"] == []
    new = ("--support", arcade / "new.csv", "--descriptor-table", arcade / "users.csv")
    said = pd.DataFrame(
        document(cli("adapt", tmp_path / "b", *new, "--query", arcade / "query.csv", "--json"))["predictions"]
    )
    user = PreferenceLearner.load(tmp_path / "b").adapt(arcade / "new.csv", arcade / "users.csv")
    pd.testing.assert_frame_equal(said, user.frame(arcade / "query.csv"))
    assert said[["low", "prediction", "high"]].stack().between(0, 1).all()
    done = cli("recommend", tmp_path / "b", *new, "-k", 3)
    assert done.code == 0 and "user's part, 90%" in done.out and "the impressions " in done.out
    told = document(cli("recommend", tmp_path / "b", *new, "-k", 3, "--json"))["users"][0]
    assert [one["item"] for one in told["items"]] == user.recommend(3).items["film"].tolist()
    done = cli("evaluate", tmp_path / "b", arcade / "clicks.csv", *tables, "-o", tmp_path / "out")
    assert done.code == 0 and "AUC per user" in done.out and "a log loss of" in done.out and "click rate" in done.out
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") >= 2


def test_clicks_are_ratings_when_told_and_points_have_no_interval(cli, arcade, tmp_path):
    line = ("fit", arcade / "clicks.csv", "--task", "user", "--target", "clicked", "--item", "film")
    told = document(cli(*line, "--method", "click_means", "-o", tmp_path / "m", "--json"))
    assert told["method"] == "click_means" and told["kind"] == "binary"
    done = cli("recommend", tmp_path / "m", "--support", arcade / "new.csv", "-k", 2)
    assert done.code == 0 and "part, 90%" not in done.out and "how readily this user clicks" in done.out
    done = cli("adapt", tmp_path / "m", "--support", arcade / "new.csv", "--query", arcade / "query.csv")
    assert done.code == 0 and "prediction" in done.out and "low" not in done.out
    numbers = pd.read_csv(arcade / "clicks.csv").astype({"clicked": int})
    numbers.to_csv(tmp_path / "rows.csv", index=False)
    line = ("fit", tmp_path / "rows.csv", "--preferences", "--task", "user", "--target", "clicked", "--item", "film")
    told = document(cli(*line, "--kind", "squared", "--method", "rating_means", "-o", tmp_path / "r", "--json"))
    assert told["kind"] == "squared" and told["scale"] == [0, 1] and told["notes"] == []


def test_a_context_is_named_at_fit_and_told_to_recommend(cli, arcade, tmp_path):
    log = pd.read_csv(arcade / "clicks.csv")
    log.assign(place=["phone", "screen", "phone"] * (len(log) // 3) + ["phone"] * (len(log) % 3)).to_csv(
        tmp_path / "log.csv", index=False
    )
    line = ("fit", tmp_path / "log.csv", "--preferences", "--task", "user", "--target", "clicked", "--item", "film")
    method = ("--method", "click_bayes", "--set", "trees.trees=20")
    done = cli(*line, "--context", "place", *method, "-o", tmp_path / "m")
    assert done.code == 0 and "with a table of the columns user, film, clicked, place:" in done.out
    done = cli("recommend", tmp_path / "m", "--user", "bob", "--context", "place=screen")
    assert done.code == 0 and "context" not in done.out
    assert "taken as usual, place=phone" in cli("recommend", tmp_path / "m", "--user", "bob").out
    done = cli("recommend", tmp_path / "m", "--user", "bob", "--context", "spot=screen")
    assert done.code == 2 and "'spot'" in done.err
    done = cli("recommend", tmp_path / "m", "--user", "bob", "--context", "place=")
    assert done.code == 2 and "a value of context 'place', got none; write for instance place=phone" in done.err
    assert "'place' is 'tv', which no" in cli("recommend", tmp_path / "m", "--user", "bob", "--context", "place=tv").out
    for name, given in (("plain", ()), ("means", ("--context", "place"))):
        done = cli(*line, *given, "--method", "click_means", "-o", tmp_path / name)
        assert ("does not use the context (place)" in done.out) == bool(given) and "clicked:" in done.out
        done = cli("recommend", tmp_path / name, "--user", "bob", "--context", "place=phone")
        assert done.code == 2 and "expected no context, since the model has none, got 'place'" in done.err
    rows = ("fit", tmp_path / "log.csv", "--task", "user", "--target", "clicked", "--context", "place")
    assert "--context" in cli(*rows, "-o", tmp_path / "r").err
