"""The table door: rows with a task and a target column, and side tables, to a `Pool`.

    table --Schema.fit, on training tasks--> Schema --transform--> Pool

Whatever is learned from data (kinds of columns, means, vocabularies, classes) is learned in `fit`
and saved as JSON; `transform` only looks up.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from warmstart.core import Columns, InputError
from warmstart.tasks.cells import Ints, cell_error, numbers, ranks, texts
from warmstart.tasks.features import Features, distinct_texts
from warmstart.tasks.pool import Pool, make_pool
from warmstart.tasks.roles import Roles, feature_kinds, require
from warmstart.tasks.side_tables import check_lengths, check_roles, describe, join_items, keys
from warmstart.tasks.split import Split, digest
from warmstart.tasks.table import Source, read_table
from warmstart.tasks.target import Target

VERSION = 1


class NamedPool(NamedTuple):
    """A pool and the names that its integers stand for."""

    pool: Pool
    names: tuple[str, ...]  # [T] task names, in order of first appearance
    groups: tuple[str, ...]  # names of the integers in pool.group
    rows: Tensor  # [N] the table row (from 0) of each row of the pool


@dataclass(frozen=True)
class Schema:
    """What was learned of a table from its training tasks."""

    roles: Roles
    rows: Features
    descriptor: Features
    target: Target
    item_columns: tuple[str, ...] = ()  # the features that come from the item table
    split: Split | None = None

    @property
    def columns(self) -> Columns:
        return self.rows.columns

    @property
    def descriptor_columns(self) -> Columns:
        return self.descriptor.columns

    @classmethod
    def fit(
        cls,
        rows: Source,
        roles: Roles,
        task_table: Source | None = None,
        item_table: Source | None = None,
        *,
        target: str | None = None,
        split: Split | None = None,
        separator: str = "|",
        min_count: int = 1,
        max_bag: int = 16,
    ) -> Schema:
        """Learn from the rows of `split.train`, or from all rows when no split is given.

        `target` forces the kind of target; values seen in fewer than `min_count` rows are left out
        of the vocabularies; bags keep at most `max_bag` values.
        """
        if not separator or min_count < 1 or max_bag < 1:
            got = f"{separator!r}, {min_count}, {max_bag}"
            raise InputError("a separator, min_count and max_bag of at least 1", got, "correct them")
        frame, tasks, items = _tables(rows, task_table, item_table)
        check_roles(roles, frame, tasks, items)
        codes, names = keys(frame[roles.task], "rows")
        if split is not None:
            training = np.isin(codes, np.flatnonzero(pd.Index(names).isin(split.train)))
            frame, codes = frame[training], codes[training]
        check_lengths(codes)
        names = [names[code] for code in pd.unique(codes)]
        item_columns = () if items is None else tuple(n for n in roles.features(items.columns) if n != roles.item)
        joined = join_items(frame, items, roles.item, item_columns)
        known = pd.DataFrame() if tasks is None else describe(tasks, roles.task, names)

        def features(part: pd.DataFrame, where: str) -> Features:
            kinds = feature_kinds(part, roles, separator, where)
            return Features.fit(part, kinds, where, separator, min_count, max_bag)

        y = Target.fit(frame[roles.target], target)
        return cls(roles, features(joined, "rows"), features(known, "task table"), y, item_columns, split)

    def transform(self, rows: Source, task_table: Source | None = None, item_table: Source | None = None) -> NamedPool:
        """Tasks with their targets. A task keeps the order of its rows, or that of the time column."""
        frame, tasks, items = _tables(rows, task_table, item_table)
        roles = self.roles
        require([roles.task, roles.target, roles.time, roles.weight, *self._row_columns()], frame.columns, "rows")
        codes, names = keys(frame[roles.task], "rows")
        time = np.zeros(len(frame)) if roles.time is None else ranks(frame[roles.time], "rows")
        order = np.lexsort((time, codes))  # stable
        x, y, w = self._encode_rows(frame, items), self.target.encode(frame[roles.target]), self.weights(frame)
        place = torch.from_numpy(order)
        group, groups = self._groups(frame, tasks, codes, names)
        pool = make_pool(
            {name: part[place] for name, part in x.items()},
            y[place],
            torch.from_numpy(np.bincount(codes, minlength=len(names))),
            self._descriptors(tasks, names),
            w[place],
            torch.tensor([digest(name) for name in names]),
            group,
            roles.first or roles.time is not None,
        )
        return NamedPool(pool, tuple(names), groups, place)

    def transform_rows(self, rows: Source, item_table: Source | None = None) -> dict[str, Tensor]:
        """The features of rows, in table order; no task, target, time or weight column is needed."""
        frame, _, items = _tables(rows, None, item_table)
        require(self._row_columns(), frame.columns, "rows")
        return self._encode_rows(frame, items)

    def strange(self, rows: Source, where: str, item_table: Source | None = None) -> list[str]:
        """Notes on what training rows did not have, of rows that `transform_rows` takes."""
        frame, _, items = _tables(rows, None, item_table)
        return self.rows.strange(join_items(frame, items, self.roles.item, self.item_columns), where, "rows", True)

    def transform_descriptor(self, descriptor: pd.DataFrame | Mapping[str, Any]) -> dict[str, Tensor]:
        """What is known of new tasks: a dict of one task's values, or one row per task. What is left out is missing."""
        if isinstance(descriptor, pd.DataFrame):
            frame = read_table(descriptor, "descriptor")
        else:
            frame = pd.DataFrame({str(name): pd.Series([value]) for name, value in descriptor.items()}, index=[0])
        known = [*self.descriptor.names, self.roles.task, self.roles.group, *self.roles.drop]
        unknown = [name for name in frame.columns if name not in known]
        if unknown:
            near = difflib.get_close_matches(unknown[0], self.descriptor.names, 1)
            expected = f"descriptor columns among {', '.join(self.descriptor.names) or 'none'}"
            raise InputError(expected, f"'{unknown[0]}'", f"did you mean '{near[0]}'?" if near else "leave it out")
        return self.descriptor.encode(frame, "descriptor")

    def _row_columns(self) -> list[str]:
        own = [name for name in self.rows.names if name not in self.item_columns]
        return [*own, self.roles.item] if self.item_columns and self.roles.item else own

    def _encode_rows(self, frame: pd.DataFrame, items: pd.DataFrame | None) -> dict[str, Tensor]:
        if self.item_columns and items is None:
            raise InputError("an item table, as in training", "none", "pass item_table")
        return self.rows.encode(join_items(frame, items, self.roles.item, self.item_columns), "rows")

    def weights(self, frame: pd.DataFrame) -> Tensor:
        """The weight of every row, 1 where there is no such column."""
        if self.roles.weight is None or self.roles.weight not in frame:
            return torch.ones(len(frame))
        weights = numbers(frame[self.roles.weight], "rows", "clean it")
        bad = ~(weights >= 0)
        if bad.any():
            raise cell_error("a weight of 0 or more", frame[self.roles.weight], int(bad.argmax()), "rows", "correct it")
        return torch.tensor(weights, dtype=torch.get_default_dtype())  # a copy: a file's column may be read-only

    def _descriptors(self, tasks: pd.DataFrame | None, names: list[str]) -> dict[str, Tensor]:
        if not self.descriptor.names:
            return self.descriptor.encode(pd.DataFrame(index=range(len(names))), "task table")
        if tasks is None:
            raise InputError("a task table, as in training", "none", "pass it (--task-table)")
        require(self.descriptor.names, tasks.columns, "task table")
        return self.descriptor.encode(describe(tasks, self.roles.task, names), "task table")

    def _groups(
        self, frame: pd.DataFrame, tasks: pd.DataFrame | None, codes: Ints, names: list[str]
    ) -> tuple[Tensor, tuple[str, ...]]:
        """Groups by name in alphabetical order; tasks of which nothing is known form the group 'unknown'."""
        column = self.roles.group
        if column is not None and column in frame:
            first = np.unique(codes, return_index=True)[1]
            found, groups = texts(frame[column].iloc[first], "rows")
        elif column is not None and tasks is not None and column in tasks:
            found, groups = texts(describe(tasks, self.roles.task, names)[column], "task table")
        else:
            found, groups = np.full(len(names), -1), []
        labels = np.array([*groups, "unknown"], dtype=object)[found]
        ordered, index = np.unique(labels, return_inverse=True)
        return torch.from_numpy(index), tuple(ordered.tolist())

    def to_json(self) -> str:
        content = {
            "version": VERSION,
            "roles": self.roles.to_dict(),
            "rows": self.rows.to_dict(),
            "descriptor": self.descriptor.to_dict(),
            "target": self.target.to_dict(),
            "item_columns": list(self.item_columns),
            "split": None if self.split is None else self.split._asdict(),
        }
        return json.dumps(content, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """The inverse of `to_json`; a damaged or newer text is an error."""
        try:
            content = json.loads(text)
            if content["version"] != VERSION:
                raise InputError(f"schema version {VERSION}", repr(content["version"]), "update warmstart or fit again")
            return cls._from_dict(content)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            got = f"damaged text ({type(error).__name__}: {error})"
            raise InputError("a schema saved by warmstart", got, "save it again") from error

    @classmethod
    def _from_dict(cls, content: Mapping[str, Any]) -> Schema:
        item_columns, split = tuple(content["item_columns"]), content["split"]
        if split is not None:
            split = Split(**{part: tuple(names) for part, names in split.items()})
        schema = cls(
            Roles.from_dict(content["roles"]),
            Features.from_dict(content["rows"]),
            Features.from_dict(content["descriptor"]),
            Target.from_dict(content["target"]),
            item_columns,
            split,
        )
        if not set(item_columns) <= set(schema.rows.names) or (item_columns and schema.roles.item is None):
            raise ValueError("bad item_columns")
        if split is not None and not distinct_texts([name for part in split for name in part]):
            raise ValueError("bad split")
        return schema


def task_names(rows: Source, task: str) -> list[str]:
    """The names of the tasks of a table, as `split_tasks` and a schema know them, in order of first appearance."""
    frame = read_table(rows, "rows")
    require([task], frame.columns, "rows")
    return keys(frame[task], "rows")[1]


def _tables(
    rows: Source, task_table: Source | None, item_table: Source | None
) -> tuple[pd.DataFrame, pd.DataFrame | None, pd.DataFrame | None]:
    return (
        read_table(rows, "rows"),
        None if task_table is None else read_table(task_table, "task table"),
        None if item_table is None else read_table(item_table, "item table"),
    )
