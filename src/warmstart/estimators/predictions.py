"""Predictions for one new task or many: each is adapted to its own rows, all are told in one table."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from warmstart.core import InputError
from warmstart.engine.files import write_bytes
from warmstart.estimators.adapted import AdaptedModel
from warmstart.estimators.meta_learner import MetaLearner
from warmstart.tasks.cells import ranks
from warmstart.tasks.roles import Roles, require
from warmstart.tasks.schema import Schema
from warmstart.tasks.side_tables import describe, keys
from warmstart.tasks.table import Source, read_support, read_table

NAMELESS = ""  # the one task of a table without a task column


def adapt_tasks(
    model: MetaLearner,
    support: Source | None = None,
    query: Source | None = None,
    descriptor: Mapping[str, Any] | None = None,
    descriptor_table: Source | None = None,
    item_table: Source | None = None,
    first: int | None = None,
    device: str = "cpu",
) -> dict[str, AdaptedModel]:
    """A model for each task of the query, or of the support when there is no query, by name.

    A task without support rows is served zero-shot. Tables without the task column hold one task.
    `first` limits each task's support, in order of the time column where there is one.
    """
    schema = _schema(model)
    shown = _by_task(read_support(support), schema, "support")
    asked = _by_task(None if query is None else read_table(query, "query"), schema, "query")
    names = _match(list(shown), list(asked), schema.roles.task)
    if descriptor and len(names) > 1:
        raise InputError("one task for one descriptor", f"{len(names)}", "pass a table of descriptors")
    about = None if descriptor_table is None else read_table(descriptor_table, "descriptor table")
    items = None if item_table is None else read_table(item_table, "item table")
    if len(shown) > 1:
        _check(schema, pd.concat(shown.values()).sort_index(), items)
    models = {}
    for name in names:
        rows = _first(shown.get(name, shown.get(NAMELESS)), first, schema.roles, name)
        known = descriptor if about is None else _described(about, schema.roles.task, name)
        models[name] = model.adapt(rows, known, items, device=device)
    return models


def only(models: Mapping[str, AdaptedModel]) -> AdaptedModel:
    """The model of the one task there is."""
    if len(models) != 1:
        raise InputError("one task to save or export", f"{len(models)}", "pass the rows of one task")
    return next(iter(models.values()))


def predict_tasks(
    models: Mapping[str, AdaptedModel], query: Source, level: float = 0.9, item_table: Source | None = None
) -> pd.DataFrame:
    """The query's task, item and time columns with predictions, in the order of its rows."""
    frame = read_table(query, "query")
    items = None if item_table is None else read_table(item_table, "item table")
    schema = next(iter(models.values())).trained.schema
    assert schema is not None
    schema.transform_rows(frame, items)  # for its messages, as in `_check`
    parts = _by_task(frame, schema, "query")
    told = [
        (only(models) if name == NAMELESS else models[name]).frame(part, level, items).set_index(part.index)
        for name, part in parts.items()
    ]
    said = pd.concat(told).sort_index()
    roles = schema.roles
    means = said.drop(columns=["low", "high"], errors="ignore").select_dtypes("number")  # intervals may be infinite
    wrong = ~np.isfinite(means.to_numpy(dtype=float)).all(1)
    if wrong.any():
        got = f"others in row {int(wrong.argmax()) + 1} of the query"
        raise InputError("finite predictions", got, "check the support for values far from those in training")
    names = [name for name in (roles.task, roles.item, roles.time) if name in frame and name not in said]
    return pd.concat([frame[names], said], axis=1)


def strange_values(
    models: Mapping[str, AdaptedModel],
    support: Source | None,
    query: Source,
    descriptor: Mapping[str, Any] | None = None,
    descriptor_table: Source | None = None,
    item_table: Source | None = None,
) -> list[str]:
    """Notes on what training did not have, of the tables that `adapt_tasks` and `predict_tasks` took."""
    schema = next(iter(models.values())).trained.schema
    assert schema is not None
    told = {"support": read_support(support), "query": query}
    notes = [note for name, rows in told.items() if rows is not None for note in schema.strange(rows, name, item_table)]
    about = pd.DataFrame([dict(descriptor or {})])
    if descriptor_table is not None:
        table = read_table(descriptor_table, "descriptor table")
        about = pd.concat([_described(table, schema.roles.task, name) for name in models])
    return notes + schema.descriptor.strange(about, "descriptors", "tasks")


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """A .csv, .tsv or .parquet file, whole or not at all."""
    if path.suffix == ".parquet":
        content = io.BytesIO()
        frame.to_parquet(content, index=False)
        write_bytes(path, content.getvalue())
    elif path.suffix in (".csv", ".tsv"):
        write_bytes(path, frame.to_csv(index=False, sep="\t" if path.suffix == ".tsv" else ",").encode())
    else:
        raise InputError("a .csv, .tsv or .parquet file to write", str(path), "rename it")


def _schema(model: MetaLearner) -> Schema:
    schema = model.fitted.schema
    if schema is None:
        raise InputError("a model of a table", "one of your own module", "use adapt in Python")
    return schema


def _by_task(frame: pd.DataFrame | None, schema: Schema, where: str) -> dict[str, pd.DataFrame]:
    if frame is None:
        return {}
    if schema.roles.task not in frame:
        return {NAMELESS: frame}
    codes, names = keys(frame[schema.roles.task], where)
    return {name: frame[codes == code] for code, name in enumerate(names)}


def _check(schema: Schema, support: pd.DataFrame, items: pd.DataFrame | None) -> None:
    """What is wrong is told by its row in the whole table, not in a task's part of it."""
    schema.transform_rows(support, items)
    require([schema.roles.target], support.columns, "support")
    schema.target.encode(support[schema.roles.target])


def _match(shown: list[str], asked: list[str], column: str) -> list[str]:
    """The tasks to adapt to; a table without the task column goes with one task of the other."""
    if asked in ([], [NAMELESS]):
        names, bare = shown or [NAMELESS], "query" if asked else ""
    else:
        names, bare = asked, "support" if shown == [NAMELESS] else ""
    if bare and len(names) > 1:
        raise InputError(f"a column '{column}' in the {bare}", f"none, but {len(names)} tasks", "add the column")
    if shown and not bare and not set(names) & set(shown):
        told = f"'{shown[0]}' there and '{names[0]}' in the query"
        raise InputError("tasks of the query in the support", told, "correct the names, or leave the support out")
    return names


def _first(rows: pd.DataFrame | None, count: int | None, roles: Roles, name: str) -> pd.DataFrame | None:
    if count is None:
        return rows
    have = 0 if rows is None else len(rows)
    if have < count:
        task = f" of task '{name}'" if name else ""
        raise InputError(f"at least {count} support rows{task}", f"{have}", f"ask for at most {have}")
    if rows is None or count == 0:
        return None
    if roles.time is not None and roles.time in rows:
        rows = rows.iloc[np.argsort(ranks(rows[roles.time], "support"), kind="stable")]
    return rows.iloc[:count]


def _described(table: pd.DataFrame, key: str, name: str) -> pd.DataFrame:
    if name != NAMELESS:
        return describe(table, key, [name])
    if len(table) > 1:
        raise InputError("one row in the descriptor table", f"{len(table)}", f"name the task in a column '{key}'")
    return table
