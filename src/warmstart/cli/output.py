"""What a verb says: results and JSON on standard output, progress on standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from warmstart.engine.loop import Report
    from warmstart.report.tables import Table

WIDE = 160  # columns of a table that goes into a file or a pipe


@dataclass(frozen=True)
class Voice:
    """One JSON document and nothing else on standard output, or tables and remarks."""

    json: bool
    quiet: bool

    def say(self, words: str = "") -> None:
        """A remark."""
        if not self.quiet:
            self.show(words)

    def show(self, content: Table | str) -> None:
        """A result."""
        if self.json:
            return
        if isinstance(content, str):
            typer.echo(content)
            return
        from rich.console import Console

        from warmstart.report.console import print_table

        print_table(content, Console(width=None if sys.stdout.isatty() else WIDE))

    def document(self, content: Any) -> None:
        if self.json:
            typer.echo(json.dumps(_plain(content), indent=1, allow_nan=False))

    @contextmanager
    def bars(self) -> Iterator[Callable[[str], Report]]:
        """label -> what a training loop reports to; one bar at a time."""
        from warmstart.report.console import progress

        silent = self.quiet or not sys.stderr.isatty()
        with ExitStack() as shown:

            def bar(label: str) -> Report:
                shown.close()
                return shown.enter_context(progress(label, quiet=silent))

            yield bar


def _plain(content: Any) -> Any:
    """Numbers that JSON does not have become null."""
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if hasattr(content, "item"):  # a numpy scalar
        content = content.item()
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
