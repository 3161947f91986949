"""warmstart select: which sources help a target task, which hurt, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warmstart.cli.options import Device, Json, Quiet, Seed, Table, names
from warmstart.cli.output import Voice
from warmstart.cli.writing import check_writable, tell

MODEL = "model"  # its folder in that of the page


def select(
    table: Table,
    task: Annotated[str, typer.Option(metavar="COL", help="Which task (state, customer) a row is of.")],
    target: Annotated[str, typer.Option(metavar="COL", help="What is to be predicted.")],
    target_task: Annotated[str, typer.Option(metavar="NAME", help="The task that is to be served.")],
    sources: Annotated[str | None, typer.Option(metavar="NAME,...", help="Its sources; else all other tasks.")] = None,
    metric: Annotated[
        str, typer.Option(help="cross-entropy, margin, zero-one, worst-group, demographic-parity or equal-opportunity.")
    ] = "cross-entropy",
    group: Annotated[str | None, typer.Option(metavar="COL", help="Group of a row.")] = None,
    between: Annotated[
        str | None, typer.Option(metavar="A,B", help="The two groups of a gap; else the two largest.")
    ] = None,
    smallest: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of a group that is judged.")] = 200,
    numeric: Annotated[str | None, typer.Option(metavar="COL,...", help="Columns that hold numbers.")] = None,
    categorical: Annotated[str | None, typer.Option(metavar="COL,...", help="Columns that hold one value.")] = None,
    multi: Annotated[str | None, typer.Option(metavar="COL,...", help="Columns that hold several values.")] = None,
    drop: Annotated[str | None, typer.Option(metavar="COL,...", help="Columns to leave out.")] = None,
    size: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Sources in a subset: 5, or half of fewer than ten.")
    ] = None,
    subsets: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Subsets that are trained: 200, or as many as there are.")
    ] = None,
    linear: Annotated[bool, typer.Option("--linear", help="Estimate the subsets from a few models instead.")] = False,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps of a subset's training.")] = 300,
    final_steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps of a final training.")] = 1500,
    trials: Annotated[int, typer.Option(metavar="N", min=1, help="Settings tried of each method.")] = 5,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Compare this one with using no or all sources; again for more, or `all`; else the usual ten.",
        ),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep finished trainings, to resume what was interrupted.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Of the trainings: here, processes or ray.")] = "here",
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes, or CPUs of Ray.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for the page, its tables, and DIR/model."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn from TABLE, the rows of many tasks, which of the others help NAME, and what it gains from them.

    Ends with the model that validation rows prefer among all methods, with and without sources; the metric decides
    both which sources help and which model is kept. `warmstart adapt DIR/model --query TABLE` predicts with it.
    """
    from dataclasses import replace

    from warmstart.core import InputError, check_names
    from warmstart.engine.device import choose_device
    from warmstart.estimators.folder import check_target
    from warmstart.estimators.selected_model import KIND, SelectedModel
    from warmstart.estimators.source_methods import METHODS, Plan
    from warmstart.estimators.source_selection import describe, how_sure, report_on, select_sources
    from warmstart.selection import final, task_model
    from warmstart.selection.collect import in_jobs
    from warmstart.selection.measures import GAPS, GROUPED, named, pair_of
    from warmstart.selection.subsets import how_many
    from warmstart.tasks.roles import Roles
    from warmstart.tasks.transfer import read_transfer

    voice = Voice(json, quiet)
    check_writable(output)
    if output is not None:
        check_target(output / MODEL, KIND)
    named(metric)
    compared = list(METHODS) if "all" in (method or ()) else method or []
    check_names(compared, [*METHODS, "all"])
    if metric in GROUPED and group is None:
        raise InputError(f"a column of groups for {metric}", "none", "name one with --group")
    roles = Roles(task, target, names(numeric), names(categorical), names(multi), group=group, drop=names(drop) or ())
    wanted = names(sources)
    transfer = read_transfer(table, roles, target_task, sources=wanted, seed=seed).to(choose_device(device))
    if metric in GAPS and transfer.kind != "binary":
        raise InputError(f"a target of two classes for {metric}", transfer.kind, "take another metric")
    pair = pair_of(transfer, names(between)) if metric in GAPS else (0, 1)
    measure = named(metric, pair, smallest, transfer.groups)
    groups = sorted(set(transfer.validation.group.tolist()))
    if metric in GROUPED and len(groups) < 2:
        got = f"'{transfer.groups[groups[0]]}' alone"
        raise InputError(f"two groups or more among the rows of {target_task}", got, "name another column with --group")
    size, subsets, held_out = how_many(transfer.sources, size, subsets)
    cfg = task_model.Config(
        size=size,
        subsets=subsets,
        held_out=held_out,
        linear=linear,
        training=replace(task_model.Config().training, steps=steps),
    )
    if subsets < transfer.sources:
        voice.say(f"{subsets} subsets are fewer than the {transfer.sources} sources: effects will be shrunk (ridge).")
    plan = Plan(final.Config(replace(final.Config().training, steps=final_steps)), cfg, trials)
    with voice.bars() as bar:
        told = bar(f"{subsets} subsets")
        evaluate = in_jobs(
            transfer, cfg, metric, pair, smallest, store=store, engine=engine, workers=workers, progress=told
        )
        chosen = select_sources(transfer, measure, plan, seed, compared, evaluate, bar)
    if metric in GAPS and transfer.schema is not None:
        positive, (first, second) = transfer.schema.target.classes[1], (transfer.groups[g] for g in pair)
        voice.say(f"The gap is that between {first} and {second} in '{positive}'; a model is judged by gap and error.")
    voice.say(how_sure(chosen.estimate))
    label = f"{metric} gap + error" if metric in GAPS else metric
    outcome = report_on(chosen, measure, label, seed, str(transfer.pool.y.device))
    title = f"Sources of {target_task} in {table.name}"
    document = tell(voice, outcome, title, output) | {"selection": describe(chosen)}
    if output is not None:
        SelectedModel.of(chosen, label).save(output / MODEL, outcome.verdict)
        document["model"] = str(output / MODEL)
        voice.say(f"Model: {output / MODEL}")
    voice.document(document)
