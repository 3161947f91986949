"""Tables: one plain structure that the terminal, the page and the docs all print."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from warmstart.core import InputError
from warmstart.engine.files import write_text
from warmstart.report.results import Results
from warmstart.report.rows import Row, Scalar

NOT_RUN = "not run"
NOT_FINITE = "not finite"


class Column(NamedTuple):
    """Which rows a column shows, and which end of its scale is good."""

    label: str
    metric: str
    setting: Mapping[str, Scalar] = {}
    digits: int = 3  # at least
    better: str = ""  # "lower", "higher", or "" when neither is


class Cell(NamedTuple):
    text: str
    margin: str = ""  # half the 95 % interval
    best: bool = False


class Line(NamedTuple):
    label: str
    cells: tuple[Cell, ...]
    kind: str = "method"  # "baseline", or "reference" for what no method could know and so cannot win
    best: bool = False  # wins most columns


class Table(NamedTuple):
    head: tuple[str, ...]  # the first names the lines
    lines: tuple[Line, ...]
    caption: str = ""


def table(
    results: Results,
    rows: Sequence[str] | Mapping[str, str] | None = None,
    columns: Sequence[Column] | None = None,
    baselines: Collection[str] = (),
    references: Collection[str] = (),
    better: Mapping[str, str] | None = None,
    caption: str = "",
) -> Table:
    """Methods down, settings and metrics across; a cell without a result says so.

    `rows` lists the methods in order, or maps each to its label; without it, all that have results.
    Without `columns` there is one for each metric and setting, and `better` says which end of a metric is good.
    """
    methods = list(dict.fromkeys(row.method for row in results.rows)) if rows is None else list(rows)
    labels = rows if isinstance(rows, Mapping) else {}
    chosen = _columns(results.rows, better or {}) if columns is None else list(columns)
    found = {method: [_find(results.rows, method, column) for column in chosen] for method in methods}
    rivals = [method for method in methods if method not in references]
    best = [_best([(found[method][i], method) for method in rivals], column) for i, column in enumerate(chosen)]
    winner = max(rivals, key=best.count, default="") if any(best) else ""

    def line(method: str) -> Line:
        cells = (
            _cell(row, column, best[i] == method)
            for i, (row, column) in enumerate(zip(found[method], chosen, strict=True))
        )
        kind = "reference" if method in references else "baseline" if method in baselines else "method"
        return Line(labels.get(method, method), tuple(cells), kind, method == winner)

    return Table(("method", *(column.label for column in chosen)), tuple(line(method) for method in methods), caption)


def plain(head: Sequence[str], lines: Sequence[Sequence[str]], caption: str = "") -> Table:
    """A table of words: the first of each line is its label."""
    return Table(tuple(head), tuple(Line(first, tuple(map(Cell, rest))) for first, *rest in lines), caption)


def markdown(content: Table) -> str:
    """The table for a page of the docs."""
    head = [_escape(label) for label in content.head]
    rule = ["---", *("---:" for _ in head[1:])]
    body = [[_label(line), *(_markdown_cell(cell) for cell in line.cells)] for line in content.lines]
    return "\n".join("| " + " | ".join(parts) + " |" for parts in (head, rule, *body)) + "\n"


def save_csv(results: Results, path: str | Path) -> None:
    """One line for each row, the settings as columns of their own, atomically."""
    keys = list(dict.fromkeys(f"setting.{key}" for row in results.rows for key in row.setting))
    names = [
        "study",
        "preset",
        "method",
        *keys,
        "metric",
        "unit",
        "mean",
        "low",
        "high",
        "n",
        "seeds",
        "values",
        "peer",
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in results.rows:
        mean, low, high = row.interval
        settings = {f"setting.{key}": value for key, value in row.setting.items()}
        lists = {"seeds": " ".join(map(str, row.seeds)), "values": " ".join(map(str, row.values))}
        numbers = {"mean": mean, "low": low, "high": high, "n": row.n}
        words = {"method": row.method, "metric": row.metric, "unit": row.unit, "peer": row.peer}
        writer.writerow({"study": results.study, "preset": results.preset, **words, **settings, **numbers, **lists})
    write_text(Path(path), text.getvalue())


def _columns(rows: Sequence[Row], better: Mapping[str, str]) -> list[Column]:
    """One for each metric and setting; labels tell apart only what differs."""
    distinct = {(row.metric, tuple(sorted(row.setting.items()))): row for row in rows}
    several = len({row.metric for row in rows}) > 1
    keys = list(dict.fromkeys(key for row in rows for key in row.setting))
    varying = [key for key in keys if len({row.setting.get(key) for row in rows}) > 1]

    def label(row: Row) -> str:
        name = row.metric + (f" ({row.unit})" if row.unit else "")
        parts = [f"{key} {row.setting[key]}" for key in varying if key in row.setting]
        return ", ".join([name, *parts] if several or not parts else parts)

    @cache
    def digits(metric: str) -> int:
        """Three significant digits of the largest mean."""
        largest = max((abs(row.mean) for row in rows if row.metric == metric and math.isfinite(row.mean)), default=0)
        return min(max(2 - math.floor(math.log10(largest)), 0), 6) if largest else 3

    return [
        Column(label(row), row.metric, row.setting, digits(row.metric), better.get(row.metric, ""))
        for row in distinct.values()
    ]


def _find(rows: Sequence[Row], method: str, column: Column) -> Row | None:
    wanted = column.setting.items()
    matches = [row for row in rows if row.method == method and row.metric == column.metric]
    matches = [row for row in matches if wanted <= row.setting.items()]
    matches = [row for row in matches if row.setting == column.setting] or matches
    if len(matches) > 1:
        raise InputError(
            f"one result of {method} for column '{column.label}'",
            " and ".join(str(row.setting) for row in matches),
            "name more of the setting in the column",
        )
    return matches[0] if matches else None


def _best(found: Sequence[tuple[Row | None, str]], column: Column) -> str:
    """The method with the best mean; '' when there is nothing to win or nobody to beat."""
    means = [(row.mean, method) for row, method in found if row is not None and math.isfinite(row.mean)]
    if not column.better or len(means) < 2:
        return ""
    return (max if column.better == "higher" else min)(means)[1]


def _cell(row: Row | None, column: Column, best: bool) -> Cell:
    if row is None:
        return Cell(NOT_RUN)
    mean, low, high = row.interval
    if not math.isfinite(mean):
        return Cell(NOT_FINITE)
    half = (high - low) / 2 if math.isfinite(low) else 0.0
    size = max(abs(mean), half)
    least = 1 - math.floor(math.log10(size)) if size else 0  # what is small keeps two digits
    digits = max(column.digits, least if least < 9 else 0)
    return Cell(f"{mean:.{digits}f}", f"{half:.{digits}f}" if math.isfinite(low) else "", best)


def _markdown_cell(cell: Cell) -> str:
    text = _escape(cell.text + (f" ± {cell.margin}" if cell.margin else ""))
    return f"**{text}**" if cell.best else text


def _label(line: Line) -> str:
    return _escape(line.label) + (f" ({line.kind})" if line.kind != "method" else "")


def _escape(text: str) -> str:
    """Text that a Markdown table shows as it is."""
    for character in "\\|*_`<[":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
