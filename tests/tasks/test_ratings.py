"""Ratings from anybody's tables: what is put right is said, what cannot be is refused."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.core import InputError
from warmstart.tasks.clicks import read_clicks
from warmstart.tasks.profiles import fit_table
from warmstart.tasks.ratings import (
    join_ratings,
    make_ratings,
    newcomers,
    read_ratings,
    take_rows,
    take_users,
    to_batch,
    to_stack,
)
from warmstart.tasks.roles import Roles

ROLES = Roles(task="who", target="stars", item="film", time="when")
ROWS = pd.DataFrame(
    {
        "who": ["b", "b", "a", "b", "a"],
        "film": [7, 8, 7, 7, 9],
        "stars": [1.0, 2.0, 3.0, 5.0, 4.0],
        "when": [30, 10, 5, 40, 6],
        "device": ["tv", "tv", "phone", "phone", "tv"],
    }
)
PEOPLE = pd.DataFrame({"who": ["a", "c"], "age": [30, 40]})
FILMS = pd.DataFrame({"film": [9, 7, 8, 6], "genre": ["war", "war|drama", "drama", "war"]})


def refused(call, *parts):
    with pytest.raises(InputError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def found():
    return read_ratings(ROWS, ROLES, PEOPLE, FILMS, (1, 5))


def test_events_come_by_user_and_time_with_their_rows_of_the_side_tables(found):
    names = found.users.index[found.user].tolist()
    films = found.items.index[found.item].tolist()
    assert list(zip(names, films, found.value, strict=True)) == [
        ("b", "8", 2.0),
        ("b", "7", 5.0),  # the later of two ratings
        ("a", "7", 3.0),
        ("a", "9", 4.0),
    ]
    assert found.context["device"].tolist() == ["tv", "phone", "phone", "tv"]
    assert found.items["genre"].tolist() == ["war", "war|drama", "drama", "war"]  # nobody rated the last
    assert found.users["age"].isna().tolist() == [True, False] and found.scale == (1, 5)


def test_what_was_put_right_is_said(found):
    said = " / ".join(found.notes)
    assert "1 repeated ratings" in said and "the last one was kept" in said
    assert "not in the order of time" in said and "1 of 2 users of the ratings are not in the table of users" in said
    clean = read_ratings(ROWS.sort_values("when").drop(index=0), ROLES)
    assert clean.notes == () and clean.scale == (2.0, 5.0) and len(clean.users.columns) == 0


def test_files_are_read_as_frames_are(found, tmp_path):
    ROWS.to_csv(tmp_path / "rows.csv", index=False)
    FILMS.to_parquet(tmp_path / "films.parquet")
    again = read_ratings(tmp_path / "rows.csv", ROLES, PEOPLE, tmp_path / "films.parquet", (1, 5))
    for one, other in zip(found, again, strict=True):
        assert one.equals(other) if isinstance(one, pd.DataFrame) else np.array_equal(one, other)


def test_every_impression_counts():
    events = ROWS.rename(columns={"who": "user", "film": "item", "stars": "value", "when": "time"})
    kept = make_ratings(events.assign(value=events["value"] > 2), pd.DataFrame(), pd.DataFrame(), kind="binary")
    assert kept.value.tolist() == [0, 0, 1, 1, 1] and kept.scale == (0, 1) and not kept.notes[1:]


@pytest.mark.parametrize("values", [[0, 1, 1, 0, 1], [0.0, 1.0, 1.0, 0.0, 1.0], list("01101"), "true False 1 0 TRUE"])
def test_zeros_and_ones_are_clicks_unless_told(values):
    rows = ROWS.assign(stars=values.split() if isinstance(values, str) else values)
    clicks = read_ratings(rows, ROLES)
    assert clicks.kind == "binary" and "'stars' holds nothing but 0 and 1" in clicks.notes[0]
    assert read_ratings(rows, ROLES, kind="binary").notes == clicks.notes[1:]
    assert sorted(clicks.value) == sorted(read_clicks(rows["stars"], "ratings"))
    if not isinstance(values, str):
        assert (
            read_ratings(rows, ROLES, kind="squared").kind == read_ratings(rows, ROLES, scale=(0, 1)).kind == "squared"
        )


def test_what_clicks_cannot_be():
    assert read_ratings(ROWS.assign(stars=[1, 2, 2, 1, 2]), ROLES).kind == "squared"
    ones = ROWS.assign(stars=1)
    for kind in (None, "binary"):
        refused(lambda kind=kind: read_ratings(ones, ROLES, kind=kind), "impressions without one", "all 1", "add rows")
    assert read_ratings(ones, ROLES, scale=(0, 1)).kind == "squared"
    refused(lambda: read_ratings(ROWS, ROLES, kind="binary"), "0 or 1, false or true in column 'stars'", "2.0 in row 2")
    refused(lambda: read_ratings(ROWS.assign(stars=[1, 0, None, 1, 1]), ROLES), "a value", "row 3")
    refused(lambda: read_ratings(ROWS, ROLES, kind="multiclass"), "squared or binary", "'multiclass'")
    refused(lambda: read_ratings(ROWS, ROLES, scale=(0, 1), kind="binary"), "no scale for clicks", "0,1")


def test_users_and_rows_are_taken_apart(found):
    part = take_users(found, np.array([1]))
    assert part.users.index.tolist() == ["a"] and part.user.tolist() == [0, 0] and part.value.tolist() == [3, 4]
    turned = take_users(found, np.array([1, 0]))
    assert turned.user.tolist() == [0, 0, 1, 1] and turned.value.tolist() == [3, 4, 2, 5]
    assert turned.context["device"].tolist() == ["phone", "tv", "tv", "phone"]
    assert take_rows(found, found.value > 3).value.tolist() == [5, 4]
    assert take_rows(found, np.array([3, 0])).value.tolist() == [4, 2]


def test_bad_ratings_are_refused():
    refused(lambda: read_ratings(ROWS, ROLES, scale=(1, 4)), "on the scale 1 to 4", "5.0 in row 4")
    refused(lambda: read_ratings(ROWS.assign(stars=[1, None, 2, 3, 4]), ROLES), "a value", "row 2")
    refused(lambda: read_ratings(ROWS.assign(stars=["1", "x", "2", "3", "4"]), ROLES), "a number", "'x' in row 2")
    refused(lambda: read_ratings(ROWS.assign(when=[1, 2, None, 4, 5]), ROLES), "a time", "row 3")
    refused(lambda: read_ratings(ROWS.assign(who=["a", None, "b", "b", "b"]), ROLES), "a name", "row 2")
    refused(lambda: read_ratings(ROWS, Roles(task="who", target="stars")), "an item column")
    refused(lambda: read_ratings(ROWS, Roles(task="whom", target="stars", item="film")), "'whom'", "'who' for")
    twice = pd.concat([PEOPLE, PEOPLE])
    refused(lambda: read_ratings(ROWS, ROLES, twice), "each name once", "'a' in row 3")
    empty = pd.DataFrame(columns=["user", "item", "value"])
    refused(lambda: make_ratings(empty, pd.DataFrame(), pd.DataFrame()), "ratings", "none")


def test_events_become_a_padded_stack(found):
    batch = to_batch(found)
    assert batch.y.tolist() == [[2, 5], [3, 4]] and batch.mask.tolist() == [[1, 1], [1, 1]]
    fewer = take_rows(found, np.array([3, 2, 0]))  # in any order
    assert to_batch(fewer).y.tolist() == [[2, 0], [4, 3]] and to_batch(fewer).mask.tolist() == [[1, 0], [1, 1]]
    assert to_stack(fewer, torch.tensor([1.5, 2.5, 3.5])).tolist() == [[3.5, 0.0], [1.5, 2.5]]


def test_columns_are_what_the_roles_say_and_messages_name_them():
    taken = ROWS.assign(user="x", value=0, time=9).rename(columns={"when": "day"})  # names that have a meaning inside
    found = read_ratings(taken.drop(columns="day"), Roles(task="who", target="stars", item="film"))
    assert {"user (context)", "value (context)", "time (context)"} <= set(found.context) and not found.time.any()
    assert found.users.index.tolist() == ["b", "a"] and found.value.tolist() == [2.0, 5.0, 3.0, 4.0]
    refused(lambda: read_ratings(ROWS.assign(stars="x"), ROLES), "column 'stars' of the ratings")
    refused(lambda: read_ratings(ROWS.assign(film=[1, None, 2, 3, 4]), ROLES), "column 'film'", "row 2")
    dropped = read_ratings(ROWS, replace(ROLES, drop=("device", "genre")), PEOPLE, FILMS)
    assert "device" not in dropped.context and "genre" not in dropped.items
    refused(lambda: read_ratings(ROWS, replace(ROLES, drop=("gnere",)), PEOPLE, FILMS), "'gnere'", "'genre'")


def test_side_tables_have_the_kinds_that_were_declared():
    people = pd.DataFrame({"who": ["a", "b"], "code": [3, 4], "zip": ["55337", "5-40"], "likes": ["x|y", None]})
    refused(lambda: fit_table(read_ratings(ROWS, ROLES, people).users, "users"), "'zip'", "categorical")
    roles = replace(ROLES, categorical=("code", "zip"), multi=("likes",), numeric=("year",))
    films = FILMS.assign(year=["1990", "1991", "1992", "1993"])
    found = read_ratings(ROWS, roles, people, films)
    kinds = fit_table(found.users, "users", 1)
    assert [part.name for part in kinds.categorical] == ["code", "zip"] and kinds.numeric == ()
    assert set(kinds.bag[0].values) == {"x", "y"} and found.items["year"].tolist() == [1990, 1991, 1992, 1993]
    refused(lambda: read_ratings(ROWS, replace(ROLES, numeric=("likes",)), people), "a number", "'likes' of the task")
    refused(lambda: read_ratings(ROWS, replace(ROLES, numeric=("yaer",)), people, films), "'yaer'", "'year' for")


def test_newcomers_keep_to_the_catalogue_and_to_the_users_asked_for(found):
    users = pd.DataFrame({"age": [1, 2, 3]}, index=["x", "y", "z"])
    rows = pd.DataFrame(
        {"user": ["z", "q", "z", "x", "z"], "item": [8, 7, 5, 9, 8], "value": [1, 2, 3, 4, 5], "time": [3, 1, 2, 1, 9]}
    )
    new = newcomers(rows, users, found.items, (1, 5))
    assert new.users.index[new.user].tolist() == ["x", "z"] and found.items.index[new.item].tolist() == ["9", "8"]
    assert new.value.tolist() == [4, 5] and new.time.tolist() == [1, 9]
    assert "last one was kept" in new.notes[1] and "1 items that the model does not know, '5' first" in new.notes[2]
    nobody = newcomers(None, users, found.items, (1, 5))
    assert not len(nobody.user) and nobody.users is users
    refused(lambda: newcomers(rows, users, found.items, (1, 4)), "scale 1 to 4", "row 5")


def test_ratings_are_joined_by_user(found):
    later = take_rows(found, np.array([2]))._replace(value=np.array([9.0]))
    both = join_ratings(found, later)
    assert both.user.tolist() == [0, 0, 1, 1, 1] and both.value.tolist() == [2, 5, 3, 4, 9]
    assert both.context["device"].tolist() == ["tv", "phone", "phone", "tv", "phone"]
