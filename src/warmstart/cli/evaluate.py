"""warmstart evaluate: a model on the held-out tasks of its table, against what one would have used instead."""

from __future__ import annotations

from typing import Annotated

import typer

from warmstart.cli.options import Device, Folder, ItemTable, Json, Model, Quiet, Seed, Table, TaskTable
from warmstart.cli.output import Voice
from warmstart.cli.writing import check_writable, tell


def evaluate(
    model: Model,
    table: Table,
    task_table: TaskTable = None,
    item_table: ItemTable = None,
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="Configurations tried of each baseline.")] = 4,
    output: Folder = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge MODEL on the tasks of TABLE, the table given to fit, that it has not seen, beside tuned baselines.

    Which tasks these are was fixed by the seed of the fit.
    """
    from warmstart.engine.device import choose_device
    from warmstart.estimators.evaluation import evaluate as judge
    from warmstart.estimators.meta_learner import MetaLearner

    voice = Voice(json, quiet)
    choose_device(device)
    check_writable(output)
    with voice.bars() as bar:
        outcome = judge(MetaLearner.load(model), table, task_table, item_table, trials=trials, progress=bar)
    voice.document(tell(voice, outcome, f"{model.name} on unseen tasks of {table.name}", output))
