"""Schema: every bad table is one InputError that names column and row, and no table is anything worse."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmstart.core import InputError
from warmstart.tasks.roles import Roles
from warmstart.tasks.schema import Schema
from warmstart.tasks.split import Split

ROLES = Roles("user", "rating", item="film", group="sex")
PLAIN = Roles("user", "rating", item="film")


def rows():
    table = {"user": ["u2", "u1", "u2", "u1", "u2"], "film": [10, 11, 12, 10, 11], "rating": [1.0, 2.0, 4.0, 5.0, 3.0]}
    more = {"hour": [1.0, 3.0, 2.0, 5.0, 7.0], "device": ["web", "tv", "web", "tv", "web"], "tags": ["b|a"] * 5}
    return pd.DataFrame({**table, **more})


def users():
    return pd.DataFrame({"user": ["u1", "u2", "u3"], "age": [20, 40, 90], "sex": ["f", "m", "x"]})


def films():
    return pd.DataFrame({"film": [11, 10, 99], "year": [1990, 1994, 2050]})


def fitted(**options):
    return Schema.fit(rows(), ROLES, users(), films(), **options)


def refused(match, call, *arguments, **options):
    with pytest.raises(InputError, match=match):
        call(*arguments, **options)


def test_missing_and_extra_columns():
    schema = fitted()
    extra = schema.transform(rows().assign(extra="?"), users().assign(z=1), films().assign(q=[[1]] * 3))
    torch.testing.assert_close(extra.pool._asdict(), schema.transform(rows(), users(), films()).pool._asdict())
    refused(
        "columns 'rating', 'hour' in the rows",
        schema.transform,
        rows().drop(columns=["hour", "rating"]),
        users(),
        films(),
    )
    refused("column 'year' in the item table", schema.transform, rows(), users(), films().drop(columns="year"))
    refused("column 'age' in the task table", schema.transform, rows(), users().drop(columns="age"), films())
    refused("column 'film' in the rows", schema.transform_rows, rows().drop(columns="film"), films())
    refused("a task table, as in training", schema.transform, rows(), None, films())
    refused("an item table, as in training", schema.transform, rows(), users())


@pytest.mark.parametrize(
    "name", ["task", "target", "item", "time", "weight", "group", "numeric", "categorical", "multi", "drop"]
)
def test_misspelt_columns(name):
    roles = {"task": "user", "target": "rating", name: ["devise"] if name in ("numeric", "multi") else "devise"}
    refused("'devise' in the .* did you mean 'device' for 'devise'", Schema.fit, rows(), Roles(**roles))


def test_side_tables_must_fit():
    schema = fitted()
    absent = "task 'u2' in column 'user' of the task table, got no row for 1 of 2"
    refused(absent, Schema.fit, rows(), ROLES, users()[:1])
    refused(absent, schema.transform, rows(), users()[:1], films())
    twice = pd.concat([users(), users()])
    refused("each name once in column 'user' of the task table, got 'u1' in row 4", Schema.fit, rows(), ROLES, twice)
    refused("each name once in column 'film'", schema.transform, rows(), users(), pd.concat([films(), films()]))
    nameless = users().assign(user=["u1", "", "u2"])
    refused("a name in column 'user' of the task table, got '' in row 2", Schema.fit, rows(), ROLES, nameless)
    refused("an item column to join", Schema.fit, rows(), Roles("user", "rating"), None, films())
    refused("'hour' in both", Schema.fit, rows(), PLAIN, None, films().assign(hour=1))
    unkeyed = films().rename(columns={"film": "id"})
    refused("column 'film' in the item table", Schema.fit, rows(), PLAIN, None, unkeyed)


def test_tasks_must_have_names_and_rows():
    nameless = rows().assign(user=["a", "a", None, "b", "b"])
    refused("a name in column 'user' of the rows, got .* in row 3", Schema.fit, nameless, PLAIN)
    numbered = rows().assign(user=range(5))
    refused("a task with two rows or more, got one row in each of 5", Schema.fit, numbered, PLAIN)
    refused("rows of training tasks, got none", fitted, split=Split(("nobody",), (), ()))
    lone = rows().assign(user=["a", "b", "b", "c", "d"])
    assert Schema.fit(lone, PLAIN).transform(lone).pool.lengths.tolist() == [1, 2, 1, 1]


def test_numbers_must_be_finite_and_numeric():
    for column, value, match in (
        ("hour", np.inf, "finite number in column 'hour' of the rows, got inf in row 2"),
        ("film", np.inf, "one finite value in column 'film' of the rows, got inf in row 2"),
        ("hour", 1e300, "numbers that can be squared in column 'hour' of the rows, got 1e[+]300 in row 2"),
    ):
        refused(match, Schema.fit, rows().assign(**{column: [1, value, 3, 4, 5]}), PLAIN)
    schema = fitted()
    for bad in (-np.inf, "late", 1e300):
        hours = pd.Series([1, 2, 3, 4, bad], dtype=object)
        refused("column 'hour' of the rows, got .* in row 5", schema.transform_rows, rows().assign(hour=hours), films())
    refused("one finite value in column 'device'", schema.transform_rows, rows().assign(device=[["a"]] * 5), films())
    refused("column 'tags'", schema.transform_rows, rows().assign(tags=[[{"a": 1}]] * 5), films())


def test_rows_are_counted_in_the_table_that_was_given():
    split = Split(("u1",), (), ("u2",))
    frame = rows().assign(hour=[1, 2, 3, np.inf, 5])
    refused("got inf in row 4", Schema.fit, frame, ROLES, users(), films(), split=split)
    refused("'odd' in row 2", Schema.fit, rows(), ROLES, users().assign(age=[1, "odd", 2]), films())
    nested = rows().assign(tags=[["a"], ["a"], ["a"], [["b"]], ["a"]])
    refused("column 'tags' of the rows, got .* in row 4", Schema.fit, nested, ROLES, users(), films(), split=split)


def test_times_must_be_readable():
    schema = Schema.fit(rows().assign(when=range(5)), Roles("user", "rating", time="when"))
    for bad in (None, "noon"):
        times = pd.Series(["2024-01-01", "2024-01-02", bad, "2024-01-04", "2024-01-05"])
        refused("a time in column 'when' of the rows, got .* in row 3", schema.transform, rows().assign(when=times))


def test_options_must_make_sense():
    for options in ({"separator": ""}, {"min_count": 0}, {"max_bag": 0}):
        refused("at least 1", fitted, **options)


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["a|b", "1", "2.5", "nan", "inf", " ", "", "a"]),
    st.lists(st.text(max_size=2) | st.integers(0, 3), max_size=3),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
    st.binary(max_size=2),
    st.datetimes(),
    st.dates(),
    st.decimals(allow_nan=False) | st.just(Decimal("nan")),  # pandas itself fails on a signalling NaN
    st.complex_numbers(),
)
COLUMNS = st.one_of(
    st.lists(CELLS, min_size=4, max_size=4),
    st.lists(st.integers(-3, 3) | st.none(), min_size=4, max_size=4),
    st.lists(st.floats(), min_size=4, max_size=4),
    st.lists(st.text(max_size=3), min_size=4, max_size=4),
    st.lists(st.lists(st.sampled_from("ab"), max_size=3), min_size=4, max_size=4),
    st.lists(st.datetimes(), min_size=4, max_size=4),
)
# mostly good ones, so that the features are read too
KEYS = st.sampled_from("aaab").flatmap(lambda which: COLUMNS if which == "b" else st.just(["a", "a", "b", "b"]))
TARGETS = st.sampled_from("aaab").flatmap(lambda which: COLUMNS if which == "b" else st.just([1.0, 2.0, 3.5, 0.0]))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(KEYS, TARGETS, st.lists(COLUMNS, max_size=3), COLUMNS, COLUMNS, st.booleans(), st.sets(st.sampled_from("cdti")))
def test_any_frame_gives_a_pool_or_an_input_error(task, target, features, side, other, described, used):
    frame = pd.DataFrame({"t": pd.Series(task), "y": pd.Series(target)})
    for i, cells in enumerate(features):
        frame[f"x{i}"] = pd.Series(cells)
    table = pd.DataFrame({"t": ["a", "b", "c", "d"], "s": pd.Series(side)}) if described else None
    items = pd.DataFrame({"x0": ["a", "b", "c", "d"], "z": pd.Series(side)})
    roles = {}
    if "x0" in frame:
        roles |= {"categorical": ["x0"]} if "c" in used else {}
        roles |= {"time": "x0"} if "t" in used and "c" not in used else {}
        roles |= {"item": "x0"} if "i" in used else {}
    if "x1" in frame:
        roles |= {"multi": ["x1"]} if "d" in used else {"numeric": ["x1"]} if "c" in used else {}
    try:
        schema = Schema.fit(frame, Roles("t", "y", **roles), table, items if "item" in roles else None)
        assert Schema.from_json(schema.to_json()) == schema
        pool = schema.transform(frame, table, items).pool
        assert pool.count and all(
            leaf.isfinite().all() for leaf in (pool.y, *pool.x.values(), *pool.descriptor.values())
        )
        for size, column in zip(schema.columns.categorical, pool.x["categorical"].T, strict=True):
            assert column.min() >= 0 and column.max() < size
        for size, bag in zip(schema.columns.bag, pool.x["bag"].transpose(0, 1), strict=True):
            assert bag.min() >= 0 and bag.max() < size
        schema.transform_rows(pd.DataFrame({name: pd.Series(other) for name in frame.columns}), items)
        schema.transform_descriptor({"s": other[0]} if described else {})
    except InputError:
        return
