"""Roles: what a column is taken for, and the errors that name the column."""

import datetime

import pandas as pd
import pytest

from warmstart.core import InputError
from warmstart.tasks.roles import Roles, feature_kinds, require


def kinds(frame, separator="|", **roles):
    return feature_kinds(frame, Roles("user", "y", **roles), separator, "rows")


def test_inference():
    frame = pd.DataFrame(
        {
            "user": ["a", "b", "c", "d"],
            "y": [1, 2, 3, 4],
            "whole": [1, 1, 2, 2],
            "real": [0.5, None, 1.5, 2.5],
            "nullable": pd.array([1, None, 3, 4], dtype="Int64"),
            "flag": [True, False, True, True],
            "maybe": [True, None, True, False],
            "word": ["x", "y", None, "z"],
            "digits": ["1", "2", "3", "4"],
            "cat": pd.Categorical([1, 2, 1, 2]),
            "genres": ["war|love", "war", None, "love"],
            "lists": [["a"], ["b", "c"], None, []],
            "none": [None] * 4,
        }
    )
    found = kinds(frame)
    assert "user" not in found and "y" not in found
    assert [name for name, kind in found.items() if kind == "numeric"] == ["whole", "real", "nullable"]
    assert [name for name, kind in found.items() if kind == "multi"] == ["genres", "lists"]
    assert [name for name, kind in found.items() if kind == "categorical"] == [
        "flag", "maybe", "word", "digits", "cat", "none",
    ]  # fmt: skip


def test_a_separator_counts_in_a_fair_share_of_rows_only():
    words = pd.DataFrame({"user": range(30), "y": range(30), "w": ["a;b"] * 2 + [f"w{i}" for i in range(28)]})
    assert kinds(words, ";") == {"w": "categorical"}
    words.loc[2, "w"] = "c;d"
    assert kinds(words, ";") == {"w": "multi"}
    assert kinds(words, "|") == {"w": "categorical"}


def test_lists_override_and_drop_removes():
    frame = pd.DataFrame(
        {"user": [1, 2], "y": [1, 2], "code": [3, 4], "b": [1, 2], "t": [1, 2], "g": [0, 1], "i": [8, 9]}
    )
    assert kinds(frame, categorical="code", drop=["b"], time="t", group="g", item="i") == {
        "code": "categorical",
        "g": "numeric",
        "i": "categorical",
    }
    assert kinds(frame, drop=["b", "i"], item="i", time="t", numeric=["t"], weight="g") == {
        "code": "numeric",
        "t": "numeric",
    }


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        (["1", "2", "n/a?", "4"], 3, "'n/a\\?'"),
        ([1, 2, "x", 4], 3, "'x'"),
        (["x", 2.5, "z", "u"], 1, "'x'"),
    ],
)
def test_mixed_columns_name_column_row_and_remedy(column, row, value):
    frame = pd.DataFrame({"user": range(4), "y": range(4), "age": pd.Series(column)})
    with pytest.raises(
        InputError, match=rf"column 'age' of the rows, got {value} in row {row}; declare .* categorical"
    ):
        kinds(frame)
    assert kinds(frame, categorical=["age"]) == {"age": "categorical"}


def test_a_few_numbers_among_texts_are_titles():
    frame = pd.DataFrame({"user": range(4), "y": range(4), "title": ["1984", "Emma", "Ulysses", "Dune"]})
    assert kinds(frame) == {"title": "categorical"}


@pytest.mark.parametrize(
    "cell", [datetime.datetime(2020, 1, 1), datetime.timedelta(1), 1j, b"x", {"a": 1}, datetime.date(2020, 1, 1)]
)
def test_other_cells_are_refused(cell):
    frame = pd.DataFrame({"user": [1, 2], "y": [1, 2], "odd": pd.Series([cell, cell])})
    with pytest.raises(InputError, match="column 'odd' of the rows"):
        kinds(frame)


@pytest.mark.parametrize(
    "roles",
    [
        {"task": "a", "target": "a"},
        {"task": "a", "target": "b", "numeric": ["b"]},
        {"task": "a", "target": "b", "numeric": ["c"], "multi": ["c"]},
        {"task": "a", "target": "b", "categorical": ["c"], "drop": ["c"]},
        {"task": "a", "target": "b", "weight": "b"},
        {"task": "a", "target": "b", "weight": "c", "numeric": ["c"]},
    ],
)
def test_two_roles_for_one_column(roles):
    with pytest.raises(InputError, match=r"one role for each column, got two for '.'"):
        Roles(**roles)


def test_nearest_name_is_suggested():
    with pytest.raises(InputError, match=r"column 'usr' in the rows, got columns 'user', 'y'; did you mean 'user' for"):
        require(["usr", None], ["user", "y"], "rows")
    with pytest.raises(InputError, match="columns 'p', 'q' in the rows"):
        require(["p", "user", "q"], ["user"], "rows")
    with pytest.raises(InputError, match="and 5 more"):
        require(["zz"], [f"c{i}" for i in range(25)], "rows")


def test_dict_round_trip():
    roles = Roles("u", "y", numeric=["a", "b"], multi=(), item="i", drop=["z"])
    assert Roles.from_dict(roles.to_dict()) == roles
    for name, bad in (("task", None), ("task", 3), ("drop", None), ("numeric", [1]), ("item", ["i"]), ("time", 4)):
        with pytest.raises((ValueError, TypeError)):
            Roles.from_dict({**roles.to_dict(), name: bad})


@pytest.mark.parametrize("roles", [{"item": "user"}, {"item": "t", "time": "t"}, {"time": "t", "drop": ("t",)}])
def test_a_column_has_one_role(roles):
    with pytest.raises(InputError, match="one role for each column"):
        Roles("user", "y", **roles)
