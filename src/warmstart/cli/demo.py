"""warmstart demo: the main job on a simulated population with known truth."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from warmstart.cli.options import Device, Folder, Json, Quiet, Seed
from warmstart.cli.output import Voice
from warmstart.cli.study import carry_out


class Preset(enum.StrEnum):
    demo = "demo"
    quick = "quick"
    full = "full"


def demo(
    preset: Annotated[
        Preset, typer.Option(help="demo ends within two minutes; quick and full are those of study population.")
    ] = Preset.demo,
    output: Folder = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit on a simulated population, adapt to unseen tasks, compare with baselines and the optimum, write a page."""
    from warmstart.studies import population

    carry_out(Voice(json, quiet), population, preset.value, [seed], [], None, device, output)
