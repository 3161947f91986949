"""A pool of trained models of one architecture, and what is known of the task of each.

Models come in as .safetensors or .npz files, one a file, named by it; nothing is unpickled. What describes the tasks is
a table, one row for each model, of numbers and categories.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from warmstart.core import InputError, Params
from warmstart.engine.files import finite, read_tensors, same_tensors
from warmstart.tasks.features import Features
from warmstart.tasks.roles import Roles, feature_kinds, require
from warmstart.tasks.side_tables import describe
from warmstart.tasks.table import Source, read_table

FEWEST = 3
PICKLES = {".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".joblib"}
WHERE = "table of descriptors"


class Zoo(NamedTuple):
    """Models in one stack, with their descriptors as numbers."""

    names: tuple[str, ...]
    params: Params  # [n, ...] by name, in alphabetical order
    descriptor: Tensor  # [n, p] numbers standardised, categories one-hot
    columns: Features  # how a descriptor becomes such numbers

    def __len__(self) -> int:
        return len(self.names)


def read_model(path: Path) -> Params:
    """The tensors of one file as numbers of single precision."""
    if path.suffix.lower() == ".npz":
        params = _read_npz(path)
    elif path.suffix.lower() in PICKLES:
        raise InputError(
            "a .safetensors or .npz file",
            f"{path.name}, a pickle, which may run any code when it is opened",
            "convert it where it was made: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')",
        )
    else:
        params = read_tensors(path)[0]
    whole = [name for name, value in params.items() if not value.is_floating_point()]
    if whole or not params:
        got = f"{params[whole[0]].dtype} in {whole[0]!r}" if whole else "no tensors"
        raise InputError(f"weights in {path.name}", got, "save the parameters only, as floating-point numbers")
    if not finite(params):
        broken = next(name for name, value in params.items() if not bool(torch.isfinite(value).all()))
        raise InputError(f"finite weights in {path.name}", f"NaN or infinity in {broken!r}", "remove that model")
    return {name: value.float() for name, value in sorted(params.items())}


def _read_npz(path: Path) -> Params:
    try:
        with path.open("rb") as source, np.load(source, allow_pickle=False) as file:
            return {name: torch.from_numpy(np.asarray(file[name])) for name in file.files}
    except (OSError, ValueError, TypeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        pickled = "pickle" in str(error).lower()
        got = "Python objects, which would have to be unpickled" if pickled else f"{type(error).__name__}: {error}"
        raise InputError(f"arrays of numbers in {path.name}", got, "save plain arrays with numpy.savez") from None


def read_models(folder: str | Path) -> tuple[tuple[str, ...], Params]:
    """The models of a folder, by the names of their files, in one stack."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"a folder of models at {folder}", "none", "name the folder that holds them")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in {".safetensors", ".npz", *PICKLES})
    again = {path.stem for path in paths if sum(other.stem == path.stem for other in paths) > 1}
    if again:
        raise InputError(f"one file for each model in {folder}", f"two called {min(again)!r}", "remove one of them")
    return stack_models({path.stem: read_model(path) for path in paths}, folder)


def stack_models(models: Mapping[str, Params], place: Path = Path("the pool")) -> tuple[tuple[str, ...], Params]:
    """Models of one architecture as one stack [n, ...]; what differs is named."""
    if len(models) < FEWEST:
        raise InputError(f"at least {FEWEST} models in {place}", f"{len(models)}", "add .safetensors or .npz files")
    first, *rest = models
    for name in rest:
        try:
            same_tensors(models[name], models[first], Path(f"{name}, as in {first}"))
        except InputError as error:
            remedy = f"remove {name}, or train it in the same architecture"
            raise InputError(error.expected, error.got, remedy) from None
    return tuple(models), {key: torch.stack([model[key] for model in models.values()]) for key in models[first]}


def make_zoo(
    names: tuple[str, ...],
    params: Params,
    descriptors: Source,
    task: str | None = None,
    categorical: Sequence[str] = (),
) -> Zoo:
    """A zoo of a stack of models and a table of descriptors; `task` is the column that names the models.

    Numbers of the columns in `categorical` are names. Columns that are the same for all models are not used.
    """
    table = read_table(descriptors, WHERE)
    key = _key_column(table, names) if task is None else task
    require([key], table.columns, WHERE)
    known = describe(table, key, list(names)).reset_index(drop=True)
    require(categorical, table.columns, WHERE)
    kinds = feature_kinds(known, Roles(task=key, target="", categorical=tuple(categorical) or None), "|", WHERE)
    _refuse_gaps(known[list(kinds)], names)
    varying = {name: kind for name, kind in kinds.items() if known[name].astype(str).nunique() > 1}
    if not varying:
        raise InputError(
            "descriptors that differ between models",
            "constant columns only" if kinds else f"only the names of the models, in '{key}'",
            "describe what sets the tasks apart",
        )
    columns = Features.fit(known, varying, WHERE, "|", 1, 16)
    descriptor = dense(columns, columns.encode(known, WHERE))
    _, group, count = torch.unique(descriptor, dim=0, return_inverse=True, return_counts=True)
    if int(count.max()) > 1:
        a, b = [names[i] for i in (group == int(count.argmax())).nonzero()[:2].flatten().tolist()]
        got = f"the same for {a!r} and {b!r}"
        raise InputError("a descriptor of its own for each model", got, "describe what differs, or keep one of them")
    return Zoo(names, dict(sorted(params.items())), descriptor, columns)


def read_zoo(folder: str | Path, descriptors: Source, task: str | None = None, categorical: Sequence[str] = ()) -> Zoo:
    return make_zoo(*read_models(folder), descriptors, task, categorical)


def _refuse_gaps(known: pd.DataFrame, names: Sequence[str]) -> None:
    """What is not known of a task cannot be compared."""
    gaps = known.isna()
    if bool(gaps.any(axis=None)):
        column = str(gaps.any().idxmax())
        got = f"none for {names[int(gaps[column].to_numpy().argmax())]!r}"
        raise InputError(
            f"a value of '{column}' for every task", got, "fill it in, or leave the column or the task out"
        )


def _key_column(table: pd.DataFrame, names: tuple[str, ...]) -> str:
    """The column that names the models."""
    missing = {str(column): set(names) - set(table[column].astype(str)) for column in table.columns}
    best = min(missing, key=lambda column: len(missing[column]), default="")
    if best and not missing[best]:
        return best
    if best and len(missing[best]) < len(names):
        some = f"none for {', '.join(map(repr, sorted(missing[best])[:3]))}"
        raise InputError(f"a row of the {WHERE} for every model, named in '{best}'", some, "add rows, or remove models")
    raise InputError(
        f"a column of the {WHERE} with the names of the models, such as {names[0]!r}",
        f"columns {', '.join(map(str, table.columns))}",
        "name the column with --task, and give every model a row",
    )


def encode_descriptor(columns: Features, known: pd.DataFrame | Mapping[str, Any]) -> Tensor:
    """[q, p] of new tasks: a dict of one task's values, or one row for each. All columns of the pool are needed."""
    frame = known if isinstance(known, pd.DataFrame) else pd.DataFrame({k: [v] for k, v in known.items()}, index=[0])
    require(columns.names, frame.columns, "descriptor")
    for number in columns.numeric:
        if not pd.api.types.is_numeric_dtype(frame[number.name]):
            read = pd.to_numeric(frame[number.name], errors="coerce")
            if read.isna().any():
                got = repr(frame[number.name][read.isna()].iloc[0])
                raise InputError(f"a number for '{number.name}'", got, "write for instance a=1.2")
            frame = frame.assign(**{number.name: read})
    _refuse_gaps(frame[list(columns.names)], [f"row {i + 1}" for i in range(len(frame))])
    return dense(columns, columns.encode(frame, "descriptor"))


def outside(zoo: Zoo, descriptor: Tensor) -> str:
    """What of a descriptor [p] no model comes near: a number beyond the pool's by its whole range, or a category."""
    low, high = zoo.descriptor.amin(0), zoo.descriptor.amax(0)
    for i, number in enumerate(zoo.columns.numeric):
        if not low[i] - (high[i] - low[i]) <= descriptor[i] <= high[i] + (high[i] - low[i]):
            return f"'{number.name}' is beyond the range of the pool"
    place = len(zoo.columns.numeric)
    for known, size in zip(zoo.columns.categorical, zoo.columns.columns.categorical, strict=True):
        if bool(descriptor[place]):  # the column of values that were not seen
            return f"'{known.name}' has a value that no model of the pool has"
        place += size - 1
    return ""


def dense(columns: Features, parts: Mapping[str, Tensor]) -> Tensor:
    """[n, p]: numbers, then a column for each value of a category but *missing*, and counts of bags."""
    pieces = [parts["numeric"]]
    sizes = columns.columns
    for i, size in enumerate(sizes.categorical):
        pieces.append((parts["categorical"][:, i, None] == torch.arange(1, size)).to(pieces[0]))
    for i, size in enumerate(sizes.bag):
        pieces.append((parts["bag"][:, i, :, None] == torch.arange(1, size)).sum(1).to(pieces[0]))
    return torch.cat(pieces, -1)
