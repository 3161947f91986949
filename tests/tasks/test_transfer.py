"""A target and its sources from a table: who is where, what is learned from whom, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.core import InputError
from warmstart.tasks.roles import Roles
from warmstart.tasks.transfer import Rows, make_transfer, read_transfer, task_rows

ROLES = Roles(task="state", target="rich", categorical=("job",), group="race")


def table(rows=60):
    draw = np.random.default_rng(0)
    states = ["A", "B", "C"]
    return pd.DataFrame(
        {
            "state": np.repeat(states, [rows, rows // 2, rows // 3]),
            "age": draw.normal(40, 10, rows + rows // 2 + rows // 3),
            "job": draw.choice(["x", "y", "z"], rows + rows // 2 + rows // 3),
            "race": draw.choice(["w", "b"], rows + rows // 2 + rows // 3),
            "rich": draw.random(rows + rows // 2 + rows // 3) > 0.5,
        }
    )


def test_sources_come_first_and_the_target_last():
    found = read_transfer(table(), ROLES, "B", seed=1)
    assert found.names == ("A", "C", "B") and found.sources == 2
    assert found.pool.lengths.tolist() == [60, 20, 18]
    assert len(found.validation.y) == len(found.test.y) == 6
    assert found.groups == ("b", "w") and found.kind == "binary" and found.outputs == 1


def test_every_row_of_the_target_is_in_one_part():
    frame = table()
    frame["age"] = np.arange(len(frame), dtype=float)
    found = read_transfer(frame, ROLES, "B", seed=2)
    ages = [part.x["numeric"][:, 0] for part in (task_rows(found, 2), found.validation, found.test)]
    joined = torch.cat(ages).sort().values
    own = frame.loc[frame.state == "B", "age"].to_numpy()
    learned = np.concatenate([frame.loc[frame.state != "B", "age"].to_numpy(), own])
    assert len(joined) == 30 and len(joined.unique()) == 30
    assert np.corrcoef(joined.numpy(), own)[0, 1] == pytest.approx(1.0) and len(learned) == len(frame)


def test_groups_follow_their_rows():
    frame = table()
    frame["age"] = np.where(frame["race"] == "w", 1.0, 0.0)
    found = read_transfer(frame, ROLES, "A", seed=0)
    for rows in (task_rows(found, 0), task_rows(found, 2), found.validation, found.test):
        assert torch.equal(rows.group == 1, rows.x["numeric"][:, 0] > 0)


def test_vocabularies_and_means_do_not_see_validation_and_test_rows():
    frame = table()
    one = read_transfer(frame, ROLES, "A", seed=0)
    changed = frame.copy()
    kept = set(one.pool.x["numeric"][:, 0].tolist())
    draw = np.random.default_rng(0)
    held = draw.permutation(np.flatnonzero(frame.state == "A"))[36:]
    changed.loc[held, ["age", "job"]] = [1000.0, "never seen"]
    other = read_transfer(changed, ROLES, "A", seed=0)
    assert set(other.pool.x["numeric"][:, 0].tolist()) == kept and other.columns == one.columns
    assert (other.test.x["categorical"] == 1).any()  # unseen


def test_sources_may_be_named_and_bounded():
    found = read_transfer(table(), ROLES, "B", sources=["C"], most=7)
    assert found.names == ("C", "B") and found.pool.lengths.tolist()[0] == 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target_task": "D"}, "a task 'D' in column 'state'"),
        ({"sources": ["A", "B"]}, "'B' among them"),
        ({"sources": ["A", "D"]}, "rows of every source, got none of 'D'"),
        ({"sources": []}, "no source"),
        ({"parts": (0.5, 0.5, 0.0)}, "three positive parts"),
        ({"roles": Roles(task="state", target="rich", group="colour")}, "column 'colour'"),
    ],
)
def test_what_cannot_be_used_is_refused(change, words):
    call = {"roles": ROLES, "target_task": "B"} | change
    with pytest.raises(InputError, match=words):
        read_transfer(table(), call.pop("roles"), call.pop("target_task"), **call)


def test_labels_that_differ_between_tasks_are_refused():
    frame = table()
    frame["rich"] = np.where(frame.state == "C", np.where(frame.rich, "high", "low"), np.where(frame.rich, "yes", "no"))
    with pytest.raises(InputError, match=r"labels of the target \(no, yes\) in every source, got 'high'"):
        read_transfer(frame, ROLES, "B")


def test_too_few_rows_of_the_target_are_refused():
    with pytest.raises(InputError, match="at least 5 rows of the target"):
        read_transfer(table().groupby("state").head(2), ROLES, "B")


def test_an_empty_source_is_refused():
    rows = Rows(torch.zeros(3, 2), torch.zeros(3), torch.zeros(3, dtype=torch.long))
    none = Rows(*(part[:0] for part in rows))
    with pytest.raises(InputError, match="none in source 1"):
        make_transfer([rows, none], rows, rows, rows)
    with pytest.raises(InputError, match="a part of the target"):
        make_transfer([rows, rows], rows, none, rows)
