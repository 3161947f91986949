"""Schema: a table by hand against the tensors, no leak from held-out tasks, exact JSON."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.core import Columns, InputError
from warmstart.tasks.pool import episodes
from warmstart.tasks.roles import Roles
from warmstart.tasks.schema import Schema, task_names
from warmstart.tasks.split import Split, digest

ROLES = Roles("user", "rating", item="film", group="sex")
PLAIN = Roles("user", "rating", item="film")


def rows():
    """Two users whose rows are mixed, one value missing of each kind."""
    return pd.DataFrame(
        {
            "user": ["u2", "u1", "u2", "u1", "u2"],
            "film": [10, 11, 12, 10, 11],
            "rating": [1.0, 2.0, 4.0, 5.0, 3.0],
            "hour": [1.0, 3.0, np.nan, 5.0, 7.0],
            "device": ["web", "tv", "web", None, "web"],
            "tags": ["b|a", "a", None, "a|c", "a"],
        }
    )


def users():
    return pd.DataFrame({"user": ["u1", "u2", "u3"], "age": [20, 40, 90], "sex": ["f", "m", "x"]})


def films():
    return pd.DataFrame({"film": [11, 10, 99], "year": [1990, 1994, 2050], "genre": ["war", "love", "space"]})


def fitted(**options):
    return Schema.fit(rows(), ROLES, users(), films(), **options)


def refused(match, call, *arguments, **options):
    with pytest.raises(InputError, match=match):
        call(*arguments, **options)


def test_tensors_by_hand():
    schema = fitted()
    named = schema.transform(rows(), users(), films())
    pool = named.pool
    assert named.names == ("u2", "u1") and named.rows.tolist() == [0, 2, 4, 1, 3]
    assert pool.offsets.tolist() == [0, 3, 5] and pool.key.tolist() == [digest("u2"), digest("u1")]
    assert named.groups == ("f", "m") and pool.group.tolist() == [1, 0]
    assert pool.w.tolist() == [1.0] * 5

    rating = np.array([1, 4, 3, 2, 5])
    np.testing.assert_allclose(pool.y, (rating - 3) / math.sqrt(2), rtol=1e-6)
    # hour 1 3 5 7: mean 4, variance 5; year by row 1994 1990 nothing 1994 1990: mean 1992, variance 4
    hour = np.array([-3, 0, 3, -1, 1]) / math.sqrt(5)
    year = np.array([1, 0, -1, -1, 1])
    absent = np.array([0, 1, 0, 0, 0])
    np.testing.assert_allclose(pool.x["numeric"], np.stack([hour, year, absent, absent], 1), atol=1e-6)
    # most frequent first, then by name: films 10 11 12, devices web tv, genres love war
    assert pool.x["categorical"].tolist() == [[2, 2, 2], [4, 2, 0], [3, 2, 3], [3, 3, 3], [2, 0, 2]]
    # a is in four rows, b and c in one
    assert pool.x["bag"].squeeze(1).tolist() == [[2, 3], [0, 0], [2, 0], [2, 0], [2, 4]]
    np.testing.assert_allclose(pool.descriptor["numeric"], [[1], [-1]], atol=1e-6)
    assert pool.descriptor["categorical"].tolist() == [[3], [2]]
    assert pool.descriptor["bag"].shape == (2, 0, 0)
    assert schema.columns == Columns(4, (5, 4, 4), (5,)) and schema.descriptor_columns == Columns(1, (4,), ())


def test_the_pool_feeds_episodes():
    pool = fitted().transform(rows(), users(), films()).pool
    task = episodes(pool, torch.tensor([1, 0]), 2, 2, torch.Generator().manual_seed(0))
    assert task.support.x["bag"].shape == (2, 2, 1, 2) and task.descriptor["numeric"].shape == (2, 1)


def test_files_and_frames_agree(tmp_path):
    for name, frame in (("rows", rows()), ("users", users()), ("films", films())):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    files = [tmp_path / f"{name}.csv" for name in ("rows", "users", "films")]
    schema = Schema.fit(files[0], ROLES, *files[1:])
    assert schema == fitted()
    assert_same(schema.transform(*files), fitted().transform(rows(), users(), films()))


def assert_same(a, b):
    assert (a.names, a.groups) == (b.names, b.groups)
    torch.testing.assert_close(a.pool._asdict(), b.pool._asdict(), rtol=0, atol=0)


def test_rows_by_time_are_stable_and_may_be_dates():
    for times in (
        [5, 1, 5, 0, 2],
        [5.5, 1, 5.5, -1, 2],
        ["2024-05-01", "2024-01", "2024-05-01", "2023-12-31", "2024-02-01"],
    ):
        frame = rows().assign(when=times)
        schema = Schema.fit(frame, Roles("user", "rating", time="when"))
        assert schema.transform(frame).rows.tolist() == [4, 0, 2, 3, 1]
        assert "when" not in schema.rows.names
    stamps = pd.to_datetime(pd.Series(times, dtype=object), format="ISO8601", utc=True)
    assert schema.transform(rows().assign(when=stamps)).rows.tolist() == [4, 0, 2, 3, 1]


def test_keys_match_whatever_type_a_file_gave_them():
    schema = fitted()
    as_text = rows().assign(film=["10", " 11", "12", "10.0", "11"])
    as_text.loc[3, "film"] = "10"
    as_float = rows().assign(film=rows()["film"].astype(float))
    for frame in (as_text, as_float, rows().astype({"film": "category"})):
        assert_same(schema.transform(frame, users(), films()), schema.transform(rows(), users(), films()))


def test_task_names_are_those_of_the_pool():
    frame = rows().assign(user=[2.0, 1.5, 2.0, 1.5, 7])
    names = task_names(frame, "user")
    assert names == ["2", "1.5", "7"] == list(Schema.fit(frame, PLAIN).transform(frame).names)
    assert Schema.fit(frame, PLAIN, target="squared", split=Split(("2",), ("1.5",), ("7",))).target.mean == 2.5
    with pytest.raises(InputError, match="did you mean 'user'"):
        task_names(frame, "usr")


def test_lists_and_separated_text_are_one_thing():
    listed = rows().assign(tags=[["b", "a"], ["a"], None, ("c", "a", "a"), np.array(["a"])])
    assert Schema.fit(listed, ROLES, users(), films()) == fitted()
    assert_same(fitted().transform(listed, users(), films()), fitted().transform(rows(), users(), films()))


def test_bags_keep_the_most_frequent_values_and_the_unseen_last():
    schema = fitted(max_bag=2)
    x = schema.transform_rows(rows().assign(tags=["zz|c|b|yy", "zz|yy|c", "zz", "c|a|b", None]), films())
    assert x["bag"].squeeze(1).tolist() == [[3, 4], [4, 1], [1, 0], [2, 3], [0, 0]]
    assert fitted(max_bag=1).transform_rows(rows(), films())["bag"].shape == (5, 1, 1)


def test_min_count_sends_rare_values_to_the_unseen_slot():
    schema = fitted(min_count=2)
    x = schema.transform_rows(rows(), films())
    assert schema.columns.categorical == (4, 3, 4) and schema.columns.bag == (3,)
    assert x["categorical"][:, 0].tolist() == [2, 3, 1, 2, 3]
    assert x["bag"].squeeze(1).tolist() == [[2, 1], [2, 0], [0, 0], [2, 1], [2, 0]]


def test_missing_numbers_get_a_flag_only_where_training_had_some():
    frame = rows().assign(full=[1, 2, 3, 4, 5])
    schema = Schema.fit(frame, Roles("user", "rating", drop=("film", "device", "tags")))
    x = schema.transform_rows(frame.assign(full=[np.nan, 2, 3, 4, 5]))
    assert schema.columns.numeric == 3
    assert x["numeric"][0].tolist() == pytest.approx([-3 / math.sqrt(5), 0, 0])
    assert x["numeric"][2].tolist() == pytest.approx([0, 0, 1])


def test_constant_and_empty_columns_are_harmless():
    frame = rows().assign(same=0.1, none=None, nan=np.nan)
    schema = Schema.fit(frame, Roles("user", "rating", drop=("film", "device", "tags", "hour")))
    x = schema.transform_rows(frame.assign(same=0.6, none="new"))
    assert x["numeric"].tolist() == [pytest.approx([0.5, 0, 1])] * 5  # same, nan, where nan was missing
    assert x["categorical"].tolist() == [[1]] * 5


def test_weights():
    frame = rows().assign(n=[1, 2, 3, 4, 5])
    schema = Schema.fit(frame, Roles("user", "rating", weight="n"))
    assert schema.transform(frame).pool.w.tolist() == [1, 3, 5, 2, 4] and "n" not in schema.rows.names
    for bad in (-1, np.nan, np.inf):
        refused("column 'n' of the rows, got .* in row 2", schema.transform, frame.assign(n=[1, bad, 3, 4, 5]))


def test_group_from_the_rows_and_from_nowhere():
    frame = rows().assign(city=["b", "a", "b", None, "b"])
    named = Schema.fit(frame, Roles("user", "rating", group="city")).transform(frame)
    assert named.groups == ("a", "b") and named.pool.group.tolist() == [1, 0]
    named = Schema.fit(frame, Roles("user", "rating", group="city")).transform(
        frame.assign(city=[None, "a", "b", "a", "b"])
    )
    assert [named.groups[g] for g in named.pool.group] == ["unknown", "a"]
    assert Schema.fit(rows(), Roles("user", "rating")).transform(rows()).groups == ("unknown",)


def test_nothing_of_held_out_tasks_is_learned():
    split = Split(("u1", "u2"), (), ("u3",))
    held = pd.DataFrame(
        {"user": ["u3"] * 2, "film": [99, 10], "rating": [1e6, -7.5], "hour": [1e9, None], "device": ["new", "tv"]}
    ).assign(tags=["a|new", "x|y|z|w"])
    both = pd.concat([held, rows()], ignore_index=True)
    alone, schema = fitted(split=split), Schema.fit(both, ROLES, users(), films(), split=split)
    assert schema == alone

    other = pd.concat([held.assign(rating="text", hour="late", device=4), rows()], ignore_index=True)
    assert Schema.fit(other, ROLES, users().assign(age=[20, 40, -5]), films(), split=split) == alone

    x = schema.transform(both, users(), films()).pool.select(torch.tensor([0])).x
    assert x["categorical"].tolist() == [[1, 1, 1], [2, 3, 2]]  # film 99, device new and genre space were never seen
    assert x["bag"].squeeze(1).tolist() == [[2, 1], [1, 0]]


def test_an_unseen_descriptor_value():
    named = fitted().transform(rows().assign(user="u3"), users(), films())
    assert named.pool.descriptor["categorical"].tolist() == [[1]]
    assert named.pool.descriptor["numeric"].tolist() == [[6.0]]


def test_descriptor_of_one_task():
    schema = fitted()
    x = schema.transform_descriptor({"age": 50, "sex": "m", "user": "new"})
    assert x["numeric"].tolist() == [[2.0]] and x["categorical"].tolist() == [[3]] and x["bag"].shape == (1, 0, 0)
    assert schema.transform_descriptor({"sex": None})["numeric"].tolist() == [[0.0]]
    assert schema.transform_descriptor({})["categorical"].tolist() == [[0]]
    assert schema.transform_descriptor(users())["categorical"].tolist() == [[2], [3], [1]]
    refused("among age, sex, got 'sexe'; did you mean 'sex'", schema.transform_descriptor, {"sexe": "m"})
    refused("a number in column 'age'", schema.transform_descriptor, {"age": "old"})
    tagged = Schema.fit(rows(), ROLES, users().assign(likes=["a|b", "b", "c"]))
    assert tagged.transform_descriptor({"likes": ["b", "a"]})["bag"].tolist() == [[[2, 3]]]


def test_query_rows_need_features_only():
    schema = fitted()
    pool = schema.transform(rows(), users(), films())
    x = schema.transform_rows(rows().drop(columns=["user", "rating"]), films())
    for name, part in x.items():
        assert torch.equal(part[pool.rows], pool.pool.x[name])


def test_json_round_trip_is_exact():
    schema = fitted(split=Split(("u1", "u2"), ("v",), ("é", "\ud800")), min_count=1)
    awkward = rows().assign(hour=[0.1, 1 / 3, 1e-300, 5e5, 2**0.5])
    for original in (schema, Schema.fit(awkward, PLAIN), Schema.fit(rows(), PLAIN, target="multiclass")):
        back = Schema.from_json(original.to_json())
        assert back == original and back.to_json() == original.to_json()
    assert_same(
        Schema.from_json(schema.to_json()).transform(rows(), users(), films()),
        schema.transform(rows(), users(), films()),
    )


def places(tree, path=()):
    """The path of every node of a JSON tree."""
    yield path
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(value, (*path, key))


def damaged(content, path, value):
    copy = json.loads(json.dumps(content))
    node = copy
    for key in path[:-1]:
        node = node[key]
    if value is KeyError:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return json.dumps(copy)


def test_every_damage_to_the_json_is_an_input_error_or_a_schema():
    content = json.loads(fitted(split=Split(("u1", "u2"), (), ())).to_json())
    for path in list(places(content))[1:]:
        for value in (KeyError, None, -1, "x", [], {}, [None], float("nan")):
            try:
                schema = Schema.from_json(damaged(content, path, value))
            except InputError:
                continue
            assert Schema.from_json(schema.to_json()) == schema  # what is accepted is sound


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2),
        (("roles",), KeyError),
        (("roles", "task"), None),
        (("rows", "numeric", 0, "std"), 0.0),
        (("rows", "numeric", 0, "mean"), "0"),
        (("rows", "categorical", 0, "values"), ["a", "a"]),
        (("rows", "categorical", 0, "values"), [1]),
        (("rows", "bag_length"), 0),
        (("rows", "separator"), ""),
        (("rows", "numeric", 0, "name"), "film"),
        (("target", "kind"), "poisson"),
        (("target", "std"), -1.0),
        (("target", "classes"), ["a"]),
        (("item_columns",), ["nothing"]),
        (("split",), {"train": ["u"], "validation": [], "test": ["u"]}),
        (("split",), {"train": ["u"]}),
    ],
)
def test_damaged_json(path, value):
    with pytest.raises(InputError, match="schema version 1, got 2" if path == ("version",) else "damaged text"):
        Schema.from_json(damaged(json.loads(fitted().to_json()), path, value))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '{"version": 1}', "[" * 100_000, "\ud800"])
def test_text_that_is_no_schema(text):
    refused("a schema saved by warmstart", Schema.from_json, text)
