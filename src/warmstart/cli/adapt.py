"""warmstart adapt: predictions for new tasks from their first few rows, or for new classes from a few pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmstart.cli.options import (
    Broken,
    Descriptor,
    DescriptorTable,
    Device,
    ItemTable,
    Json,
    Model,
    Quiet,
    Seed,
    Support,
    pairs,
)
from warmstart.cli.output import Voice
from warmstart.cli.pictures import adapt_to_pictures, refuse_options
from warmstart.cli.preferences import adapt_to_users

if TYPE_CHECKING:
    import pandas as pd

    from warmstart.report import Table

MOST = 40  # rows printed; a file holds all
OF_TABLES = ("descriptor", "descriptor_table", "item_table", "first", "level", "save")


def adapt(
    context: typer.Context,
    model: Model,
    query: Annotated[Path, typer.Option(metavar="TABLE", help="Rows to predict; of pictures, a folder of them.")],
    support: Support = None,
    descriptor: Descriptor = None,
    descriptor_table: DescriptorTable = None,
    item_table: ItemTable = None,
    first: Annotated[int | None, typer.Option("-k", metavar="N", min=0, help="A task's first N support rows.")] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.9,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Predictions: .csv, .tsv or .parquet; of pictures, a folder."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(metavar="ADAPTED", help="Folder for the adapted model.")] = None,
    broken: Broken = "refuse",
    seed: Seed = 0,
    device: Device = "cpu",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Adapt MODEL to the support rows and predict the query rows, with intervals or class probabilities.

    A model of pictures takes folders: the support has a sub-folder for each class; what is said is printed and
    written with a contact sheet.

    A model of preferences takes events of users and asks about users and items; see also `warmstart recommend`.

    A model that `warmstart select` chose is trained already, and takes query rows alone.

    With the task column in both tables each task is adapted to its own rows. Without support a model is
    zero-shot. A few rows are small work, and so done on the CPU unless --device says otherwise.
    """
    from warmstart.estimators.folder import read_kind
    from warmstart.estimators.meta_learner import MetaLearner
    from warmstart.estimators.predictions import adapt_tasks, only, predict_tasks, strange_values
    from warmstart.estimators.selected_model import SelectedModel

    voice = Voice(json, quiet)
    kind = read_kind(model)
    if kind == "preferences":
        refuse_options(context, ("broken", "item_table", "first", "save"), "a model of preferences")
        _refuse_folders({"--support": support, "--query": query})
        known = pairs(descriptor, "--descriptor", ",")
        told = adapt_to_users(model, support, query, known, descriptor_table, level)
        _tell(voice, model, level, *told, output)
        return
    if kind == "pictures":
        refuse_options(context, OF_TABLES, "a model of pictures")
        adapt_to_pictures(voice, model, support, query, output, broken, device)
        return
    if kind == "selected":
        refuse_options(context, ("broken", "support", *OF_TABLES), "a model of chosen sources")
        _refuse_folders({"--query": query})
        chosen = SelectedModel.load(model)
        _tell(voice, model, level, chosen.frame(query), {}, chosen.schema.strange(query, "query"), output)
        return
    refuse_options(context, ("broken",), "a model of a table")
    _refuse_folders({"--support": support, "--query": query})
    known = pairs(descriptor, "--descriptor", ",")
    adapted = adapt_tasks(MetaLearner.load(model), support, query, known, descriptor_table, item_table, first, device)
    said = predict_tasks(adapted, query, level, item_table)
    notes = strange_values(adapted, support, query, known, descriptor_table, item_table)
    if save is not None:
        only(adapted).save(save)
    shown = {name or "the task": one.shown for name, one in adapted.items()}
    _tell(voice, model, level, said, shown, notes, output)
    if save is not None:
        voice.say(f"Adapted model: {save}")


def _tell(
    voice: Voice,
    model: Path,
    level: float,
    said: pd.DataFrame,
    shown: dict[str, int],
    notes: Sequence[str],
    output: Path | None,
) -> None:
    """Write and print predictions, with how much each task or user had shown."""
    from warmstart.estimators.predictions import write_table

    if output is not None:
        write_table(said, output)
    document = {"model": str(model), "level": level, "support": shown, "predictions": said.to_dict("records")}
    voice.document({**document, "notes": list(notes)} if notes else document)
    for note in notes:
        voice.say(f"Note: {note}")
    if output is None:
        voice.show(_table(said))
    if len(said) > MOST and output is None:
        voice.say(f"... and {len(said) - MOST} rows more; -o FILE.csv writes all")
    if "low" in said and not said["high"].lt(float("inf")).all():
        voice.say(f"The model has too few validation tasks for intervals of level {level}; lower --level")
    if output is not None:
        voice.say(f"Predictions: {output}")


def _refuse_folders(paths: dict[str, Path | None]) -> None:
    from warmstart.core import InputError

    for flag, path in paths.items():
        if path is not None and path.is_dir():
            got = f"the folder {path}"
            raise InputError(f"a table for {flag}, since the model is of a table", got, "pass a file, or another model")


def _table(said: pd.DataFrame) -> Table:
    from warmstart.report import plain

    cells = said.head(MOST).map(lambda cell: f"{cell:.4g}" if isinstance(cell, float) else str(cell))
    return plain(["row", *said.columns], [[str(row + 1), *cells.loc[row]] for row in cells.index])
