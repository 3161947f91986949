"""warmstart bench: speed against how today's libraries do it, as ratios of one run."""

from __future__ import annotations

from typing import Annotated

import typer

from warmstart.cli.modules import pick, runnable, summaries
from warmstart.cli.options import Device, Folder, Json, Quiet, Seed
from warmstart.cli.output import Voice
from warmstart.cli.writing import check_writable, tell


def bench(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="See --list; without it, all.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the benchmarks.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="These workloads or ways only; may be repeated.")
    ] = None,
    output: Folder = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure speed and memory, interleaved with peers on the same device.

    Each benchmark has a folder of its name in DIR.
    """
    import warmstart.benches
    from warmstart.report.page import Outcome

    voice = Voice(json, quiet)
    found = runnable(warmstart.benches)
    if listed:
        summaries(voice, found, "bench")
        return
    chosen = found if name is None else {name: pick(found, name, "bench")}
    for key in chosen:
        check_writable(None if output is None else output / key)
    documents = {}
    for key, module in chosen.items():
        with voice.bars() as bar:
            results = module.run(device, bar, only or [])
        outcome = Outcome(results, module.sections(results), "")
        documents[key] = tell(voice, outcome, f"Benchmark {key}", None if output is None else output / key)
    voice.document(documents)
