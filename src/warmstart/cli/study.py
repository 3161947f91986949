"""warmstart study: one table or figure of a paper, with the baselines a sceptic would ask for."""

from __future__ import annotations

import enum
import inspect
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from warmstart.cli.modules import pick, runnable, summaries
from warmstart.cli.options import Device, Folder, Json, Quiet, Seed
from warmstart.cli.output import Voice
from warmstart.cli.writing import check_writable, tell


class Preset(enum.StrEnum):
    quick = "quick"
    full = "full"


def study(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="See --list.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the studies.")] = False,
    preset: Annotated[Preset, typer.Option(help="quick ends in about a minute, full is the paper's.")] = Preset.quick,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of public datasets.", envvar="WARMSTART_DATA")
    ] = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many: 3, or 1 when quick.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="Run these methods or settings only; may be repeated.")
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Sentence embeddings beside TF-IDF (select_weak): a folder of sentence-transformers."
        ),
    ] = None,
    output: Folder = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run study NAME. Rows are added to those that the folder holds; the same command resumes an interrupted run."""
    import warmstart.studies

    voice = Voice(json, quiet)
    found = runnable(warmstart.studies)
    if listed:
        summaries(voice, found, "study")
        return
    count = seeds or (3 if preset is Preset.full else 1)
    chosen = pick(found, name, "study")
    carry_out(voice, chosen, preset.value, range(seed, seed + count), only or [], data, device, output, texts)


def carry_out(
    voice: Voice,
    module: ModuleType,
    preset: str,
    seeds: Sequence[int],
    only: Sequence[str],
    data: Path | None,
    device: str,
    output: Path | None,
    texts: str | None = None,
) -> None:
    """Run one study, print and write what it found; what it keeps to be resumed goes when it has ended."""
    from warmstart.core import InputError

    name, more = module.__name__.rpartition(".")[2], {} if texts is None else {"texts": texts}
    if not set(more) <= set(inspect.signature(module.run).parameters):
        raise InputError("a study of texts for --texts, such as select_weak", name, "leave --texts out")
    check_writable(output)
    unfinished = None if output is None else output / "unfinished"
    with voice.bars() as bar:
        outcome = module.run(preset, seeds, only, data, device, bar, unfinished and unfinished / preset, **more)
    voice.document(tell(voice, outcome, f"Study {name}, {preset}", output, merged=True))
    if unfinished is not None:
        shutil.rmtree(unfinished, ignore_errors=True)
