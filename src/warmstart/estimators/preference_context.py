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

FEW = 3  # values that a note names


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


def strange(known: Features, about: pd.DataFrame, where: str, whose: str) -> list[str]:
    """Values that no or hardly any training row had: they tell nothing."""
    notes = []
    for vocabulary in (*known.categorical, *known.bag):
        if vocabulary.name not in about or not vocabulary.values:
            continue
        column = about[vocabulary.name].reset_index(drop=True)
        names = cells(column, known.separator, where).names if vocabulary in known.bag else texts(column, where)[1]
        new = [name for name, place in zip(names, vocabulary.lookup(names), strict=True) if place == 1]
        if new:
            few = ", ".join(map(repr, new[:FEW])) + (" and others" if len(new) > FEW else "")
            notes.append(f"'{vocabulary.name}' is {few}, which no or few training {whose} have: taken as unknown")
    return notes


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
        notes += strange(known, row, "context", "impressions")
    return [*notes, *untold(usual, told, "items")]
