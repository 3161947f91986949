"""Reading a table strictly: whatever is wrong with a file is said with its name and place."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import pyarrow as pa
from pyarrow import compute, csv, parquet

from warmstart.core import InputError

Source: TypeAlias = str | Path | pd.DataFrame

# integers that lose something as a number: leading zeros, hexadecimal, more digits than a double holds
_IDENTIFIER = r"^\s*[-+]?(0[0-9xX]|[0-9]{16,}\s*$)"


def read_table(source: Source, name: str = "table", encoding: str = "utf-8") -> pd.DataFrame:
    """A .csv, .tsv or .parquet file, or a DataFrame, with distinct column names and at least one row.

    Columns of a text file are numbers when every cell is one and none looks like an identifier ("007").
    """
    frame, place = _read(source, name, encoding)
    if not len(frame):
        raise InputError(f"rows in {place}", "none", "pass a table with at least one row")
    return frame


def read_support(source: Source | None) -> pd.DataFrame | None:
    """What a task has shown, which may be nothing: no table, or a header alone."""
    frame = None if source is None else _read(source, "support")[0]
    return frame if frame is not None and len(frame) else None


def _read(source: Source, name: str, encoding: str = "utf-8") -> tuple[pd.DataFrame, str]:
    """With what to call it in an error."""
    if isinstance(source, pd.DataFrame):
        place = f"the {name}"
        frame = source.set_axis([str(column) for column in source.columns], axis=1)
        _check_header(list(frame.columns), place)
    else:
        path = Path(source)
        place = f"file {path}"
        if not path.is_file():
            raise InputError(f"a file {path}", "none there", "check the path")
        frame = _to_frame(
            _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_text(path, encoding), place
        )
    return frame.reset_index(drop=True), place


def _check_header(names: Sequence[str], place: str) -> None:
    if not names:
        raise InputError(f"columns in {place}", "none", "pass a table with a header")
    if not all(name.strip() for name in names):
        number = [bool(name.strip()) for name in names].index(False) + 1
        raise InputError(
            f"a name for column {number} of {place}", "none", "name it, or save the table without its index"
        )
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise InputError(f"distinct column names in {place}", f"'{twice}' more than once", "rename one of them")


def _to_frame(table: Any, place: str) -> pd.DataFrame:
    try:
        # the metadata would turn columns back into an index
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"readable cells in {place}", _one_line(error), "write the file again") from error
    return frame


def _read_parquet(path: Path) -> Any:
    try:
        # not parquet.read_table, which adds columns made of folder names
        table = parquet.ParquetFile(path).read()
        index = [name for name in table.column_names if name.startswith("__index_level_")]
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        got = f"a truncated or damaged one ({_one_line(error)})"
        raise InputError(f"a Parquet file in {path}", got, "write the file again") from error
    _check_header([name for name in table.column_names if name not in index], f"file {path}")
    return table.drop_columns(index) if index else table


def _read_text(path: Path, encoding: str) -> Any:
    delimiter = {".csv": ",", ".tsv": "\t"}.get(path.suffix.lower())
    if delimiter is None:
        raise InputError("a .csv, .tsv or .parquet file", str(path), "convert or rename it")
    try:
        "a".encode(encoding)
    except LookupError as error:
        raise InputError("a known text encoding", f"'{encoding}'", "try utf-8 or latin-1") from error
    plain = codecs.lookup(encoding).name == "utf-8"
    # one thread, else a broken row has no number
    read = csv.ReadOptions(use_threads=False, block_size=1 << 24, encoding="utf8" if plain else encoding)
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        names = csv.open_csv(path, read, parse).schema.names
        _check_header(names, f"file {path}")
        if len(names) == 1 and ";" in names[0]:
            raise InputError(f"columns apart by commas in file {path}", f"'{names[0]}'", "save it with commas")
        as_text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True)
        table = csv.read_csv(path, read, parse, as_text)
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise _unreadable(path, encoding, error) from error
    if table.num_rows and _open_quote(path, table.column(len(names) - 1)[-1].as_py(), delimiter, encoding):
        raise InputError(
            f"a closing quote at the end of file {path}", "none", "the file may be cut off: write it again"
        )
    return pa.table([_numbers(column) for column in table.columns], names=names)


def _unreadable(path: Path, encoding: str, error: Exception) -> InputError:
    line = _undecodable_line(path, encoding)
    if line is not None:
        return InputError(
            f"{encoding} text in file {path}",
            f"other bytes in line {line}",
            "save the file as UTF-8",
        )
    ragged = re.search(r"Row #(\d+): Expected (\d+) columns?, got (\d+)", str(error))
    if ragged:
        row, expected, got = map(int, ragged.groups())
        with path.open(encoding=encoding) as lines:
            header = lines.readline().strip()
        if expected == 1 and ";" in header:  # decimal commas cut the rows, not the header
            return InputError(f"columns apart by commas in file {path}", f"'{header}'", "save it with commas")
        return InputError(
            f"{expected} columns in each row of file {path}", f"{got} in row {row - 1}", "correct that row"
        )
    if path.stat().st_size == 0:
        return InputError(f"a table in file {path}", "an empty file", "write the file again")
    return InputError(f"a table in file {path}", _one_line(error), "correct the file")


def _undecodable_line(path: Path, encoding: str) -> int | None:
    decoder = codecs.getincrementaldecoder(encoding)()
    done = 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                decoder.decode(line)
                done += 1
        decoder.decode(b"", final=True)
    except UnicodeError:
        return done + 1
    except OSError:
        return None
    return None


def _open_quote(path: Path, last: str | None, delimiter: str, encoding: str) -> bool:
    """Whether the last cell begins with a quote that never ends, which the reader lets pass."""
    if '"'.encode(encoding) != b'"':
        return False
    end = b'"' + (last or "").replace('"', '""').encode(encoding)
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(end) - 1))
        tail = file.read()
    return tail in (before + end for before in (delimiter.encode(), b"\n", b"\r"))


def _numbers(column: Any) -> Any:
    if column.null_count == len(column):
        return column
    for kind in (pa.int64(), pa.float64()):
        try:
            cast = compute.cast(compute.utf8_trim_whitespace(column), kind)
        except pa.ArrowInvalid:
            continue
        identifiers = compute.any(compute.match_substring_regex(column, _IDENTIFIER)).as_py()
        return column if identifiers else cast
    return column


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
