"""Text files without a header, one record a line: what is wrong with one is said with file, line and column."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import compute, csv

from warmstart.core import InputError
from warmstart.tasks.archive import AGAIN

UNIT = b"\x1f"  # the ASCII character made to separate fields, which no text holds


def read_lines(
    content: bytes, place: str, separator: str, columns: Mapping[str, type], encoding: str = "latin-1"
) -> pd.DataFrame:
    """A frame with `columns`, name -> int, float or str; an empty text is missing. Row i is line i + 1."""
    if not content.strip():
        raise InputError(f"lines in file {place}", "an empty file", AGAIN)
    plain = content.replace(separator.encode(), UNIT) if len(separator) > 1 else content
    names = list(columns)
    read = csv.ReadOptions(use_threads=False, column_names=names, encoding=encoding, block_size=1 << 26)
    parse = csv.ParseOptions(
        delimiter=UNIT.decode() if len(separator) > 1 else separator, quote_char=False, ignore_empty_lines=False
    )
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    try:
        table = csv.read_csv(io.BytesIO(plain), read, parse, convert)
    except (pa.ArrowException, UnicodeError) as error:
        raise _broken(error, place, names, separator) from error
    return pd.DataFrame({name: typed(table.column(name), kind, place, name) for name, kind in columns.items()})


def typed(column: Any, kind: type, place: str, name: str, lines: Sequence[int] | None = None) -> pd.Series[Any]:
    """Texts (an Arrow column) as whole numbers, numbers or texts; `lines` are those the cells stand in."""
    if kind is str:
        return pd.Series(column.to_pandas(), name=name).astype(object)
    pattern = r"^\s*[-+]?\d+\s*$" if kind is int else r"^\s*[-+]?(\d+\.?\d*|\.\d+)\s*$"
    good = compute.fill_null(compute.match_substring_regex(column, pattern), False).to_numpy(zero_copy_only=False)
    if not good.all():
        row = int(np.argmin(good))
        got = column[row].as_py()
        where = f"{got!r} in line {row + 1 if lines is None else lines[row]}, column {name}"
        raise InputError(f"a {'whole ' if kind is int else ''}number in file {place}", where, AGAIN)
    target = pa.int64() if kind is int else pa.float64()
    return pd.Series(compute.cast(compute.utf8_trim_whitespace(column), target).to_numpy(), name=name)


def _broken(error: Exception, place: str, names: list[str], separator: str) -> InputError:
    ragged = re.search(r"Row #(\d+): Expected (\d+) columns?, got (\d+)", str(error))
    if ragged is None:
        return InputError(f"readable lines in file {place}", " ".join(str(error).split())[:120], AGAIN)
    line, expected, got = map(int, ragged.groups())
    end = f"it ends in column {names[got - 1]}" if got < expected else f"more follows column {names[-1]}"
    wanted = f"{expected} columns separated by {separator!r} in each line of file {place}"
    return InputError(wanted, f"{got} in line {line}: {end}", AGAIN)
