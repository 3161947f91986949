"""The same tables on a terminal, and the progress bar that a command hands to the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from warmstart.engine.loop import Report
from warmstart.report.tables import NOT_FINITE, NOT_RUN, Cell, Line, Table


def rich_table(content: Table) -> RichTable:
    """Text is wrapped in `Text`, so that a column named "[red]" is shown, not obeyed."""
    drawn = RichTable(title=Text(content.caption) if content.caption else None, title_justify="left")
    for i, label in enumerate(content.head):
        drawn.add_column(Text(label), justify="right" if i else "left")
    for line in content.lines:
        drawn.add_row(_label(line), *(_cell(cell) for cell in line.cells))
    return drawn


def print_table(content: Table, console: Console | None = None) -> None:
    (console or Console()).print(rich_table(content))


@contextmanager
def progress(label: str, console: Console | None = None, quiet: bool = False) -> Iterator[Report]:
    """A bar for as long as the block runs: hand what it yields to the training loop.

    It draws on standard error, which leaves standard output to results.
    """
    columns = (
        TextColumn("{task.fields[label]}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=console or Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("", total=None, label=label, words="")

        def report(done: int, total: int, words: str = "") -> None:
            bar.update(task, completed=done, total=total, words=words)

        yield report


def _label(line: Line) -> Text:
    text = Text(line.label, style="bold" if line.best else "")
    return text if line.kind == "method" else text.append(f" ({line.kind})", style="dim")


def _cell(cell: Cell) -> Text:
    if cell.text in (NOT_RUN, NOT_FINITE):
        return Text(cell.text, style="dim")
    text = Text(cell.text, style="bold" if cell.best else "")
    return text.append(f" ±{cell.margin}", style="dim not bold") if cell.margin else text
