"""BookCrossing, from the publisher's zip `BX-CSV-Dump` or the folder it unzips to: explicit ratings 1 to 10.

The files are latin-1 with `;` between quoted cells, quotes in cells escaped by a backslash or not at
all, a line broken within a cell, and authors that slipped into the cell of a title. A zero means that a
book was read, not how it was liked: such rows are dropped. Ziegler, McNee, Konstan and Lausen, 2005.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from warmstart.core import InputError
from warmstart.tasks.archive import AGAIN, read_member
from warmstart.tasks.data_folder import find_files
from warmstart.tasks.lines import typed
from warmstart.tasks.ratings import Ratings, by_name, make_ratings

SCALE = (1.0, 10.0)
FILES = {
    "BX-Users.csv": ("User-ID", "Location", "Age"),
    "BX-Books.csv": (
        "ISBN",
        "Book-Title",
        "Book-Author",
        "Year-Of-Publication",
        "Publisher",
        "Image-URL-S",
        "Image-URL-M",
        "Image-URL-L",
    ),
    "BX-Book-Ratings.csv": ("User-ID", "ISBN", "Book-Rating"),
}
SLIPPED = re.compile(r'\\";(?=[^"]+$)')  # "Title\";Author": two cells in one


def read_book_crossing(path: str | Path) -> Ratings:
    """Users with city, state, country and age (missing where NULL), books with title, author, year, publisher."""
    root = Path(path)
    choices = [["BX-CSV-Dump.zip"], ["BX-CSV-Dump-subset.zip"], list(FILES)]
    found = root if root.is_file() else find_files(root, "BX-CSV-Dump", choices)[0]
    place = found.parent if found.suffix == ".csv" else found
    (people, _), (books, _), (events, lines) = (read_quoted(place, name) for name in FILES)
    if not len(events):
        raise InputError(f"ratings in BX-Book-Ratings.csv of {place}", "none", "download it again")
    value = typed(pa.array(events["Book-Rating"]), int, f"BX-Book-Ratings.csv of {place}", "Book-Rating", lines)
    rows = pd.DataFrame({"user": events["User-ID"], "item": events["ISBN"], "value": value})
    rows.index = pd.Index(np.array(lines) - 1)  # messages count lines
    where = f"file BX-Book-Ratings.csv of {place}"
    implicit = int((value == 0).sum())
    people = people[people["User-ID"].isin(events["User-ID"])]
    users = by_name(people.assign(**_profile(people)), "User-ID", f"file BX-Users.csv of {place}", ("Location", "Age"))
    about = pd.DataFrame(
        {
            "ISBN": books["ISBN"],
            "title": books["Book-Title"],
            "author": books["Book-Author"],
            "year": _between(books["Year-Of-Publication"], 1400, 2010),
            "publisher": books["Publisher"],
        }
    )
    made = make_ratings(rows[value.to_numpy() != 0], users, by_name(about, "ISBN", "books"), SCALE, where)
    note = (f"{implicit:,} ratings of zero, which say only that a book was read, were dropped",) if implicit else ()
    return made._replace(notes=made.notes + note)


def read_quoted(place: Path, name: str) -> tuple[pd.DataFrame, list[int]]:
    """The records of one file as texts, and the line each starts in; what cannot be repaired is an error."""
    columns = FILES[name]
    records: list[str] = []
    lines: list[int] = []
    for number, line in enumerate(read_member(place, name).decode("latin-1").replace("\r\n", "\n").split("\n"), 1):
        if line.startswith('"'):
            records.append(line)
            lines.append(number)
        elif line and records:
            records[-1] += " " + line  # a record begins with a quote: this line was broken off the last one
    if not records or _split(records[0]) != list(columns):
        got = records[0][:60] if records else "an empty file"
        raise InputError(f"the header {';'.join(columns)} in {name} of {place}", got, AGAIN)
    told = f"{name} of {place}"
    cells = [_cells(record, columns, line, told) for record, line in zip(records[1:], lines[1:], strict=True)]
    return pd.DataFrame(cells, columns=list(columns), dtype=object), lines[1:]


def _cells(record: str, columns: tuple[str, ...], line: int, told: str) -> list[str | None]:
    cells = _split(record)
    if len(cells) == len(columns) - 1:
        cells = [part for cell in cells for part in SLIPPED.split(cell, maxsplit=1)]
    if len(cells) != len(columns):
        column = columns[min(len(cells), len(columns)) - 1]
        expected = f"{len(columns)} cells in each line of {told}"
        raise InputError(expected, f"{len(cells)} in line {line}, counted to column {column}", AGAIN)
    return [None if cell == "NULL" else _text(cell) or None for cell in cells]


def _split(record: str) -> list[str]:
    """At each ; that has quotes on both sides; NULL stands without."""
    return record.rstrip().replace(";NULL", ';"NULL"').removeprefix('"').removesuffix('"').split('";"')


def _text(cell: str) -> str:
    return cell.replace("\\", "").replace("&amp;", "&").strip()


def _profile(people: pd.DataFrame) -> dict[str, pd.Series[str]]:
    """ "City, state, country", read from the right; n/a is missing. Ages that nobody has are missing too."""
    parts = people["Location"].str.rsplit(",", n=2, expand=True).reindex(columns=range(3))
    clean = parts.apply(lambda part: part.str.strip(" \"'").replace({"": None, "n/a": None}))
    columns = {name: clean[i] for i, name in enumerate(("city", "state", "country"))}
    return columns | {"age": _between(people["Age"], 0, 120)}


def _between(column: pd.Series[str], low: float, high: float) -> pd.Series[float]:
    """Numbers; what is none, or outside (low, high], is missing."""
    number = pd.to_numeric(column, errors="coerce")
    return number.where((number > low) & (number <= high))
