"""warmstart data: what there is to try, and what is wrong with a table."""

from __future__ import annotations

import enum
import shlex
from pathlib import Path
from typing import Annotated

import typer

from warmstart.cli.options import Device, Json, Quiet, Seed
from warmstart.cli.output import Voice
from warmstart.cli.writing import check_writable

app = typer.Typer(help="Embedded datasets, and checks of a table of yours.")

ABOUT = {
    "population": "simulated tasks of six unequal groups, with descriptors and known optimum",
    "sine": "A sin(x + b), amplitude and phase drawn for each task",
    "films": "simulated ratings of films by users, with tables of both",
}
PUBLIC = {
    "movielens-1m": "ml-1m.zip, and ml-1m_melu_extra.zip where present: research use, no redistribution",
    "movielens-100k": "ml-100k.zip: research use, no redistribution",
    "book_crossing": "BX-CSV-Dump.zip: research use, with citation",
    "kuairand_pure": "the CSV tables of KuaiRand-Pure/data: CC BY-SA 4.0",
    "acs_income": "acs_income_2018.parquet, or the cache of folktables: public, under the terms of the census",
    "wrench": "wrench_datasets.zip or datasets/NAME: each corpus keeps its own research terms",
    "omniglot": "images_background.zip and images_evaluation.zip: MIT",
    "tiny_imagenet": "tiny_imagenet_200x100.parquet: non-commercial research and education",
}


class Name(enum.StrEnum):
    population = "population"
    sine = "sine"
    films = "films"


@app.command("list")
def show(seed: Seed = 0, device: Device = "auto", json: Json = False, quiet: Quiet = False) -> None:
    """List the embedded datasets, and the public ones that studies read from a folder you name."""
    from warmstart.report import plain

    voice = Voice(json, quiet)
    voice.document([{"name": name, "about": words} for name, words in ABOUT.items()])
    voice.show(plain(["dataset", "about"], [[name, words] for name, words in ABOUT.items()]))
    files = [[name, words] for name, words in PUBLIC.items()]
    voice.show(plain(["public dataset", "the publisher's files, and terms"], files))
    voice.say(
        "Get an embedded one with: warmstart data get population -o DIR; public ones: --data DIR or WARMSTART_DATA"
    )


@app.command()
def get(
    name: Annotated[Name, typer.Argument(help="See `warmstart data list`.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the tables.")],
    tasks: Annotated[int, typer.Option(metavar="N", min=10, help="How many.")] = 1000,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write dataset NAME as tables: rows to fit on, and support and query rows of one new task."""
    from warmstart.estimators.predictions import write_table
    from warmstart.tasks.embedded import embedded

    voice = Voice(json, quiet)
    files = {output / f"{part}.csv": frame for part, frame in embedded(name.value, tasks, seed).items()}
    check_writable(output, next(iter(files)).name)
    for path, frame in files.items():
        write_table(frame, path)
    commands = (_films if name is Name.films else _tasks)([shlex.quote(str(path)) for path in files], output)
    voice.document({"files": [str(path) for path in files], "commands": commands})
    voice.say("\n".join(["Written: " + ", ".join(map(str, files)), "", "Next:", *(f"  {line}" for line in commands)]))


def _tasks(files: list[str], output: Path) -> list[str]:
    rows, *rest, support, query = files
    about = f" --task-table {rest[0]}" if rest else ""
    known = f" --descriptor-table {rest[0]}" if rest else ""
    model = shlex.quote(str(output / "model"))
    return [
        f"warmstart fit {rows} --task task --target target{about} -o {model}",
        f"warmstart adapt {model} --support {support} --query {query}{known}",
        f"warmstart evaluate {model} {rows}{about} -o {shlex.quote(str(output / 'report'))}",
    ]


def _films(files: list[str], output: Path) -> list[str]:
    ratings, users, films, new, query = files
    about, model = f"--task-table {users} --item-table {films}", shlex.quote(str(output / "model"))
    return [
        f"warmstart fit {ratings} --preferences --task user --target rating --time time {about} -o {model}",
        f"warmstart recommend {model} --support {new} --descriptor-table {users}",
        f"warmstart adapt {model} --support {new} --query {query} --descriptor-table {users}",
        f"warmstart evaluate {model} {ratings} {about} -o {shlex.quote(str(output / 'report'))}",
    ]


@app.command()
def check(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A table, or a folder of tables.")],
    task: Annotated[str | None, typer.Option(metavar="COL", help="Also count tasks and their rows.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell the columns of a table, what they would be taken for, and what is wrong with them."""
    from warmstart.core import InputError
    from warmstart.report import plain
    from warmstart.tasks.inspection import inspect, tables_in

    voice = Voice(json, quiet)
    files = tables_in(path)
    found = [inspect(file, task, needed=len(files) == 1) for file in files]
    voice.document([one._asdict() | {"columns": [column._asdict() for column in one.columns]} for one in found])
    for one in found:
        lines = [
            [column.name, column.kind, str(column.missing), str(column.distinct), column.problem]
            for column in one.columns
        ]
        voice.show(plain(["column", "kind", "missing", "distinct", "problem"], lines, f"{one.table}: {one.rows} rows"))
        if one.longest > 1:
            voice.show(f"{one.tasks} tasks of {one.shortest} to {one.longest} rows, median {one.median:g}")
        elif one.tasks:
            voice.show(f"{one.tasks} tasks of one row: good as a task table, too short to fit on")
        for problem in one.problems:
            voice.show(f"Problem: {problem}")
    count = sum(len(one.problems) + sum(bool(column.problem) for column in one.columns) for one in found)
    if count:
        raise InputError(f"no problems in {path}", f"{count}", "correct what is listed above")
