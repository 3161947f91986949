"""Ratings at the command line: fit, recommend, adapt and evaluate, and what is refused or said of bad input."""

import json
import re
import resource
import shlex
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest

from warmstart.cli.preferences import is_preferences
from warmstart.estimators.preference_learner import PreferenceLearner
from warmstart.estimators.preference_methods import METHODS
from warmstart.estimators.preference_rivals import BASELINES
from warmstart.report import load
from warmstart.tasks.films import simulate_films
from warmstart.tasks.roles import Roles

SMALL = ("--set", "factors=2", "--set", "sweeps=3", "--set", "choices=4")
NEW = "u00119"


@pytest.fixture(scope="module")
def shop(tmp_path_factory, cli):
    """ratings.csv, users.csv, films.csv, the ratings of a new user and a model: not to be written to."""
    folder = tmp_path_factory.mktemp("shop")
    made = simulate_films(120, 30, seed=2, fewest=6, most=15)
    own = made.ratings["user"] == NEW
    made.ratings[~own].to_csv(folder / "ratings.csv", index=False)
    made.users.to_csv(folder / "users.csv", index=False)
    made.films.to_csv(folder / "films.csv", index=False)
    made.ratings[own].head(4).to_csv(folder / "new.csv", index=False)
    made.ratings[own].iloc[4:][["user", "film"]].to_csv(folder / "query.csv", index=False)
    done = cli(*fit(folder), "--method", "preference_bayes", *SMALL, "-o", folder / "model")
    assert done.code == 0, done.err
    return folder


def fit(folder, *options):
    """The command of the issue: the item column is the one that both tables have."""
    tables = ("--task-table", folder / "users.csv", "--item-table", folder / "films.csv")
    return ("fit", folder / "ratings.csv", "--task", "user", "--target", "rating", *tables, *options)


def document(done):
    assert done.code == 0, done.err
    return json.loads(done.out)


def refused(done, *words):
    assert done.code == 2 and done.out == "" and "Traceback" not in done.err
    (line,) = done.err.splitlines()
    assert re.fullmatch(r"warmstart: expected .+, got .+; .+", line)
    for word in words:
        assert word in line, line


def test_help_of_recommend_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys; from warmstart.cli import run; assert run(['recommend', '--help']) == 0; "
        "sys.exit(' '.join({'torch', 'numpy', 'pandas'} & set(sys.modules)) or 0)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    assert "--support" in done.stdout and "--user" in done.stdout


def test_fit_tells_what_it_did_and_what_to_type_next(cli, shop, tmp_path):
    done = cli(*fit(shop), "--method", "preference_bayes", *SMALL, "-o", tmp_path / "my model")
    assert done.code == 0 and done.err == ""
    trained = PreferenceLearner.load(tmp_path / "my model").fitted
    assert trained.config.factors == 2 and trained.roles.item == "film"
    assert f"{trained.value:.4g}" in done.out and "30, by column 'film'" in done.out and "1 to 5" in done.out
    recommend, evaluate = (shlex.split(line)[1:] for line in done.out.splitlines()[-2:])
    assert recommend[:2] == ["recommend", str(tmp_path / "my model")] and "age=...,job=..." in recommend
    assert evaluate[:3] == ["evaluate", str(tmp_path / "my model"), str(shop / "ratings.csv")]


def test_preferences_compare_methods_by_default(cli, shop, tmp_path):
    told = document(cli(*fit(shop), "--preferences", "--item", "film", "-o", tmp_path / "m", "--json"))
    best = {name: trials[0]["error"] for name, trials in told["trials"].items()}
    assert set(best) == {"preference_bayes", "rating_means"} and told["method"] == min(best, key=best.get)
    assert told["users"] == {"train": 83, "validation": 12, "test": 24} and told["scale"] == [1, 5]
    again = PreferenceLearner().fit(
        shop / "ratings.csv", Roles("user", "rating", item="film"), shop / "users.csv", shop / "films.csv"
    )
    assert again.fitted.value == pytest.approx(told["error"])


def test_rows_stay_rows_unless_told(cli, shop, tmp_path, fast):
    rows = pd.read_csv(shop / "ratings.csv").drop(columns="time").to_csv(tmp_path / "rows.csv", index=False)
    assert rows is None
    line = ("fit", tmp_path / "rows.csv", "--task", "user", "--target", "rating", "--item", "film", "--kind", "squared")
    done = cli(*line, "--method", "pretrain", *fast, "-o", tmp_path / "m")
    assert done.code == 0 and "with --preferences they are ratings" in done.out
    assert json.loads((tmp_path / "m" / "config.json").read_text())["kind"] == "meta"
    refused(cli("recommend", tmp_path / "m", "--user", "bob"), "model of preferences", "kind meta")


def test_a_method_for_both_takes_ratings_where_there_are_items(monkeypatch):
    assert is_preferences("preference_bayes", False) and not is_preferences("maml", True)
    monkeypatch.setitem(METHODS, "maml", METHODS["rating_means"])
    assert is_preferences("maml", True) and not is_preferences("maml", False)


def test_recommend_is_what_the_library_says(cli, shop, tmp_path):
    options = ("--support", shop / "new.csv", "--descriptor-table", shop / "users.csv", "-k", 5)
    told = document(cli("recommend", shop / "model", *options, "--json"))
    (one,) = told["users"]
    user = PreferenceLearner.load(shop / "model").adapt(shop / "new.csv", shop / "users.csv")
    found = user.recommend(5)
    assert one["user"] == NEW and [line["item"] for line in one["items"]] == found.items["film"].tolist()
    assert np.allclose([line["low"] for line in one["items"]], found.items["low"])
    assert one["reason"]["level"] == found.reasons["level"][0] and one["reason"]["events"] == 4
    assert [near["user"] for near in one["reason"]["nearest"]] == found.reasons["nearest"][0]
    done = cli("recommend", shop / "model", *options)
    assert f"For {NEW}" in done.out and "90% interval" in done.out and "Answered by:" in done.out
    assert found.items["title"][0] in done.out and found.reasons["nearest"][0][0] in done.out
    done = cli("recommend", shop / "model", *options, "-o", tmp_path / "best.csv")
    assert pd.read_csv(tmp_path / "best.csv")["film"].tolist() == found.items["film"].tolist()
    assert str(tmp_path / "best.csv") in done.out


def test_recommend_to_many_and_to_a_named_one_of_a_whole_table(cli, shop):
    all_of_them = ("recommend", shop / "model", "--support", shop / "ratings.csv", "-k", 2, "--json")
    assert len(document(cli(*all_of_them))["users"]) == 119
    (one,) = document(cli(*all_of_them, "--user", "u00003"))["users"]
    rated = pd.read_csv(shop / "ratings.csv").query("user == 'u00003'")
    assert one["reason"]["events"] == len(rated) and not {line["item"] for line in one["items"]} & set(rated["film"])
    done = cli("recommend", shop / "model", "--support", shop / "ratings.csv", "-k", 2)
    assert done.out.count("Answered by:") == 10 and "109 users more" in done.out


def test_an_unknown_user_is_answered_from_the_profile_which_is_said(cli, shop):
    done = cli("recommend", shop / "model", "--user", "bob", "--descriptor", "age=30,job=doctor")
    assert done.code == 0 and "'bob': no events: answered from the profile alone" in done.out
    assert "Answered by: profile" in done.out
    done = cli("recommend", shop / "model", "--user", "bob", "--support", shop / "new.csv")
    assert "'bob': neither events nor a profile: answered as for an average user" in done.out
    table = ("--descriptor-table", shop / "users.csv")
    done = cli("recommend", shop / "model", "--user", "bob", "--user", "u00001", *table, "--json")
    assert document(done)["notes"] == [
        "'u00001': no events: answered from the profile alone",
        "'bob': neither events nor a profile: answered as for an average user",
    ]


def test_adapt_predicts_rows_of_users_and_items(cli, shop, tmp_path):
    options = ("--support", shop / "new.csv", "--query", shop / "query.csv", "--descriptor-table", shop / "users.csv")
    told = document(cli("adapt", shop / "model", *options, "--level", "0.8", "--json"))
    user = PreferenceLearner.load(shop / "model").adapt(shop / "new.csv", shop / "users.csv")
    wanted = user.frame(shop / "query.csv", 0.8)
    found = pd.DataFrame(told["predictions"])
    pd.testing.assert_frame_equal(found, wanted)
    assert told["support"] == {NEW: 4} and "notes" not in told
    pd.read_csv(shop / "new.csv").head(0).to_csv(tmp_path / "none.csv", index=False)
    nothing, profiles = ("--support", tmp_path / "none.csv"), ("--descriptor-table", shop / "users.csv")
    ask = ("adapt", shop / "model", "--query", shop / "query.csv", *profiles, "--json")
    assert document(cli(*ask, *nothing)) == document(cli(*ask))
    someone = cli("recommend", shop / "model", *nothing, "--descriptor", "age=30", "-k", "3")
    assert someone.code == 0 and "no events: answered from the profile alone" in someone.out
    (tmp_path / "query.csv").write_text("user,film\nbob,f00001\nu00119,f99999\n")
    done = cli("adapt", shop / "model", "--support", shop / "new.csv", "--query", tmp_path / "query.csv")
    assert "'bob': neither events nor" in done.out and "'f99999' first: answered as for an item taken at" in done.out


def test_evaluate_writes_a_page_beside_baselines(cli, shop, tmp_path, monkeypatch):
    kept = {name: BASELINES["squared"][name] for name in ("global mean", "bias")}
    monkeypatch.setattr("warmstart.estimators.preference_rivals.BASELINES", {"squared": kept})
    tables = ("--task-table", shop / "users.csv", "--item-table", shop / "films.csv")
    done = cli("evaluate", shop / "model", shop / "ratings.csv", *tables, "-o", tmp_path / "out")
    assert done.code == 0 and "unseen users" in done.out and "nDCG@3" in done.out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"results.json", "table.csv", "report.html"}
    rows = load(tmp_path / "out" / "results.json").rows
    assert {row.method for row in rows} == {"preference_bayes", *kept} and max(row.n for row in rows) == 24
    refused(cli("evaluate", shop / "model", shop / "new.csv", *tables), "expected")
    refused(cli("evaluate", shop / "model", shop / "ratings.csv"), "the table of users that the model was fitted with")
    refused(cli("evaluate", shop / "model", shop / "ratings.csv", *tables[:2]), "the table of items", "none")


def lines(**changes):
    """A table of 12 users and 5 films, with some lines replaced."""
    rows = ["user,film,rating,day"] + [
        f"u{u},f{f},{1 + (u * f) % 5},{10 * u + f}" for u in range(12) for f in range(5) if (u + f) % 4
    ]
    for number, line in changes.items():
        rows[int(number[1:])] = line
    return "\n".join(rows) + "\n"


FIT = [
    ("no item column", lines(), [], ["column of the items", "--item COL"]),
    ("misspelt item column", lines(), ["--item", "flim"], ["'flim'", "'film' for"]),
    ("rating outside the scale", lines(r3="u0,f3,9,1"), ["--scale", "1,5"], ["scale 1 to 5", "'rating'", "9 in row 3"]),
    ("scale of one number", lines(), ["--scale", "5"], ["--scale LOW,HIGH", "'5'"]),
    ("scale upside down", lines(), ["--scale", "5,1"], ["--scale LOW,HIGH", "'5,1'"]),
    ("rating that is a text", lines(r4="u1,f3,good,1"), [], ["'rating'", "'good' in row 4"]),
    ("rating that is missing", lines(r4="u1,f3,,1"), [], ["'rating'", "row 4"]),
    ("user without a name", lines(r4=",f3,2,1"), [], ["'user'", "row 4"]),
    ("time that is none", lines(r4="u1,f3,2,noon"), ["--time", "day"], ["a time", "'noon' in row 4"]),
    ("ragged row", lines(r4="u1,f3,2,1,7"), [], ["4 columns", "5"]),
    (
        "equal ratings",
        "user,film,rating\n" + "".join(f"u{u},f{f},3\n" for u in range(9) for f in range(3)),
        [],
        ["differ"],
    ),
    ("two users", "user,film,rating\na,f1,1\na,f2,2\nb,f1,3\nb,f2,1\n", [], ["three users", "2"]),
    ("method of rows", lines(), ["--method", "maml"], ["method for preferences among", "'maml'"]),
    ("misspelt setting", lines(), ["--method", "preference_bayes", "--set", "factor=2"], ["did you mean factors"]),
    ("settings for auto", lines(), ["--set", "factors=2"], ["auto", "preference_bayes"]),
    ("unknown device", lines(), ["--device", "tpu9"], ["auto, cpu or cuda", "tpu9"]),
    ("clicks that are ratings", lines(), ["--kind", "binary"], ["0 or 1, false or true", "'rating'", "2 in row 5"]),
    ("classes", lines(), ["--kind", "multiclass"], ["squared or binary", "'multiclass'"]),
    ("nothing but clicks", re.sub(r",\d,", ",1,", lines()), [], ["impressions without one", "all 1"]),
    ("clicks on a scale", lines(), ["--kind", "binary", "--scale", "0,1"], ["no scale for clicks"]),
    ("options of rows", lines(), ["--steps", "10"], ["only options for preferences", "--steps"]),
    ("weights", lines(), ["--weight", "day"], ["only options for preferences", "--weight"]),
    ("a name twice in the item table", lines(), ["--item-table", "SIDE"], ["each name once", "'f1' in row 2"]),
]


@pytest.mark.parametrize(("text", "options", "words"), [case[1:] for case in FIT], ids=[case[0] for case in FIT])
def test_fit_refuses(cli, tmp_path, text, options, words):
    (tmp_path / "ratings.csv").write_text(text)
    (tmp_path / "side.csv").write_text("film,genre\nf1,war\nf1,war\n")
    options = [tmp_path / "side.csv" if option == "SIDE" else option for option in options]
    named = [] if {"--item", "--item-table"} & set(options) or "column of the items" in words else ["--item", "film"]
    line = ("fit", tmp_path / "ratings.csv", "--preferences", "--task", "user", "--target", "rating", *named, *options)
    refused(cli(*line, "-o", tmp_path / "model"), *words)
    assert {path.name for path in tmp_path.iterdir()} == {"ratings.csv", "side.csv"}


def test_options_of_preferences_are_refused_for_rows(cli, shop, tmp_path):
    line = ("fit", shop / "ratings.csv", "--task", "user", "--target", "rating", "--scale", "1,5", "-o", tmp_path / "m")
    refused(cli(*line), "--scale", "add --preferences")


def test_what_fit_puts_right_it_says(cli, tmp_path):
    (tmp_path / "ratings.csv").write_text(lines(r3="u0,f1,5,0") + "v0,f1,4,3\n")
    (tmp_path / "users.csv").write_text("user,age\n" + "".join(f"u{u},{u}\n" for u in range(10)))
    (tmp_path / "films.csv").write_text("film,genre\nf1,war\nf2,war\nf9,war\n")
    tables = ("--task-table", tmp_path / "users.csv", "--item-table", tmp_path / "films.csv", "--time", "day")
    line = ("fit", tmp_path / "ratings.csv", "--task", "user", "--target", "rating", *tables)
    done = cli(*line, "--method", "preference_bayes", *SMALL, "-o", tmp_path / "m", "--json")
    notes = " / ".join(document(done)["notes"])
    for words in (
        "not in the order of time",
        "1 repeated ratings of an item by a user: the last one was kept",
        "3 of 13 users of the ratings are not in the table of users",
        "3 of 5 items of the ratings are not in the table of items",
        "1 users have one rating",
    ):
        assert words in notes
    items = PreferenceLearner.load(tmp_path / "m").fitted.items
    assert items.index[:3].tolist() == ["f1", "f2", "f9"] and set(items.index[3:]) == {"f0", "f3", "f4"}
    told = cli("recommend", tmp_path / "m", "--user", "bob", "--descriptor", "age=4")
    assert "too few validation users for intervals" in told.out


NEW_RATINGS = [
    ("outside the scale", "film,rating\nf00001,7\n", [], ["scale 1 to 5", "'rating' of the support", "7 in row 1"]),
    ("all items seen", "film,rating\n" + "".join(f"f{i:05d},3\n" for i in range(30)), [], ["has not rated", "all 30"]),
    ("no item column", "movie,rating\nf00001,3\n", [], ["'film'", "support"]),
    ("nothing", "", [], ["a table", "an empty file"]),
    ("a profile that is none", "film,rating\nf00001,3\n", ["--descriptor", "age"], ["key=value"]),
    (
        "an unknown column of the profile",
        "film,rating\nf00001,3\n",
        ["--descriptor", "agee=3"],
        ["'agee'", "'age' for"],
    ),
    ("a text for a number", "film,rating\nf00001,3\n", ["--descriptor", "age=old"], ["'age'", "'old'"]),
    ("a level that is none", "film,rating\nf00001,3\n", ["--level", "2"], ["between 0 and 1"]),
    ("a format that is none", "film,rating\nf00001,3\n", ["-o", "best.xlsx"], [".csv, .tsv or .parquet"]),
]


@pytest.mark.parametrize(
    ("text", "options", "words"), [case[1:] for case in NEW_RATINGS], ids=[case[0] for case in NEW_RATINGS]
)
def test_recommend_refuses(cli, shop, tmp_path, text, options, words):
    (tmp_path / "new.csv").write_text(text)
    refused(cli("recommend", shop / "model", "--support", tmp_path / "new.csv", *options), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("film,rating,time\nf00001,3,1\nf00001,5,2\n", ["1 repeated ratings", "the last one was kept"]),
        ("film,rating,time\nf00001,3,5\nf00002,5,2\n", []),  # a time column that was given no meaning
        ("film,rating\nf00001,3\nf99999,5\n", ["'f99999' first: their ratings were left out"]),
        ("film,rating\nf99999,5\n", ["'f99999' first", "neither events nor a profile"]),
    ],
)
def test_recommend_says_what_it_left_out(cli, shop, tmp_path, text, words):
    (tmp_path / "new.csv").write_text(text)
    done = cli("recommend", shop / "model", "--support", tmp_path / "new.csv", "-k", 1)
    assert done.code == 0
    for word in words:
        assert word in done.out
    assert words or "Note" not in done.out


def test_a_new_category_is_said(cli, shop):
    done = cli("recommend", shop / "model", "--user", "bob", "--descriptor", "age=30,job=astronaut")
    assert done.code == 0 and "'job' is 'astronaut', which no or few training users have" in done.out


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "schema.json"])
@pytest.mark.parametrize("damage", ["missing", "half"])
def test_recommend_refuses_a_damaged_model(cli, shop, tmp_path, name, damage):
    for file in (shop / "model").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink() if damage == "missing" else (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    refused(cli("recommend", tmp_path, "--user", "bob"), name)


def test_options_without_meaning_for_a_model_of_preferences_are_refused(cli, shop, tmp_path):
    query = ("--query", shop / "query.csv")
    refused(cli("adapt", shop / "model", *query, "--save", tmp_path / "a"), "--save", "model of preferences")
    refused(cli("adapt", shop / "model", *query, "-k", 2), "model of preferences")
    both = ("--descriptor", "age=3", "--descriptor-table", shop / "users.csv")
    refused(cli("adapt", shop / "model", *query, *both), "--descriptor or --descriptor-table", "both")
    refused(cli("recommend", shop / "model", *both), "--descriptor or --descriptor-table", "both")
    refused(cli("export", shop / "model", "-o", tmp_path / "m.onnx"), "expected")


ONE_M = {
    "ml-1m/ratings.dat": "1::10::5::978300760\n1::20::three::978300700\n2::10::1::5\n",
    "ml-1m/users.dat": "1::F::1::10::48067\n2::M::56::16::70072\n",
    "ml-1m/movies.dat": "10::A (1995)::Comedy\n20::M (1931)::Drama\n",
}


def test_a_broken_line_and_a_truncated_archive_of_a_publisher(cli, tmp_path):
    with zipfile.ZipFile(tmp_path / "ml-1m.zip", "w") as archive:
        for name, text in ONE_M.items():
            archive.writestr(name, text)
    line = ("study", "cold_ratings", "--data", tmp_path)
    refused(cli(*line), "ratings.dat", "'three' in line 2, column", "download it again")
    whole = (tmp_path / "ml-1m.zip").read_bytes()
    (tmp_path / "ml-1m.zip").write_bytes(whole[: len(whole) // 2])
    refused(cli(*line), "ml-1m.zip", "truncated or damaged", "download it again")


def test_embedded_films_are_fitted_and_recommended_as_told(cli, tmp_path):
    told = document(cli("data", "get", "films", "--tasks", 60, "-o", tmp_path / "data", "--json"))
    fit, recommend, adapt, evaluate = (shlex.split(line)[1:] for line in told["commands"])
    assert cli(*fit, "--method", "rating_means").code == 0
    (one,) = document(cli(*recommend, "--json"))["users"]
    assert one["reason"]["level"] == "bias" and len(one["items"]) == 10
    assert len(document(cli(*adapt, "--json"))["predictions"]) == len(pd.read_csv(tmp_path / "data" / "query.csv"))
    assert evaluate[0] == "evaluate"
