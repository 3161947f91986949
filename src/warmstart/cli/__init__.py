"""The command line: parses, calls, prints. Whatever is slow to import is imported by the verb that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from warmstart import __version__
from warmstart.cli import adapt, bench, data, demo, evaluate, export, fit, fuse, recommend, select, study

app = typer.Typer(
    name="warmstart",
    help="A good model for a new task, user or device from its first few samples, and how sure it is.",
    add_completion=False,
    rich_markup_mode="rich",
)
app.command()(demo.demo)
app.command()(fit.fit)
app.command()(adapt.adapt)
app.command()(recommend.recommend)
app.command()(evaluate.evaluate)
app.command()(export.export)
app.command()(fuse.fuse)
app.command()(fuse.generate)
app.command()(select.select)
app.command()(study.study)
app.command()(bench.bench)
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(f"warmstart {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit code: 0, 2 for bad input told in one sentence, 130 for an interrupt. A bug keeps its traceback."""
    command = get_command(app)
    try:
        with command.make_context("warmstart", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        typer.echo("interrupted; the same fit command goes on from its last checkpoint", err=True)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush would complain
        return 141
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        typer.echo(" ".join(f"warmstart: {sentence}".split()), err=True)
        return 2
    return 0


def _sentence(error: Exception) -> str | None:
    """What a user is told of bad input; None when the error is not theirs."""
    if hasattr(error, "format_message"):  # of typer, whichever click it stands on
        context = getattr(error, "ctx", None)
        path = "warmstart" if context is None else context.command_path
        return f"{error.format_message().rstrip('. ')}; see `{path} --help`"
    if not isinstance(error, ValueError):
        return None
    from warmstart.core import InputError  # here, since it imports torch

    return str(error) if isinstance(error, InputError) else None
