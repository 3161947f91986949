"""warmstart fit: learn from many tasks, users or classes of pictures how to learn a new one."""

from __future__ import annotations

import dataclasses
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from warmstart.cli.options import Broken, Device, ItemTable, Json, Quiet, Seed, TaskTable, names, pairs
from warmstart.cli.output import Voice
from warmstart.cli.pictures import fit_pictures, picture_learner, refuse_options, set_here
from warmstart.cli.preferences import Asked, fit_preferences, is_preferences
from warmstart.cli.trials import table_of_trials, trials_document

if TYPE_CHECKING:
    from warmstart.estimators.meta_learner import MetaLearner
    from warmstart.tasks.roles import Roles


COLUMNS = ("task", "target", "item", "time", "weight", "group", "numeric", "categorical", "multi", "drop", "first")
OF_TABLES = (
    *COLUMNS,
    "context_columns",
    "task_table",
    "item_table",
    "kind",
    "support",
    "start",
    "preferences",
    "scale",
)
OF_ROWS = ("weight", "group", "first", "support", "start", "tensorboard")
OF_STEPS = ("steps", "every", "tasks", "query")
OF_PICTURES = ("way", "shot", "size", "rotations", "warp", "broken")
OF_BOTH = ("steps", "every", "tasks", "query", "trials")  # with other defaults


def fit(
    context: typer.Context,
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Rows: .csv, .tsv or .parquet. With --images, a folder.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="Folder of the model.")],
    task: Annotated[str | None, typer.Option(metavar="COL", help="Which task (user, device) a row is of.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COL", help="What is to be predicted.")] = None,
    task_table: TaskTable = None,
    item_table: ItemTable = None,
    item: Annotated[
        str | None, typer.Option(metavar="COL", help="Key of the item table; of preferences, what is rated.")
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="COL", help="Rows are sorted by it, and the first shown.")] = None,
    first: Annotated[bool, typer.Option("--first", help="Tasks show their first rows instead of random ones.")] = False,
    weight: Annotated[str | None, typer.Option(metavar="COL", help="Weight of a row in the loss.")] = None,
    group: Annotated[str | None, typer.Option(metavar="COL", help="Group of a task, for reports.")] = None,
    numeric: Annotated[str | None, typer.Option(metavar="COL,...", help="Columns that hold numbers.")] = None,
    categorical: Annotated[str | None, typer.Option(metavar="COL,...", help="Columns that hold one value.")] = None,
    multi: Annotated[str | None, typer.Option(metavar="COL,...", help="Columns that hold several values.")] = None,
    drop: Annotated[str | None, typer.Option(metavar="COL,...", help="Columns to leave out.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="Of target: squared (ratings), binary (clicks) or multiclass; else inferred."),
    ] = None,
    preferences: Annotated[
        bool, typer.Option("--preferences", help="Rows are ratings or clicks: who gave which item what.")
    ] = False,
    context_columns: Annotated[
        str | None,
        typer.Option("--context", metavar="COL,...", help="Of clicks: columns that are known before the answer."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(metavar="LOW,HIGH", help="Of preferences: the scale; else that of the table.")
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="Learn from pictures: TABLE is a folder with a sub-folder for each class.")
    ] = False,
    way: Annotated[int, typer.Option(metavar="N", min=2, help="Of pictures: classes in a task.")] = 5,
    shot: Annotated[int, typer.Option(metavar="N", min=1, help="Of pictures: shown of each class.")] = 1,
    size: Annotated[
        int | None, typer.Option(metavar="N", min=8, max=1024, help="Of pictures: side; else as they are, 84 at most.")
    ] = None,
    rotations: Annotated[
        bool,
        typer.Option("--rotations", help="Of pictures: classes turned by 90 degrees are further ones to train on."),
    ] = False,
    warp: Annotated[
        bool,
        typer.Option("--warp/--no-warp", help="Of pictures: warp those to train on a little, anew at every draw."),
    ] = True,
    broken: Broken = "refuse",
    method: Annotated[str, typer.Option(metavar="ID", help="auto tunes and compares a few.")] = "auto",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method; may be repeated.")
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Meta-updates; 1000 of pictures.")] = 2000,
    every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Updates between looks at validation tasks, and checkpoints.")
    ] = 100,
    tasks: Annotated[int, typer.Option(metavar="N", min=1, help="Tasks in a meta-batch; 8 of pictures.")] = 32,
    support: Annotated[int, typer.Option(metavar="N", min=1, help="Rows shown of a task, at most.")] = 20,
    query: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rows judged of a task, at most; 5 pictures of a class.")
    ] = 10,
    trials: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Configurations tried of each method; 1 of pictures and preferences."),
    ] = 4,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="MODEL", help="Go on from this model: its columns and method.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR", help="Write figures for TensorBoard.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn from TABLE, the rows of many tasks, and write a model. The same command resumes what was interrupted.

    With --preferences, or a method for them (preference_bayes, click_bayes), TABLE holds ratings or clicks: the model
    recommends items to new users, see `warmstart recommend`. With --images, learn from a folder of pictures by class:
    the model tells new classes apart from a few pictures.
    """
    from warmstart.engine.ranks import join_ranks, wait_for_ranks
    from warmstart.estimators.folder import run_folder
    from warmstart.estimators.meta_learner import KIND, MetaLearner
    from warmstart.estimators.tensorboard import recorder
    from warmstart.training.train import Plan

    voice = Voice(json, quiet)
    if images:
        refuse_options(context, OF_TABLES, "pictures")
        chosen = {name: context.params[name] for name in set_here(context, OF_BOTH)}
        learned = pairs(settings, "--set")
        asked = picture_learner(chosen, way, shot, method, learned, size, rotations, warp, broken, seed, device)
        fit_pictures(voice, table, output, asked, tensorboard)
        return
    _refuse_pictures(context, table)
    if preferences or is_preferences(method, item is not None or item_table is not None):
        refuse_options(context, (*OF_ROWS, *OF_STEPS), "preferences")
        kinds = {"numeric": names(numeric), "categorical": names(categorical), "multi": names(multi)}
        around = {"context": names(context_columns) or (), "drop": names(drop) or ()}
        rated = _roles(task, target, {"item": item, "time": time, **around, **kinds})
        tried = trials if set_here(context, ("trials",)) else 1
        learned = pairs(settings, "--set")
        given = Asked(table, rated, task_table, item_table, scale, kind, method, learned, tried, seed, device)
        fit_preferences(voice, given, output)
        return
    refuse_options(context, ("scale", "context_columns"), "rows", "leave them out, or add --preferences")
    begun = None if start is None else MetaLearner.load(start)
    columns: dict[str, Any] = {"item": item, "time": time, "weight": weight, "group": group, "first": first}
    columns |= {"numeric": names(numeric), "categorical": names(categorical), "multi": names(multi)}
    told = task is not None or target is not None
    roles = _roles(task, target, columns | {"drop": names(drop) or ()}) if told or begun is None else None
    plan = Plan(steps=steps, tasks=tasks, support=support, query=query, every=every)
    learner = MetaLearner(method, pairs(settings, "--set"), plan, trials, seed=seed, device=device)
    figures = nullcontext(None) if tensorboard is None else recorder(tensorboard)
    with run_folder(output, KIND) as folder, figures as record, voice.bars() as bar:
        learner.fit(
            table,
            roles,
            task_table,
            item_table,
            start=begun,
            kind=kind,
            folder=folder,
            progress=bar,
            record=record,
        )
        if join_ranks()[0] == 0:  # under torchrun all ranks hold the same model
            learner.save(output)
        wait_for_ranks()
    if item is not None or item_table is not None:
        voice.say("Note: rows are taken as they are; with --preferences they are ratings of items, to recommend from")
    _tell(voice, learner, output, table, {"--task-table": task_table, "--item-table": item_table})


def _refuse_pictures(context: typer.Context, table: Path) -> None:
    from warmstart.core import InputError

    if table.is_dir():
        raise InputError("a table", f"the folder {table}", "add --images to learn from pictures, or pass a file")
    refuse_options(context, OF_PICTURES, "tables", "leave them out, or add --images")


def _roles(task: str | None, target: str | None, columns: dict[str, Any]) -> Roles:
    from warmstart.core import InputError
    from warmstart.tasks.roles import Roles

    if task is None or target is None:
        raise InputError("--task and --target", "one of them or none", "name the two columns")
    return Roles(task, target, **columns)


def _tell(voice: Voice, learner: MetaLearner, output: Path, table: Path, sides: dict[str, Path | None]) -> None:
    from warmstart.estimators.methods import find

    trained = learner.fitted
    assert trained.schema is not None and trained.schema.split is not None
    split = {part: len(names) for part, names in trained.schema.split._asdict().items()}
    document = {
        "model": str(output),
        "method": trained.name,
        "settings": dataclasses.asdict(trained.config),
        "error": trained.value,
        "tasks": split,
        "trials": trials_document(learner.trials_),
    }
    voice.document(document)
    if voice.quiet:
        return
    if sum(map(len, learner.trials_.values())) > 1:
        voice.show(table_of_trials(learner.trials_, {name: find(name).space for name in learner.trials_}))
    unit = "in variances of the target" if trained.likelihood.name == "squared" else "log loss"
    given = [part for flag, path in sides.items() if path is not None for part in (flag, str(path))]
    known = " --descriptor-table TASKS.csv" if trained.schema.descriptor.names else ""
    items = " --item-table ITEMS.csv" if trained.schema.item_columns else ""
    judge = shlex.join(["warmstart", "evaluate", str(output), str(table), *given, "-o", f"{output}-report"])
    voice.show(
        f"Method:           {trained.name}\n"
        f"Validation error: {trained.value:.4g} ({unit}, mean over support sizes)\n"
        f"Tasks:            {', '.join(f'{count} {part}' for part, count in split.items())}\n"
        f"Model:            {output}\n\n"
        f"Next:\n"
        f"  {judge}\n"
        f"  warmstart adapt {shlex.quote(str(output))} --support SUPPORT.csv --query QUERY.csv{known}{items}"
    )
