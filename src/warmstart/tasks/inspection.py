"""Looking at a table before it is used: its columns, what they would be taken for, and what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from warmstart.core import InputError
from warmstart.tasks.cells import cells, numbers, texts
from warmstart.tasks.roles import Roles, feature_kinds, require
from warmstart.tasks.side_tables import keys
from warmstart.tasks.table import read_table

SUFFIXES = (".csv", ".tsv", ".parquet")
SEPARATOR = "|"


class ColumnReport(NamedTuple):
    name: str
    kind: str  # numeric, categorical or multi; "" when it cannot be told
    missing: int
    distinct: int
    problem: str  # "" when there is none


class TableReport(NamedTuple):
    table: str
    rows: int
    columns: list[ColumnReport]
    problems: list[str]  # of the table as a whole
    tasks: int = 0
    shortest: int = 0  # rows of a task
    median: float = 0.0
    longest: int = 0


def tables_in(path: Path) -> list[Path]:
    """The table itself, or the tables of a folder."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if not found:
        raise InputError(f"tables ({', '.join(SUFFIXES)}) in folder {path}", "none", "name another folder or a file")
    return found


def inspect(path: Path, task: str | None = None, needed: bool = True) -> TableReport:
    """Everything that can be told of one table; what cannot be read is a problem, not an error.

    A table without the task column is one only when it is `needed` there: item tables have none.
    """
    try:
        frame = read_table(path)
    except InputError as error:
        return TableReport(str(path), 0, [], [str(error)])
    columns = [_column(frame, name) for name in frame.columns]
    if task is None or not (needed or task in frame):
        return TableReport(str(path), len(frame), columns, [])
    try:
        require([task], frame.columns, "table")
        counts = np.bincount(keys(frame[task], "table")[0])
    except InputError as error:
        return TableReport(str(path), len(frame), columns, [str(error)])
    extent = int(counts.min()), float(np.median(counts)), int(counts.max())
    return TableReport(str(path), len(frame), columns, [], len(counts), *extent)


def _column(frame: pd.DataFrame, name: str) -> ColumnReport:
    column, missing, kind = frame[name], int(frame[name].isna().sum()), ""
    try:
        kind = feature_kinds(frame[[name]], Roles(task="", target=" "), SEPARATOR, "table")[name]
        distinct = len(cells(column, SEPARATOR, "table").names if kind == "multi" else texts(column, "table")[1])
        if kind == "numeric":
            numbers(column, "table")
    except InputError as error:
        return ColumnReport(name, kind, missing, 0, str(error))
    return ColumnReport(name, kind, missing, distinct, "every cell is empty" if missing == len(frame) else "")
