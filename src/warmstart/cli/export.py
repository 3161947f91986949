"""warmstart export: an adapted model as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warmstart.cli.options import Descriptor, DescriptorTable, Device, ItemTable, Json, Quiet, Seed, Support, pairs
from warmstart.cli.output import Voice


def export(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.onnx", help="The file to write.")],
    model: Annotated[Path | None, typer.Argument(metavar="[MODEL]", help="Folder that `warmstart fit` wrote.")] = None,
    adapted: Annotated[
        Path | None,
        typer.Option(metavar="ADAPTED", help="Folder that `warmstart adapt --save` wrote, instead of MODEL."),
    ] = None,
    support: Support = None,
    descriptor: Descriptor = None,
    descriptor_table: DescriptorTable = None,
    item_table: ItemTable = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Adapt MODEL to the support rows, or take the model ADAPTED, and write it as ONNX (extra `onnx`)."""
    from warmstart.core import InputError
    from warmstart.engine.device import choose_device
    from warmstart.estimators.adapted import AdaptedModel
    from warmstart.estimators.meta_learner import MetaLearner
    from warmstart.estimators.predictions import adapt_tasks, only

    choose_device(device)
    if (model is None) == (adapted is None):
        raise InputError("either MODEL or --adapted", "both" if model else "neither", "name one of them")
    if adapted is not None:
        chosen = AdaptedModel.load(adapted)
    else:
        assert model is not None
        known = pairs(descriptor, "--descriptor", ",")
        chosen = only(adapt_tasks(MetaLearner.load(model), support, None, known, descriptor_table, item_table))
    chosen.export(output)
    voice = Voice(json, quiet)
    voice.document({"file": str(output), "method": chosen.trained.name, "support": chosen.shown})
    voice.say(f"ONNX file: {output}")
