"""warmstart evaluate: a model on its held-out tasks or classes, against what one would have used instead."""

from __future__ import annotations

from typing import Annotated

import typer

from warmstart.cli.options import Broken, Device, Folder, ItemTable, Json, Model, Quiet, Seed, Table, TaskTable
from warmstart.cli.output import Voice
from warmstart.cli.pictures import evaluate_pictures, refuse_options, set_here
from warmstart.cli.preferences import evaluate_preferences
from warmstart.cli.writing import check_writable, tell


def evaluate(
    context: typer.Context,
    model: Model,
    table: Table,
    task_table: TaskTable = None,
    item_table: ItemTable = None,
    trials: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Configurations tried of each baseline; 1 of pictures and preferences."),
    ] = 4,
    broken: Broken = "refuse",
    output: Folder = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge MODEL on the tasks of TABLE, the table given to fit, that it has not seen, beside tuned baselines.

    Which tasks these are was fixed by the seed of the fit. A model of preferences takes the tables given to fit and is
    judged on users that it has not seen. A model of pictures takes the folder given to fit and is
    judged on classes that it has not seen.
    """
    from warmstart.estimators.evaluation import evaluate as judge
    from warmstart.estimators.folder import read_kind
    from warmstart.estimators.meta_learner import MetaLearner

    voice = Voice(json, quiet)
    check_writable(output)
    kind, tried = read_kind(model), trials if set_here(context, ("trials",)) else 1
    if kind == "preferences":
        refuse_options(context, ("broken",), "a model of preferences")
        evaluate_preferences(voice, model, table, task_table, item_table, output, tried)
        return
    if kind == "pictures":
        refuse_options(context, ("task_table", "item_table"), "a model of pictures")
        evaluate_pictures(voice, model, table, output, tried, broken, device)
        return
    refuse_options(context, ("broken",), "a model of a table")
    learner = MetaLearner.load(model)
    learner.device = device
    with voice.bars() as bar:
        outcome = judge(learner, table, task_table, item_table, trials=trials, progress=bar)
    voice.document(tell(voice, outcome, f"{model.name} on unseen tasks of {table.name}", output))
