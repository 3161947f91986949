"""Tables that describe tasks and items: found by their key, joined to what refers to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from warmstart.core import InputError
from warmstart.tasks.cells import Ints, cell_error, texts
from warmstart.tasks.roles import Roles, require


def keys(column: pd.Series[Any], where: str) -> tuple[Ints, list[str]]:
    """The distinct names of a key column and the index of each row's name; none may be missing."""
    codes, names = texts(column, where)
    if (codes < 0).any():
        raise cell_error("a name", column, int((codes < 0).argmax()), where, "fill it in or remove the row")
    return codes, names


def _find(table: pd.DataFrame, key: str, names: list[str], where: str) -> Ints:
    """The row of the table that each name has, -1 when it has none."""
    require([key], table.columns, where)
    codes, have = keys(table[key], where)
    if len(have) < len(codes):
        again = int(pd.Series(codes).duplicated().argmax())
        raise cell_error("each name once", table[key], again, where, "keep one row for each")
    return pd.Index(have, dtype=object).get_indexer(pd.Index(names, dtype=object)).astype(np.int64)


def describe(tasks: pd.DataFrame, key: str, names: list[str]) -> pd.DataFrame:
    """One row of the task table for each named task; a task that is not in the table is an error."""
    found = _find(tasks, key, names, "task table")
    if (found < 0).any():
        expected = f"task {names[int((found < 0).argmax())]!r} in column '{key}' of the task table"
        count = int((found < 0).sum())
        raise InputError(
            expected, f"no row for {count} of {len(names)} tasks", "add a row for each task, empty if need be"
        )
    return tasks.iloc[found]


def join_items(
    rows: pd.DataFrame, items: pd.DataFrame | None, key: str | None, columns: tuple[str, ...]
) -> pd.DataFrame:
    """Rows with the columns of their item; an item that is not in the table leaves them missing."""
    if items is None or key is None or not columns:
        return rows
    require(columns, items.columns, "item table")
    codes, names = texts(rows[key], "rows")
    found = np.append(_find(items, key, names, "item table"), -1)[codes]
    features = items[list(columns)].reindex(found).set_axis(rows.index)
    return pd.concat([rows.drop(columns=list(columns), errors="ignore"), features], axis=1)


def check_roles(roles: Roles, rows: pd.DataFrame, tasks: pd.DataFrame | None, items: pd.DataFrame | None) -> None:
    """Every column that the roles name is in the table where it belongs."""
    require([roles.task, roles.target, roles.item, roles.time, roles.weight], rows.columns, "rows")
    described = [*rows.columns, *([] if tasks is None else tasks.columns)]
    require([roles.group], described, "rows or the task table")
    listed = [*(roles.numeric or ()), *(roles.categorical or ()), *(roles.multi or ()), *roles.drop]
    require(listed, [*described, *([] if items is None else items.columns)], "tables")
    if items is not None:
        if roles.item is None:
            raise InputError("an item column to join the item table by", "none", "name it in the roles")
        require([roles.item], items.columns, "item table")
        both = [name for name in roles.features(items.columns) if name in rows.columns and name != roles.item]
        if both:
            expected = "feature names of the item table that the rows do not use"
            raise InputError(expected, f"'{both[0]}' in both", "rename or drop one of them")


def check_lengths(codes: Ints) -> None:
    """Tasks of one row can only be judged on, so some task must have more."""
    if not len(codes):
        raise InputError("rows of training tasks", "none", "pass rows whose tasks are in the split")
    if np.bincount(codes).max() < 2:
        got = f"one row in each of {len(codes)}"
        raise InputError("a task with two rows or more", got, "check the task column: is it a row number?")
