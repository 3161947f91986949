"""Texts with labels from a .jsonl or .csv file: what is wrong with one is said with file, line and column."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from warmstart.core import InputError

SUFFIXES = (".jsonl", ".csv")
BETWEEN = "xxnext"  # a word between two texts of a pair


class TextRows(NamedTuple):
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    relations: tuple[str, ...] = ()  # as those of `wrench.Votes`


def read_rows(file: Path) -> TextRows:
    """Columns `text` and `label`, and `text2` where a row is a pair of texts; others are left out."""
    content = _content(file)
    texts, labels = [], []
    for line, row in _json(content, file) if file.suffix == ".jsonl" else _csv(content, file):
        pair = [_cell(row, "text", line, file)]
        if row.get("text2") is not None:
            pair.append(_cell(row, "text2", line, file))
        texts.append(f" {BETWEEN} ".join(pair))
        label = _cell(row, "label", line, file)
        if re.fullmatch(r"[-+]?\d*\.\d+", label):
            where = f"the number {label} in line {line}, column label"
            raise InputError(f"names of classes in {file}", where, "make classes of numbers, by rounding for instance")
        labels.append(label)
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
        except ValueError as error:
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
            raise InputError(f"a table in {file}", f"{error} in line {line}", "correct that line") from None
        if cells is None:
            return
        if not header:
            header = cells
            continue
        if not cells:
            continue
        if len(cells) != len(header):
            wanted = f"{len(header)} columns in line {line} of {file}"
            raise InputError(wanted, f"{len(cells)}", "put texts that hold commas in quotes")
        yield line, dict(zip(header, cells, strict=True))


def _cell(row: dict[str, Any], column: str, line: int, file: Path) -> str:
    """A text, or a whole number as one."""
    value = row.get(column)
    if column not in row:
        got = f"{', '.join(map(str, row)) or 'none'} in line {line}"
        raise InputError(f"a column {column} in {file}", got, "name the columns text and label")
    if not isinstance(value, str | int | float) or not str(value).strip():
        got = "nothing" if value is None or value == "" else repr(value)[:50]
        raise InputError(f"a text in line {line}, column {column} of {file}", got, "correct that line")
    return str(value).strip()
