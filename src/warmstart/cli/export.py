"""warmstart export: an adapted model as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warmstart.cli.options import Broken, Descriptor, DescriptorTable, ItemTable, Json, Quiet, Seed, Support, pairs
from warmstart.cli.output import Voice
from warmstart.cli.pictures import export_pictures, refuse_options


def export(
    context: typer.Context,
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
    broken: Broken = "refuse",
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Adapt MODEL to the support rows, or take the model ADAPTED, and write it as ONNX (extra `onnx`).

    A model of pictures takes a folder with a sub-folder for each class as its support.
    """
    from warmstart.core import InputError
    from warmstart.estimators.adapted import AdaptedModel
    from warmstart.estimators.folder import read_kind
    from warmstart.estimators.meta_learner import MetaLearner
    from warmstart.estimators.predictions import adapt_tasks, only

    voice = Voice(json, quiet)
    if (model is None) == (adapted is None):
        raise InputError("either MODEL or --adapted", "both" if model else "neither", "name one of them")
    if model is not None and read_kind(model) == "pictures":
        refuse_options(context, ("descriptor", "descriptor_table", "item_table"), "a model of pictures")
        export_pictures(voice, model, support, output, broken)
        return
    refuse_options(context, ("broken",), "a model of a table")
    if adapted is not None:
        chosen = AdaptedModel.load(adapted)
    else:
        assert model is not None
        known = pairs(descriptor, "--descriptor", ",")
        chosen = only(adapt_tasks(MetaLearner.load(model), support, None, known, descriptor_table, item_table))
    chosen.export(output)
    voice.document({"file": str(output), "method": chosen.trained.name, "support": chosen.shown})
    voice.say(f"ONNX file: {output}")
