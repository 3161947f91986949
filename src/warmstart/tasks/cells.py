"""What is written in the cells of a column: numbers, texts, or several texts.

Every distinct cell is read once, so that a million rows cost little more than their vocabulary.
Messages count rows from 1, the header left out.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from warmstart.core import InputError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
SHORT = 64  # rows up to which a column is read cell by cell


def cell_error(expected: str, column: pd.Series[Any], row: int, where: str, remedy: str) -> InputError:
    """The error of the cell at position `row`; the index holds its row in the table, from 0, or whose row it is."""
    value = column.iloc[row]
    shown = repr(value.item() if isinstance(value, np.generic) else value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    label: Any = column.index[row]
    place = f"the row of {label}" if isinstance(label, str) else f"row {label + 1}"
    return InputError(f"{expected} in column '{column.name}' of the {where}", f"{shown} in {place}", remedy)


def _text(value: Any) -> str | None:
    """The text of a cell, None when missing; 3, 3.0 and ' 3' are one value, since files cannot tell them apart."""
    if isinstance(value, str):
        return value.strip() or None
    if pd.api.types.is_list_like(value) or (isinstance(value, float | np.floating) and math.isinf(value)):
        raise ValueError(value)
    if value is None or value is pd.NA or value is pd.NaT or value != value:
        return None
    if isinstance(value, float | np.floating) and value == np.floor(value):
        return str(int(value))
    return str(value).strip() or None


def texts(column: pd.Series[Any], where: str) -> tuple[Ints, list[str]]:
    """The distinct texts of a column and, for each row, the index of its text; -1 is missing."""
    try:
        if len(column) <= SHORT:
            return _few_texts([_text(value) for value in column])
        # True == 1 to a hash table, so cells of several types become texts before they are compared
        cells = column.map(_text) if column.dtype == object else column
        codes, values = pd.factorize(cells)
        names = [_text(value) for value in values]
    except (ValueError, TypeError) as error:
        row = next(row for row, value in enumerate(column) if not _is_scalar(value))
        remedy = "declare the column multi-valued, turn its cells into text or numbers, or drop it"
        raise cell_error("one finite value", column, row, where, remedy) from error
    merged, distinct = pd.factorize(pd.Series(names, dtype=object))
    return np.append(merged, -1)[codes], [str(name) for name in distinct]


def _few_texts(cells: list[str | None]) -> tuple[Ints, list[str]]:
    """The same for a column of few rows, where a table of the machine's own costs more than it saves."""
    place: dict[str, int] = {}
    codes = [-1 if cell is None else place.setdefault(cell, len(place)) for cell in cells]
    return np.array(codes, dtype=np.int64), list(place)


def _is_scalar(value: Any) -> bool:
    try:
        _text(value)
    except (ValueError, TypeError):
        return False
    return True


def numbers(column: pd.Series[Any], where: str, remedy: str = "clean it, or declare the column categorical") -> Floats:
    """The column as finite numbers, NaN where missing."""
    if pd.api.types.is_numeric_dtype(column.dtype) and column.dtype.kind != "c":
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        codes, names = texts(column, where)
        parsed = [_number(name) for name in names]
        unread = np.append([value is None for value in parsed], False)[codes].astype(bool)
        if unread.any():
            raise cell_error("a number", column, int(unread.argmax()), where, remedy)
        values = np.append(np.array(parsed, dtype=np.float64), np.nan)[codes]
    if np.isinf(values).any():
        raise cell_error("a finite number", column, int(np.isinf(values).argmax()), where, "replace or leave it empty")
    return values


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def is_number(text: str) -> bool:
    return _number(text) is not None


def ranks(column: pd.Series[Any], where: str) -> Floats | Ints:
    """Something that sorts as the times in the column do: numbers, datetimes or ISO 8601 texts."""
    missing = column.isna().to_numpy(dtype=bool)
    if missing.any():
        raise cell_error("a time", column, int(missing.argmax()), where, "fill it in or remove the row")
    if pd.api.types.is_numeric_dtype(column.dtype):
        return numbers(column, where)
    codes, names = texts(column, where)
    times = pd.Series(pd.to_datetime(names, format="ISO8601", utc=True, errors="coerce"))
    unread = np.append(times.isna().to_numpy(dtype=bool), True)[codes]
    if unread.any():
        remedy = "write times as numbers or as 2024-12-31T23:59:59"
        odd = unread & ~np.append([is_number(name) for name in names], False)[codes]  # amid numbers, what is none
        raise cell_error("a time", column, int((odd if odd.any() else unread).argmax()), where, remedy)
    order, _ = pd.factorize(times, sort=True)
    return order[codes]


class Cells(NamedTuple):
    """A multi-valued column: rows share distinct cells, a cell has members."""

    row: Ints  # [N] the cell of each row, -1 when empty
    cell: Ints  # [M] the cell of each member
    value: Ints  # [M] the member, an index into names
    names: list[str]


def is_list(value: Any) -> bool:
    return pd.api.types.is_list_like(value) and not isinstance(value, dict)


def cells(column: pd.Series[Any], separator: str, where: str) -> Cells:
    """The members of every distinct cell, each once."""
    if column.dtype == object and column.map(is_list).any():
        row = np.arange(len(column))
        members = column.map(lambda cell: cell.split(separator) if isinstance(cell, str) else cell).explode()
        cell = column.index.get_indexer(members.index)
    else:
        row, names = texts(column, where)
        members = pd.Series([name.split(separator) for name in names], dtype=object).explode()
        cell = members.index.to_numpy()
    value, names = texts(members, where)
    cell, value = distinct_pairs(cell[value >= 0], value[value >= 0])
    return Cells(row, cell, value, names)


def distinct_pairs(cell: Ints, value: Ints) -> tuple[Ints, Ints]:
    """The distinct pairs (cell, value) in ascending order; both count from 0."""
    width = int(value.max(initial=0)) + 1
    # one sorted integer per pair: much faster than np.unique over an axis
    pair = np.sort(cell * width + value)
    cell, value = np.divmod(pair[np.diff(pair, prepend=-1) > 0], width)
    return cell, value
