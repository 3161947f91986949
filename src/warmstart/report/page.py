"""One self-contained HTML page: a verdict, sections of prose, tables and figures, and how it was run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from warmstart.engine.files import write_text
from warmstart.report.results import Results
from warmstart.report.rows import Row
from warmstart.report.tables import NOT_FINITE, NOT_RUN, Table


class Section(NamedTuple):
    """A part of the page; what is empty is left out. A blank line in `prose` starts a paragraph."""

    heading: str = ""
    prose: str = ""
    table: Table | None = None
    svg: str = ""  # from `report.figures`, put into the page as it is
    caption: str = ""  # of the figure; a table carries its own


class Outcome(NamedTuple):
    """What a study or an evaluation ends in."""

    results: Results
    sections: list[Section]
    verdict: str  # one sentence
    follow: Callable[[Sequence[Row]], list[Row]] = lambda rows: []  # rows that follow from others, of any run
    beside: Mapping[str, Any] = MappingProxyType({})  # JSON files that are written with the results, by name


def write_page(
    path: str | Path, sections: Sequence[Section], title: str, how_it_was_run: Mapping[str, str], verdict: str = ""
) -> None:
    """Write the page atomically."""
    write_text(Path(path), render_page(sections, title, how_it_was_run, verdict))


def render_page(sections: Sequence[Section], title: str, how_it_was_run: Mapping[str, str], verdict: str = "") -> str:
    """The page as text. All that is told is escaped; nothing is fetched when the page is opened."""
    environment = Environment(
        loader=PackageLoader("warmstart.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("page.html.jinja").render(
        title=title,
        verdict=verdict,
        sections=sections,
        how=how_it_was_run,
        empty=(NOT_RUN, NOT_FINITE),
        paragraphs=_paragraphs,
        notes=_notes,
    )
    # a file name in the command may hold bytes that are not text
    return text.encode(errors="backslashreplace").decode()


def how_it_was_run(results: Results, durations: Mapping[str, float] | None = None) -> dict[str, str]:
    """What the page's last section says of these results; `durations` in seconds."""
    seeds = sorted({seed for row in results.rows for seed in row.seeds})
    told = {
        "Command": results.command,
        "Preset": results.preset,
        "Seeds": ", ".join(map(str, seeds)),
        "Device": results.device,
        "Versions": ", ".join(
            f"{name} {' and '.join(version.splitlines())}" for name, version in results.versions.items()
        ),
        "Date": results.date,
        "Durations": ", ".join(f"{name} {_span(seconds)}" for name, seconds in (durations or {}).items()),
    }
    return {key: value for key, value in told.items() if value}


def _span(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _paragraphs(prose: str) -> list[str]:
    return [part.strip() for part in prose.split("\n\n") if part.strip()]


def _notes(content: Table) -> list[str]:
    """How to read the marks that this table has."""
    cells = [cell for line in content.lines for cell in line.cells]
    kinds = {line.kind for line in content.lines}
    told = {
        "± is half the width of a 95 % interval.": any(cell.margin for cell in cells),
        "Bold: best mean in its column.": any(cell.best for cell in cells),
        "Reference: uses what no method can know.": "reference" in kinds,
    }
    return [note for note, needed in told.items() if needed]
