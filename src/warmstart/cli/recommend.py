"""warmstart recommend: the items that users who are new to the model will like most, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmstart.cli.options import Json, Model, Quiet, Seed, pairs
from warmstart.cli.output import Voice

if TYPE_CHECKING:
    import pandas as pd

    from warmstart.estimators.adapted_users import Recommended
    from warmstart.estimators.preference_model import TrainedPreferences
    from warmstart.report import Table

MOST = 10  # users printed; a file holds all
WIDE = 28  # letters of an item's own columns
DIGITS = {"squared": ".2f", "binary": ".3g"}  # of ratings and of chances, which may all be small

LEVELS = {
    "squared": {
        "profile": "no ratings shown, so the profile alone",
        "bias": "the ratings say above all how mild a rater this is",
        "adapted": "the ratings tell items apart",
    },
    "binary": {
        "profile": "no impressions shown, so the profile alone",
        "bias": "the impressions say above all how readily this user clicks",
        "adapted": "the impressions tell items apart",
    },
}


def recommend(
    model: Model,
    user: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="For whom; may be repeated. Else all of the support.")
    ] = None,
    support: Annotated[
        Path | None,
        typer.Option(metavar="TABLE", help="What users have rated or clicked; rows of others are passed over."),
    ] = None,
    descriptor: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE,...", help="The profile of one user: age=34,job=teacher.")
    ] = None,
    descriptor_table: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="Profiles of many, found by the users' column.")
    ] = None,
    around: Annotated[
        list[str] | None,
        typer.Option("--context", metavar="KEY=VALUE,...", help="Where and when items would be shown; else as usual."),
    ] = None,
    count: Annotated[int, typer.Option("-k", metavar="N", min=1, help="How many items.")] = 10,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.9,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Items: .csv, .tsv or .parquet.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The N items that a user has not rated, or been shown, and will like most, with intervals and the reason.

    MODEL is one of preferences (`warmstart fit --preferences`); of clicks, a prediction is the chance of one. A user is
    answered from the profile at once and from ratings or clicks as soon as there is one; of whom nothing is known is
    answered as an average user. Users need not be known to the model.
    """
    from warmstart.core import InputError
    from warmstart.estimators.folder import read_kind
    from warmstart.estimators.predictions import write_table
    from warmstart.estimators.preference_learner import PreferenceLearner

    voice = Voice(json, quiet)
    kind = read_kind(model)
    if kind != "preferences":
        raise InputError("a model of preferences", f"one of kind {kind}", "fit one with `warmstart fit --preferences`")
    known = pairs(descriptor, "--descriptor", ",")
    if known and descriptor_table is not None:
        raise InputError("--descriptor or --descriptor-table", "both", "pass one of them")
    learner = PreferenceLearner.load(model)
    adapted = learner.adapt(support, descriptor_table if descriptor_table is not None else known or None, user)
    found = adapted.recommend(count, level, context=pairs(around, "--context", ","))
    if output is not None:
        write_table(found.items, output)
    _tell(voice, model, learner.fitted, found, level, output)


def _tell(
    voice: Voice, model: Path, trained: TrainedPreferences, found: Recommended, level: float, output: Path | None
) -> None:
    task, item = trained.roles.task, str(trained.roles.item)
    by_user = found.items.groupby(task, sort=False)
    users = []
    for name, reason in zip(found.reasons[task], found.reasons.to_dict("records"), strict=True):
        lines = by_user.get_group(name).drop(columns=task).rename(columns={item: "item"}).to_dict("records")
        near = [
            {"user": other, "distance": far} for other, far in zip(reason["nearest"], reason["distance"], strict=True)
        ]
        why = {"level": reason["level"], "events": reason["events"], "rate": reason.get("rate"), "nearest": near}
        users.append({"user": name, "reason": why, "items": lines})
    voice.document({"model": str(model), "level": level, "users": users, "notes": list(found.notes)})
    for note in found.notes:
        voice.say(f"Note: {note}")
    for one in users[:MOST] if output is None else ():
        voice.show(_table(by_user.get_group(one["user"]), item, f"For {one['user']}", level, trained.kind))
        voice.say(_why(one["reason"], trained))
    if len(users) > MOST and output is None:
        voice.say(f"... and {len(users) - MOST} users more; -o FILE.csv writes all")
    if "high" in found.items and not found.items["high"].lt(float("inf")).all():
        voice.say(f"The model has too few validation users for intervals of level {level}; lower --level")
    if output is not None:
        voice.say(f"Recommendations: {output}")


def _table(items: pd.DataFrame, item: str, caption: str, level: float, kind: str) -> Table:
    from warmstart.report import plain

    sure, told = "low" in items, DIGITS[kind]
    spread = f"user's part, {level:.0%}" if kind == "binary" else f"{level:.0%} interval"
    own = list(items.columns[6 if sure else 4 :])[:4]
    lines = [
        [
            str(row["rank"]),
            str(row[item]),
            format(row["prediction"], told),
            *([f"{format(row['low'], told)} to {format(row['high'], told)}"] if sure else []),
            *(_short(row[name]) for name in own),
        ]
        for row in items.to_dict("records")
    ]
    return plain(["", item, "prediction", *([spread] if sure else []), *own], lines, caption)


def _short(cell: object) -> str:
    text = "" if cell is None or cell != cell else f"{cell:g}" if isinstance(cell, float) else str(cell)
    return text if len(text) <= WIDE else f"{text[: WIDE - 3]}..."


def _why(reason: dict[str, object], trained: TrainedPreferences) -> str:
    events, near, target = reason["events"], reason["nearest"], trained.roles.target
    assert isinstance(near, list)
    told = f"Answered by: {reason['level']} ({LEVELS[trained.kind][str(reason['level'])]}; {events} shown)"
    rate = "" if reason["rate"] is None else f"\nLearning rate of this user: {reason['rate']:.3g}"
    like = ", ".join(f"{one['user']} ({format(one['distance'], DIGITS[trained.kind])})" for one in near)
    return told + rate + (f"\nNearest known users, by how far predictions of {target} differ: {like}" if like else "")
