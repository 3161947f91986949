"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(metavar="N", help="Of everything random.", min=0, max=2**63 - 1)]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars and no remarks.")]

Folder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Folder for results.json, table.csv and report.html."),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `warmstart fit` wrote.")]
Table = Annotated[Path, typer.Argument(metavar="TABLE", help="Rows: .csv, .tsv or .parquet.")]
TaskTable = Annotated[Path | None, typer.Option(metavar="TABLE", help="What is known of each task, one row each.")]
ItemTable = Annotated[Path | None, typer.Option(metavar="TABLE", help="What is known of each item, one row each.")]
Support = Annotated[Path | None, typer.Option(metavar="TABLE", help="Rows of the new task with their target.")]
Descriptor = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="What is known of the new task.")]
DescriptorTable = Annotated[
    Path | None, typer.Option(metavar="TABLE", help="The same as a table, found by the task column.")
]

Broken = Annotated[str, typer.Option(metavar="CHOICE", help="Of pictures that cannot be read: refuse or skip.")]


def names(text: str | None) -> tuple[str, ...] | None:
    """Columns separated by commas.

    >>> names("a, b")
    ('a', 'b')
    """
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def pairs(texts: list[str] | None, option: str, separator: str | None = None) -> dict[str, str]:
    """key=value, given several times or separated.

    >>> pairs(["a=1,b=x", "c=y=z"], "--descriptor", ",")
    {'a': '1', 'b': 'x', 'c': 'y=z'}
    """
    found: dict[str, str] = {}
    for part in (part for text in texts or [] for part in (text.split(separator) if separator else [text])):
        key, sign, value = part.partition("=")
        if not sign or not key.strip() or key.strip() in found:
            from warmstart.core import InputError

            raise InputError(f"{option} key=value, each key once", repr(part), "write for instance a=1")
        found[key.strip()] = value.strip()
    return found
