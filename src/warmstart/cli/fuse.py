"""warmstart fuse and generate: a generator of models from a folder of models, and a model for a new task from it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmstart.cli.options import Json, Quiet, Seed, pairs
from warmstart.cli.output import Voice

if TYPE_CHECKING:
    from torch import Tensor

SPAN, LEVEL = "-3,3", 0.9
Level = Annotated[float, typer.Option(help="Of the interval.")]


def fuse(
    zoo: Annotated[Path, typer.Argument(metavar="ZOO", help="Folder of .safetensors or .npz files, one a model.")],
    descriptors: Annotated[Path, typer.Option(metavar="TABLE", help="What is known of each model's task, a row each.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="GEN", help="Folder of the generator.")],
    task: Annotated[str | None, typer.Option(metavar="COL", help="The column that names the models.")] = None,
    method: Annotated[str, typer.Option(help="auto, or a way of fusing.")] = "auto",
    activation: Annotated[str, typer.Option(help="Between the linear layers: relu, tanh, gelu or silu.")] = "relu",
    inputs: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="Rows such as the models read, to compare functions on.")
    ] = None,
    span: Annotated[
        str, typer.Option("--range", metavar="LOW,HIGH", help="Without --inputs: the range of every input.")
    ] = SPAN,
    base: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of a pool of low-rank adapters: the weights they are added to.")
    ] = None,
    categorical: Annotated[
        list[str] | None, typer.Option(metavar="COL", help="A column of codes, whose numbers are names.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fuse the models of ZOO, all of one architecture (linear layers in a chain), into a generator GEN.

    ZOO may also hold low-rank adapters, pairs of tensors LAYER.lora_A and LAYER.lora_B, of the network in --base.
    No training data are needed. The ways of fusing are compared on the pool's own tasks, each model left out in
    turn; GEN/report.html has the errors, the map of tasks and predicted functions.
    """
    import torch

    from warmstart.estimators.folder import PAGE, run_folder
    from warmstart.estimators.fusion_page import page_of_generator, verdict, ways_table
    from warmstart.estimators.model_fusion import KIND, ModelFusion, too_few
    from warmstart.fusion.zoo import read_model, read_zoo

    voice = Voice(json, quiet)
    pool = read_zoo(zoo, descriptors, task, categorical or ())
    frozen = None if base is None else read_model(base)
    rows = _span(span) if inputs is None else _numbers(inputs, "inputs")
    with run_folder(output, KIND), voice.bars() as bar:
        report = bar("fusing")
        model = ModelFusion(method, seed=seed).fit(pool, activation, rows, lambda words: report(0, 1, words), frozen)
    model.save(output, {PAGE: page_of_generator(model, f"{len(pool)} models of {zoo.name}").encode()})
    errors = {name: float(error.mean()) for name, error in model.errors_.items()}
    voice.document({"generator": str(output), "method": model.chosen_, "models": len(pool), "errors": errors,
                    "notes": model.notes_})  # fmt: skip
    section = ways_table(model)
    assert section.table is not None
    voice.show(section.table)
    for note in model.notes_:
        voice.say(f"Note: {note}")
    if not bool(torch.isfinite(model.width(LEVEL)).all()):
        voice.say(f"Note: {too_few(LEVEL)}")
    if inputs is None and span == SPAN:
        voice.say("Functions were compared for inputs from -3 to 3; --inputs or --range tell where the models are used")
    voice.show(verdict(model))
    voice.say(f"Generator: {output}, page: {output / PAGE}")


def generate(
    generator: Annotated[Path, typer.Argument(metavar="GEN", help="Folder that `warmstart fuse` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODEL", help="Folder of the model.")],
    descriptor: Annotated[list[str], typer.Option(metavar="KEY=VALUE,...", help="What is known of the new task.")],
    support: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="Rows of the new task: its inputs, then its outputs.")
    ] = None,
    level: Level = LEVEL,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """A model for the task that the descriptor describes, and how sure that is: MODEL/weights.safetensors.

    It has the tensors of the pool's models, under the same names. With --support it is conditioned on a few rows, as
    far as the pool shows that this helps. MODEL/report.html has the function with its band.
    """
    from warmstart.core import InputError
    from warmstart.estimators.folder import PAGE, pack, write_folder
    from warmstart.estimators.fusion_page import page_of_model
    from warmstart.estimators.model_fusion import ModelFusion
    from warmstart.fusion.zoo import encode_descriptor

    voice = Voice(json, quiet)
    model = ModelFusion.load(generator)
    if output.resolve() == generator.resolve():
        raise InputError("another folder for the model than the generator's", f"{output}", "choose another for -o")
    known = pairs(descriptor, "--descriptor", ",")
    strange = [key for key in known if key not in model.zoo_.columns.names]
    if strange:
        have = ", ".join(model.zoo_.columns.names)
        raise InputError(
            f"values of {have}, by which the pool's tasks differ", strange[0], "leave it out, or correct it"
        )
    encoded = encode_descriptor(model.zoo_.columns, known)
    rows = None if support is None else _support(support, model.pool_.inputs.shape[1], model.pool_.outputs.shape[2])
    made = model.generate(encoded, rows, level)
    told = {
        "kind": "fused model",
        "descriptor": known,
        "method": model.chosen_,
        "support": made.shots,
        "level": level,
        "half_width": [float(part) if math.isfinite(part) else None for part in made.half],
        "support_used": made.used,
        "warning": made.warning,
    }
    title = ", ".join(f"{key} = {value}" for key, value in known.items())
    card = f"# A generated model\n\n{title}; by `{model.chosen_}` from {len(model.zoo_)} models. {made.warning}\n"
    page = page_of_model(model, made, encoded, title, rows).encode()
    write_folder(output, {**pack(told, made.params, None, card), PAGE: page})
    voice.document({"model": str(output), **told, "relevance": dict(list(made.relevance.items())[:10])})
    if made.warning:
        voice.show(f"Warning: {made.warning}")
    if made.shots and not made.used:
        voice.say("The rows are not used: on the pool's own tasks so many would not have helped for sure")
    voice.show(f"{model.chosen_}, {made.shots} rows of the task: {made.interval}")
    near = list(made.relevance.items())[:5]
    voice.say("Most relevant: " + ", ".join(f"{name} ({weight:.2f})" for name, weight in near))
    voice.say(f"Model: {output / 'weights.safetensors'}, page: {output / PAGE}")


def _span(text: str) -> tuple[float, float]:
    from warmstart.core import InputError

    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError("--range LOW,HIGH", repr(text), "write for instance --range=-5,5") from None
    return low, high


def _numbers(path: Path, what: str) -> Tensor:
    """A table of numbers as a tensor [rows, columns]."""
    import torch

    from warmstart.tasks.cells import numbers
    from warmstart.tasks.table import read_table

    frame = read_table(path, what)
    columns = [torch.from_numpy(numbers(frame[name], what).copy()) for name in frame.columns]
    return torch.stack(columns, 1).float()


def _support(path: Path, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    from warmstart.core import InputError

    rows = _numbers(path, "support")
    if rows.shape[1] != inputs + outputs:
        expected = f"{inputs} columns of inputs and then {outputs} of outputs in {path}"
        raise InputError(expected, f"{rows.shape[1]} columns", "keep these, in the order of the network")
    return rows[:, :inputs], rows[:, inputs:]
