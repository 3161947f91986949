"""The folder of a study, a benchmark or an evaluation: results.json, table.csv, report.html, all new or all old.

A study may write more beside them, such as the classes it judged on.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warmstart.cli.output import Voice
    from warmstart.report import Results
    from warmstart.report.page import Outcome

RESULTS, TABLE, PAGE = "results.json", "table.csv", "report.html"


def tell(voice: Voice, outcome: Outcome, title: str, output: Path | None, merged: bool = False) -> dict[str, Any]:
    """Print the tables, write the files when there is a folder for them, and give the JSON document."""
    with tempfile.TemporaryDirectory() if output is None else nullcontext(output) as folder:
        document = write_report(Path(folder), outcome, title, merged)
    for section in outcome.sections:
        if section.table is not None:
            voice.show(section.table)
    if outcome.verdict:
        voice.show(outcome.verdict)
    voice.say("-o DIR writes the page" if output is None else f"Page: {output / PAGE}")
    return {**document, "verdict": outcome.verdict}


def write_report(folder: Path, outcome: Outcome, title: str, merged: bool) -> dict[str, Any]:
    """Write the files and give the content of the first; `merged` adds to the results that are there."""
    from warmstart.core import InputError
    from warmstart.engine.files import write_json
    from warmstart.report import load, merge, save, save_csv
    from warmstart.report.page import how_it_was_run, write_page

    results, sections = outcome.results, list(outcome.sections)
    if merged and (folder / RESULTS).exists():
        results = merge(load(folder / RESULTS), results)
        results = merge(results, replace(results, rows=tuple(outcome.follow(results.rows))))
        sections += _earlier(results, len(outcome.results.rows))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".new.") as beside:
            save(results, Path(beside, RESULTS))
            save_csv(results, Path(beside, TABLE))
            write_page(Path(beside, PAGE), sections, title, how_it_was_run(results), outcome.verdict)
            for name, content in outcome.beside.items():
                write_json(Path(beside, name), content)
            for name in (RESULTS, TABLE, PAGE, *outcome.beside):
                Path(beside, name).replace(folder / name)
        document: dict[str, Any] = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"to write the folder {folder}", reason, "free space or choose another folder") from None
    return document


def _earlier(results: Results, new: int) -> list[Any]:
    from warmstart.report import table
    from warmstart.report.page import Section

    return [Section("With the rows of earlier runs", table=table(results))] if len(results.rows) > new else []


def check_writable(folder: Path | None, mark: str = RESULTS) -> None:
    """Said before the work rather than after it. Work that fails leaves no empty folder.

    A folder that holds files holds those of an earlier run, which `mark` is one of: others might be written over.
    """
    from warmstart.core import InputError
    from warmstart.report import load

    if folder is None:
        return
    try:
        there = sorted(file.name for file in folder.iterdir() if file.is_file()) if folder.is_dir() else []
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        for place in missing:
            place.rmdir()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"to write the folder {folder}", reason, "choose another folder") from None
    if there and mark not in there:
        raise InputError(f"a new folder or one of an earlier run at {folder}", there[0], "choose another folder")
    if there and mark == RESULTS:
        load(folder / RESULTS)
