"""The context of impressions: what is usual, what has to be supposed, and what the model cannot make anything of."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import pandas as pd

from warmstart.core import InputError
from warmstart.tasks.cells import cells, is_list, texts
from warmstart.tasks.features import Features
from warmstart.tasks.ratings import Ratings
from warmstart.tasks.roles import require


def usual_context(train: Ratings) -> dict[str, Any]:
    """The context of most impressions: of numbers the one in the middle, several values as one text."""
    found: dict[str, Any] = {}
    for name in train.context:
        column = train.context[name]
        value: float | str | None
        if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
            kept = column.dropna()
            value = kept.quantile(0.5, "lower").item() if len(kept) else None
        else:
            codes, names = texts(
                column.map(lambda cell: "|".join(map(str, cell)) if is_list(cell) else cell), "ratings"
            )
            count = np.bincount(codes[codes >= 0], minlength=len(names))
            value = min(zip(-count, names, strict=True), default=(0, None))[1]
        if value is None:
            raise InputError(f"values in context column '{name}' of the training users", "none", "leave it out")
        found[str(name)] = value
    return found


def untold(usual: Mapping[str, Any], told: Container[str], where: str) -> list[str]:
    """The context that has to be supposed."""
    supposed = ", ".join(f"{name}={value}" for name, value in usual.items() if name not in told)
    return [f"the context of the {where} is not told in full: taken as usual, {supposed}"] if supposed else []


def readable(known: Features, rows: pd.DataFrame, where: str) -> None:
    """An error of a cell that is not what the model was fitted with; the index tells the row, from 0."""
    try:
        known.encode(rows, where)
    except InputError as error:
        remedy = "correct it or leave it empty: the model was fitted with other cells there"
        raise InputError(error.expected, error.got, remedy) from None


def told_context(usual: Mapping[str, Any], known: Features, told: Mapping[str, Any]) -> list[str]:
    """What is to be said of the context that items would be shown in; one that cannot be read is refused."""
    if told and not usual:
        raise InputError("no context, since the model has none", ", ".join(map(repr, told)), "leave it out")
    require(list(told), usual, "context that the model was fitted with")
    notes = []
    for name, value in told.items():
        row, example = (
            pd.DataFrame({name: pd.Series([value], dtype=object)}),
            f"write for instance {name}={usual[name]}",
        )
        try:
            empty = not cells(row[name], known.separator, "context").names
            known.encode(row, "context")
        except InputError as error:
            raise InputError(error.expected, repr(value), example) from None
        if empty:
            raise InputError(f"a value of context '{name}'", "none", f"{example}, or leave it out to take it as usual")
        notes += known.strange(row, "context", "impressions")
    return [*notes, *untold(usual, told, "items")]
