"""warmstart select on a small table with two sources that lie, and what it refuses."""

import json

import numpy as np
import pandas as pd
import pytest

from warmstart.cli import run
from warmstart.estimators.source_methods import METHODS

STATES = ["HI", "A", "B", "C", "D", "E", "F"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    draw = np.random.default_rng(0)
    rows = 250
    frame = pd.DataFrame({"state": np.repeat(STATES, rows), "age": draw.normal(size=rows * 7)})
    frame["job"] = draw.choice(list("vwxyz"), len(frame))
    frame["race"] = draw.choice(["white", "black"], len(frame), p=[0.6, 0.4])
    score = frame["age"] + frame["job"].map({"v": -2.0, "w": -1.0, "x": 0.0, "y": 1.0, "z": 2.0})
    rich = score + 0.5 * draw.normal(size=len(frame)) > 0.2
    frame["income"] = np.where(frame["state"].isin(["E", "F"]), ~rich, rich)
    path = tmp_path_factory.mktemp("select") / "people.csv"
    frame.to_csv(path, index=False)
    return path


def arguments(table, *more, state="HI"):
    short = ["--size", "2", "--subsets", "12", "--steps", "80", "--trials", "2", "--smallest", "10", "--device", "cpu"]
    short += ["--final-steps", "60"]
    return ["select", str(table), "--task", "state", "--target", "income", "--target-task", state, *short, *more]


def test_liars_are_found_and_the_page_is_written(table, tmp_path, capsys):
    store = ["--store", str(tmp_path / "store")]
    more = ["--group", "race", "-o", str(tmp_path / "out"), "--json"]
    assert run(arguments(table, *store, *more)) == 0
    document = json.loads(capsys.readouterr().out)
    found = {one["source"]: one for one in document["selection"]["sources"]}
    assert max(found[name]["effect"] for name in "ABCD") < 0 < min(found[name]["effect"] for name in "EF")
    assert all(one["low"] <= one["effect"] <= one["high"] for one in found.values())
    assert document["selection"]["method"] in {row["method"] for row in document["rows"]}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Ranked coefficients of 6 sources" in page and document["verdict"] in page
    assert list((tmp_path / "store").glob("done-*.json"))
    # the model that was kept predicts
    assert document["model"] == str(tmp_path / "out" / "model")
    told = tmp_path / "said.csv"
    assert run(["adapt", document["model"], "--query", str(table), "-o", str(told), "--quiet"]) == 0
    capsys.readouterr()
    said, rows = pd.read_csv(told), pd.read_csv(table)
    home = rows["state"].isin(["HI", "A", "B", "C", "D"])
    assert len(said) == len(rows) and list(said) == ["prediction", "p(True)"]
    assert (said["prediction"] == rows["income"])[home].mean() > 0.8
    assert run(["adapt", document["model"], "--query", str(table), "--support", str(table)]) == 2
    assert "--support" in capsys.readouterr().err
    # another table in the same store
    assert run(arguments(table, *store, state="A")) == 2
    assert "a job store of this configuration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--metric", "auc"], "a measure among"),
        (["--size", "7"], "a subset size from 1 to the 6 sources"),
        (["--sources", "A,HI"], "sources other than the target"),
        (["--sources", "A,Z"], "rows of every source"),
        (["--group", "colour"], "column 'colour'"),
        (["--metric", "worst-group", "--group", "race", "--smallest", "500"], "a group of at least 500 rows"),
        (["--metric", "equal-opportunity", "--group", "race", "--between", "white"], "two groups"),
        (["--metric", "equal-opportunity", "--group", "race", "--between", "white,green"], "groups among black, white"),
        (["--metric", "equal-opportunity", "--group", "race", "--between", "black,black"], "two different groups"),
        (["--metric", "worst-group"], "a column of groups for worst-group"),
        (["--sources", "A,B,A,C,D"], "every source once, got 'A' more than once"),
        (["--sources", "A,B,C"], "4 sources or more, got 3"),
        (["--subsets", "14"], "at most 13 subsets of 2 out of 6, two being held out, got 14; lower --subsets"),
        (["--drop", "age,job,race"], "a column to predict from, got none"),
        (["--engine", "threads"], "an engine among"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(table, capsys, more, words):
    assert run(arguments(table, *more)) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_target_that_is_not_there_is_refused(table, capsys):
    assert run(arguments(table, state="TX")) == 2
    assert "a task 'TX' in column 'state'" in capsys.readouterr().err


def test_a_gap_is_not_closed_by_saying_the_same_of_everybody(table, capsys):
    more = ["--metric", "demographic-parity", "--group", "race", "--between", "black,white"]
    assert run(arguments(table, *more)) == 0
    told = capsys.readouterr().out
    assert "The gap is that between black and white in 'True'" in told and "demographic-parity gap + error" in told
    assert run(arguments(table, *more, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    best = document["selection"]["method"]
    at = {row["method"]: row["mean"] for row in document["rows"] if row["metric"] == "accuracy"}
    assert at[best] > 75


def test_a_group_is_called_as_the_table_calls_it(table, tmp_path, capsys):
    frame = pd.read_csv(table)
    frame.loc[(frame["state"] == "HI") & (frame["race"] == "black"), "income"] = False
    shore = np.where(frame["state"].isin(["HI", "A"]), "wet", "dry")
    frame.assign(land="one", shore=shore).to_csv(tmp_path / "people.csv", index=False)
    for more, words in (
        (
            ["equal-opportunity", "--group", "race"],
            "expected positives in group 'black' among validation rows, got none",
        ),
        (["equal-opportunity", "--group", "land"], "expected two groups or more, got 'one' alone"),
        (["worst-group", "--group", "shore"], "expected two groups or more among the rows of HI, got 'wet' alone"),
    ):
        assert run(arguments(tmp_path / "people.csv", "--metric", *more)) == 2
        assert words in capsys.readouterr().err


def test_how_sure_the_surrogate_is_is_said(table, capsys):
    few = [*arguments(table)[:-4], "--trials", "1", "--smallest", "10", "--device", "cpu", "--final-steps", "20"]
    assert run([*few, "--subsets", "4"]) == 0
    told = capsys.readouterr().out
    assert "4 subsets of 6 sources leave the surrogate under-determined, so ridge is used" in told
    assert told.startswith("4 subsets are fewer than the 6 sources: effects will be shrunk (ridge).")
    assert "On 2 subsets it has not seen" in told
    assert run([*few, "--linear", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["selection"]["surrogate"]
    assert found["estimates"]["n"] > 5 and -1 <= found["estimates"]["spearman"] <= 1 and found["ceiling"] is None


def test_rows_are_numbered_as_in_the_file(table, tmp_path, capsys):
    frame = pd.read_csv(table)
    frame.loc[900, "age"] = np.inf
    frame.to_csv(tmp_path / "inf.csv", index=False)
    assert run(arguments(tmp_path / "inf.csv")) == 2
    assert "got inf in row 901" in capsys.readouterr().err
    frame = pd.read_csv(table)
    frame.loc[frame["state"] == "HI", "income"] = True
    frame.to_csv(tmp_path / "one.csv", index=False)
    assert run(arguments(tmp_path / "one.csv")) == 2
    assert "two labels or more among the target's rows, got 'True' alone" in capsys.readouterr().err


def test_columns_of_several_values_are_features_of_trees_too(table, tmp_path, capsys):
    pytest.importorskip("lightgbm")
    frame = pd.read_csv(table)
    frame["jobs"] = frame["job"] + "|" + np.where(frame["age"] > 0, "old", "young")
    frame[["state", "income", "jobs"]].to_csv(tmp_path / "several.csv", index=False)
    assert run([*arguments(tmp_path / "several.csv", "--multi", "jobs", "--json")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    right = {row["method"]: row["mean"] for row in rows if row["metric"] == "accuracy"}
    assert right["task_model, boosted trees"] > 70


def test_methods_are_compared_by_name_or_all_of_them(table, tmp_path, capsys):
    assert run(arguments(table, "--method", "hoa", "--final-steps", "300", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in document["rows"]} == {"hoa", "target only", "all sources"}
    # who chooses is told to have chosen
    assert document["selection"]["method"] == "hoa" and document["verdict"].startswith("Hoa with ")
    assert (
        run(
            arguments(
                table,
                "--method",
                "all",
                "--method",
                "hoa",
                "--steps",
                "5",
                "--final-steps",
                "5",
                "--trials",
                "1",
                "--json",
            )
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in document["rows"]} == set(METHODS)
    assert run(arguments(table, "--method", "twat")) == 2
    assert "tawt, attittud" in (told := capsys.readouterr().err) and "'exhaustive, two at most'" in told
