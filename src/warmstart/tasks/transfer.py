"""One target task and the sources that may help it, or hurt.

Sources and the target's training rows lie in one pool, the target last, so that a set of sources is a choice of tasks.
What is learned of the columns is learned from these rows; validation and test rows of the target are only looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from warmstart.core import Columns, InputError, Tree
from warmstart.core.trees import concat, take, to_device
from warmstart.tasks.cells import texts
from warmstart.tasks.pool import Pool, make_pool
from warmstart.tasks.roles import Roles, require
from warmstart.tasks.schema import Schema
from warmstart.tasks.side_tables import keys
from warmstart.tasks.table import Source, read_table
from warmstart.tasks.target import Target

PARTS = (0.6, 0.2, 0.2)  # of the target's rows: to train on, choose by and judge on
FEWEST = 5  # rows in each


class Rows(NamedTuple):
    """Labelled rows, and the group of each."""

    x: Tree  # [n, ...]
    y: Tensor  # [n]
    group: Tensor  # [n] integers; zeros when there are no groups


class Transfer(NamedTuple):
    """k sources and a target: tasks 0 to k - 1, and k."""

    pool: Pool
    group: Tensor  # [N] the group of every row of the pool
    validation: Rows
    test: Rows
    names: tuple[str, ...]  # [k + 1], the target last
    groups: tuple[str, ...]
    columns: Columns
    kind: str  # of target, as the likelihoods are named
    outputs: int  # of a network: 1, or the number of classes
    schema: Schema | None = None  # of the table it was read from
    apart: bool = False  # tasks have labels of their own, which a head for each can learn
    ordered: bool = False  # rows are words in their order, which a transformer reads

    @property
    def sources(self) -> int:
        return len(self.names) - 1

    def to(self, device: torch.device | str) -> Transfer:
        group, validation, test = to_device((self.group, self.validation, self.test), device)
        return self._replace(pool=self.pool.to(device), group=group, validation=validation, test=test)


def read_transfer(
    rows: Source,
    roles: Roles,
    target_task: str,
    *,
    sources: Sequence[str] | None = None,
    parts: Sequence[float] = PARTS,
    seed: int = 0,
    most: int | None = None,
) -> Transfer:
    """From a table with a task column. `roles.group` names a column of the rows, which stays a feature; `sources` are
    all other tasks unless named; `most` bounds the rows of a source, drawn at random."""
    frame = read_table(rows, "rows")
    require([roles.task, roles.target, roles.group], frame.columns, "rows")
    codes, found = keys(frame[roles.task], "rows")
    if target_task not in found:
        known = ", ".join(found[:10]) + (" ..." if len(found) > 10 else "")
        raise InputError(f"a task '{target_task}' in column '{roles.task}'", known, "name one of these")
    if sources is not None and target_task in sources:
        raise InputError("sources other than the target", f"'{target_task}' among them", "leave it out of the sources")
    names = [name for name in found if name != target_task] if sources is None else list(sources)
    twice = next((name for name in names if names.count(name) > 1), None) if sources is not None else None
    if twice is not None:
        raise InputError("every source once", f"'{twice}' more than once", "name it once")
    absent = [name for name in names if name not in found]
    if not names:
        raise InputError("at least one other task as a source", "no source", "add rows of other tasks, or name some")
    if absent:
        raise InputError("rows of every source", f"none of '{absent[0]}'", "leave it out")
    draw = np.random.default_rng(seed)
    own = np.flatnonzero(codes == found.index(target_task))
    train, validation, test = split_rows(own, parts, draw)
    picks = [draw.permutation(np.flatnonzero(codes == found.index(name)))[:most] for name in names]
    place = np.concatenate([*picks, train])
    same_labels(frame, roles, place[: -len(train)], own)
    learned = frame.iloc[place].reset_index(drop=True)
    with numbered(lambda: Schema.fit(frame, roles)):
        schema = Schema.fit(learned, roles)
    if not schema.columns.numeric and not schema.columns.categorical and not schema.columns.bag:
        raise InputError("a column to predict from", "none", "drop fewer columns")
    group, groups = row_groups(frame, roles.group)

    def part(index: np.ndarray) -> Rows:
        chosen = frame.iloc[index].reset_index(drop=True)
        with numbered(lambda: schema.transform_rows(frame)):
            x = schema.transform_rows(chosen)
        with numbered(lambda: schema.target.encode(frame[roles.target])):
            y = schema.target.encode(chosen[roles.target])
        return Rows(x, y, group[torch.from_numpy(index)])

    every = part(place)
    pool = make_pool(every.x, every.y, torch.tensor([*map(len, picks), len(train)]), w=schema.weights(learned))
    outputs = len(schema.target.classes) if schema.target.kind == "multiclass" else 1
    return Transfer(
        pool,
        every.group,
        part(validation),
        part(test),
        (*names, target_task),
        groups,
        schema.columns,
        schema.target.kind,
        outputs,
        schema,
    )


@contextmanager
def numbered(again: Callable[[], object]) -> Iterator[None]:
    """What is wrong with a row is said again of the whole table: rows that were drawn have other numbers."""
    try:
        yield
    except InputError:
        again()
        raise


def make_transfer(
    sources: Sequence[Rows],
    train: Rows,
    validation: Rows,
    test: Rows,
    kind: str = "binary",
    classes: int = 2,
    *,
    columns: Columns | None = None,
    names: Sequence[str] | None = None,
    apart: bool = False,
) -> Transfer:
    """From rows whose x are numbers [n, d], or with `columns` trees of these; tasks are called 0, 1 and so on, and
    target, unless `names` [k + 1] says otherwise."""
    for place, rows in enumerate([*sources, train, validation, test]):
        if not len(rows.y):
            what = f"source {place}" if place < len(sources) else "a part of the target"
            raise InputError("rows in every source and part", f"none in {what}", "leave it out, or pass its rows")

    def told(rows: Rows) -> Rows:
        return rows if columns is not None else rows._replace(x=as_numbers(rows.x))

    every: Rows = concat([told(rows) for rows in (*sources, train)])
    lengths = torch.tensor([len(rows.y) for rows in (*sources, train)], device=train.y.device)
    count = 1 + max(int(part.group.max()) for part in (every, validation, test))
    return Transfer(
        make_pool(every.x, every.y, lengths),
        every.group,
        told(validation),
        told(test),
        (*(str(i) for i in range(len(sources))), "target") if names is None else tuple(names),
        tuple(str(g) for g in range(count)),
        Columns(train.x.shape[-1]) if columns is None else columns,
        kind,
        classes if kind == "multiclass" else 1,
        apart=apart,
    )


def as_numbers(x: Tensor) -> Tree:
    """Rows [n, d] in the form that tables have."""
    empty = torch.zeros(len(x), 0, dtype=torch.long, device=x.device)
    return {"numeric": x, "categorical": empty, "bag": empty.unsqueeze(-1)}


def split_rows(rows: np.ndarray, parts: Sequence[float], draw: np.random.Generator) -> list[np.ndarray]:
    """The rows in random order, cut into three parts."""
    if len(parts) != 3 or min(parts) <= 0 or abs(sum(parts) - 1) > 1e-6:
        raise InputError("three positive parts that sum to 1", str(tuple(parts)), "pass training, validation, test")
    shuffled = draw.permutation(rows)
    first, second = int(parts[0] * len(rows)), int((parts[0] + parts[1]) * len(rows))
    cut = [shuffled[:first], shuffled[first:second], shuffled[second:]]
    if min(map(len, cut)) < FEWEST:
        expected = f"at least {FEWEST} rows of the target to train, to validate and to test"
        raise InputError(expected, ", ".join(str(len(part)) for part in cut), "pass more rows of the target")
    return cut


def same_labels(frame: pd.DataFrame, roles: Roles, sources: np.ndarray, target: np.ndarray) -> None:
    """Refuse a target of one label, and sources with labels that it does not know: they would be another question."""
    kind = Target.fit(frame[roles.target].iloc[np.concatenate([sources, target])])
    if kind.kind == "squared":
        return
    known, other = (set(texts(frame[roles.target].iloc[index], "rows")[1]) for index in (target, sources))
    if len(known) < 2:
        got = f"'{next(iter(known))}' alone" if known else "none"
        raise InputError("two labels or more among the target's rows", got, "name another target")
    if other - known:
        expected = f"labels of the target ({', '.join(sorted(known)[:10])}) in every source"
        raise InputError(expected, f"'{sorted(other - known)[0]}'", "give all tasks the same labels")


def row_groups(frame: pd.DataFrame, column: str | None) -> tuple[Tensor, tuple[str, ...]]:
    """The group of every row, by name in alphabetical order; one group where there is no column."""
    if column is None:
        return torch.zeros(len(frame), dtype=torch.long), ("all",)
    codes, names = texts(frame[column], "rows")
    labels = np.array([*names, "unknown"], dtype=object)[codes]
    ordered, index = np.unique(labels, return_inverse=True)
    return torch.from_numpy(index), tuple(ordered.tolist())


def task_rows(transfer: Transfer, task: int) -> Rows:
    """The training rows of one task."""
    span = slice(int(transfer.pool.offsets[task]), int(transfer.pool.offsets[task + 1]))
    return Rows(take(transfer.pool.x, span), transfer.pool.y[span], transfer.group[span])
