"""Texts with labels from a .jsonl or .csv file: what is wrong with one is said with file, line and column."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from warmstart.core import InputError

SUFFIXES = (".jsonl", ".csv")
BETWEEN = "xxnext"  # a word between two texts of a pair
ALIKE = "give every row a second text, or none"
NUMBER = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=e))(e[-+]?\d+)?", re.IGNORECASE)  # no whole one


class TextRows(NamedTuple):
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    relations: tuple[str, ...] = ()  # as those of `wrench.Votes`

    @property
    def pairs(self) -> tuple[bool, ...]:
        """Whether each row is a pair of texts."""
        return tuple(f" {BETWEEN} " in text for text in self.texts)


def check_rows(part: TextRows, where: str) -> None:
    """Refuse rows that are none, uneven, or not of texts with names of classes."""
    count = len(part.texts)
    if not count:
        raise InputError(f"rows in {where}", "none", "leave the task out, or pass its rows")
    for what, values in (("labels", part.labels), ("relations", part.relations)):
        if len(values) != count and (values or what == "labels"):
            raise InputError(f"{count} {what} in {where}, one for each text", f"{len(values)}", "pass one for each")
    for what, values in part._asdict().items():
        other = next((value for value in values if not isinstance(value, str)), None)
        if other is not None:
            raise InputError(f"{what} in {where} as strings", repr(other)[:50], "make strings of them")
    if len(set(part.pairs)) > 1:
        raise InputError(f"pairs of texts in all rows of {where} or in none", f"{sum(part.pairs)} of {count}", ALIKE)


def read_rows(file: Path) -> TextRows:
    """Columns `text` and `label`, and `text2` where a row is a pair of texts; others are left out."""
    content = _content(file)
    texts: list[str] = []
    labels: list[str] = []
    pairs = False
    for line, row in _json(content, file) if file.suffix == ".jsonl" else _csv(content, file):
        if texts and ("text2" in row) != pairs:
            raise InputError(
                f"a column text2 in all lines of {file} or in none",
                f"{'none' if pairs else 'one'} in line {line}",
                ALIKE,
            )
        pairs = "text2" in row
        texts.append(f" {BETWEEN} ".join(_text(row, name, line, file) for name in ("text", "text2")[: 1 + pairs]))
        labels.append(_label(row, line, file))
    if not texts:
        raise InputError(f"rows in {file}", "none", "write the file again")
    return TextRows(tuple(texts), tuple(labels))


def _content(file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"a file {file}", type(error).__name__, "check the path") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"UTF-8 text in {file}", f"other bytes in line {line}", "save the file as UTF-8") from None


def _json(content: str, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(content.split("\n"), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"JSON in line {line} of {file}", str(error)[:100], "correct that line") from None
        if not isinstance(row, dict):
            raise InputError(f"an object in line {line} of {file}", type(row).__name__, "correct that line")
        yield line, row


def _csv(content: str, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = csv.reader(io.StringIO(content, newline=""), strict=True)
    header: list[str] = []
    while True:
        line = lines.line_num + 1
        try:
            cells = next(lines, None)
        except csv.Error as error:
            long = "field limit" in str(error)
            remedy = "write texts this long as .jsonl" if long else "correct that line"
            raise InputError(f"a table in {file}", f"{error} in line {line}", remedy) from None
        if cells is None:
            return
        if not header:
            header = cells
            twice = next((name for name in header if header.count(name) > 1), None)
            if twice is not None:
                raise InputError(f"every column once in {file}", f"'{twice}' more than once", "rename one, or drop it")
            continue
        if not cells:
            continue
        if len(cells) != len(header):
            wanted = f"{len(header)} columns in line {line} of {file}"
            raise InputError(wanted, f"{len(cells)}", "put texts that hold commas in quotes")
        yield line, dict(zip(header, cells, strict=True))


def _text(row: dict[str, Any], column: str, line: int, file: Path) -> str:
    value = _cell(row, column, line, file)
    if not isinstance(value, str):
        raise _wrong("a text", value, column, line, file)
    return value


def _label(row: dict[str, Any], line: int, file: Path) -> str:
    """The name of a class, or a whole number as one."""
    value = _cell(row, "label", line, file)
    if (isinstance(value, float) and math.isfinite(value)) or (isinstance(value, str) and NUMBER.fullmatch(value)):
        where = f"the number {value} in line {line}, column label"
        raise InputError(f"names of classes in {file}", where, "make classes of numbers, by rounding for instance")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise _wrong("a name of a class or a whole number", value, "label", line, file)
    return str(value)


def _cell(row: dict[str, Any], column: str, line: int, file: Path) -> Any:
    """What is there, which is more than blanks."""
    if column not in row:
        got = f"{', '.join(map(str, row)) or 'none'} in line {line}"
        raise InputError(f"a column {column} in {file}", got, "name the columns text and label")
    value = row[column]
    if value is None or not str(value).strip():
        raise _wrong("a text", value, column, line, file)
    return value.strip() if isinstance(value, str) else value


def _wrong(wanted: str, value: Any, column: str, line: int, file: Path) -> InputError:
    got = "nothing" if value is None or value == "" else repr(value)[:50]
    return InputError(f"{wanted} in line {line}, column {column} of {file}", got, "correct that line")
