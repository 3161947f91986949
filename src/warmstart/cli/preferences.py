"""What `fit`, `adapt` and `evaluate` do with ratings and clicks of users."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from warmstart.cli.output import Voice
from warmstart.cli.trials import table_of_trials, trials_document
from warmstart.cli.writing import tell

if TYPE_CHECKING:
    import pandas as pd

    from warmstart.estimators.preference_learner import PreferenceLearner
    from warmstart.tasks.roles import Roles


class Asked(NamedTuple):
    """The options of `fit`."""

    table: Path
    roles: Roles
    task_table: Path | None
    item_table: Path | None
    scale: str | None
    kind: str | None
    method: str
    settings: dict[str, str]
    trials: int
    seed: int
    device: str


def is_preferences(method: str, items: bool) -> bool:
    """Whether the method says that rows are ratings: it is for these alone, or for both and there are items."""
    from warmstart.estimators.methods import METHODS as OF_ROWS
    from warmstart.estimators.preference_methods import METHODS

    return method in METHODS and (items or method not in OF_ROWS)


def fit_preferences(voice: Voice, asked: Asked, output: Path) -> None:
    """Fit, save and tell."""
    from warmstart.engine.ranks import join_ranks, wait_for_ranks
    from warmstart.estimators.folder import run_folder
    from warmstart.estimators.preference_learner import KIND, PreferenceLearner

    scale = None if asked.scale is None else _scale(asked.scale)
    learner = PreferenceLearner(asked.method, asked.settings, asked.trials, scale, asked.kind, asked.seed, asked.device)
    with run_folder(output, KIND) as folder, voice.bars() as bar:
        learner.fit(asked.table, asked.roles, asked.task_table, asked.item_table, folder=folder, progress=bar)
        if join_ranks()[0] == 0:
            learner.save(output)
        wait_for_ranks()
    _tell_fit(voice, learner, asked, output)


def _scale(text: str) -> tuple[float, float]:
    from warmstart.core import InputError

    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    if not -float("inf") < low < high < float("inf"):
        raise InputError("--scale LOW,HIGH, two numbers", repr(text), "write for instance 1,5")
    return low, high


def _tell_fit(voice: Voice, learner: PreferenceLearner, asked: Asked, output: Path) -> None:
    from warmstart.estimators.preference_judging import METRIC
    from warmstart.estimators.preference_methods import find

    trained = learner.fitted
    metric, of_ratings = METRIC[trained.kind], trained.kind == "squared"
    split = {part: len(names) for part, names in trained.split._asdict().items()}
    low, high = trained.scale
    voice.document(
        {
            "model": str(output),
            "method": trained.name,
            "settings": dataclasses.asdict(trained.config),
            "error": trained.value,
            "users": split,
            "items": len(trained.items),
            "item": trained.roles.item,
            "kind": trained.kind,
            "scale": [low, high],
            "trials": trials_document(learner.trials_),
            "notes": list(learner.notes_),
        }
    )
    if voice.quiet:
        return
    for note in learner.notes_:
        voice.say(f"Note: {note}")
    if sum(map(len, learner.trials_.values())) > 1:
        voice.show(table_of_trials(learner.trials_, {name: find(name).space for name in learner.trials_}, metric))
    model, roles = shlex.quote(str(output)), trained.roles
    needed = ", ".join([roles.task, str(roles.item), roles.target, *roles.context])
    tables = {"--task-table": asked.task_table, "--item-table": asked.item_table}
    given = [part for flag, path in tables.items() if path is not None for part in (flag, str(path))]
    judge = shlex.join(["warmstart", "evaluate", str(output), str(asked.table), *given, "-o", f"{output}-report"])
    known = (
        f" --descriptor {','.join(f'{name}=...' for name in trained.profile.names)}" if trained.profile.names else ""
    )
    told = "given with --scale" if asked.scale else "those of the table"
    facts = {
        "Method": trained.name,
        f"Validation {metric}": f"{trained.value:.4g} (mean over what users have shown)",
        "Users": ", ".join(f"{count:,} {part}" for part, count in split.items()),
        "Items": f"{len(trained.items):,}, by column '{trained.roles.item}'",
        **(
            {"Scale": f"{low:g} to {high:g}, {told}"} if of_ratings else {"Target": f"'{trained.roles.target}', or not"}
        ),
        "Model": str(output),
    }
    wide = max(map(len, facts)) + 2
    voice.show(
        "".join(f"{f'{name}:':{wide}}{fact}\n" for name, fact in facts.items())
        + f"\nNext, with a table of the columns {needed}:\n"
        f"  warmstart recommend {model} --support NEW_{'RATINGS' if of_ratings else 'CLICKS'}.csv{known}\n"
        f"  {judge}"
    )


def adapt_to_users(
    model: Path,
    support: Path | None,
    query: Path,
    profile: dict[str, str],
    profiles: Path | None,
    level: float,
) -> tuple[pd.DataFrame, dict[str, int], Sequence[str]]:
    """Predictions of the query's rows, how many events each user had shown, and notes."""
    from warmstart.core import InputError
    from warmstart.estimators.preference_learner import PreferenceLearner
    from warmstart.tasks.roles import require
    from warmstart.tasks.side_tables import keys
    from warmstart.tasks.table import read_table

    if profile and profiles is not None:
        raise InputError("--descriptor or --descriptor-table", "both", "pass one of them")
    learner = PreferenceLearner.load(model)
    asked, task = read_table(query, "query"), learner.fitted.roles.task
    require([learner.fitted.roles.item], asked.columns, "query")
    users = keys(asked[task], "query")[1] if task in asked else None
    adapted = learner.adapt(support, profiles if profiles is not None else profile or None, users)
    shown: dict[str, Any] = dict(zip(adapted.names, adapted.events.tolist(), strict=True))
    return adapted.frame(asked, level), shown, (*adapted.notes, *adapted.unknown(asked))


def evaluate_preferences(
    voice: Voice,
    model: Path,
    table: Path,
    task_table: Path | None,
    item_table: Path | None,
    output: Path | None,
    trials: int,
) -> None:
    """The page of a model of preferences."""
    from warmstart.estimators.preference_evaluation import evaluate
    from warmstart.estimators.preference_learner import PreferenceLearner

    with voice.bars() as bar:
        learner = PreferenceLearner.load(model)
        outcome = evaluate(learner, table, task_table, item_table, trials=trials, progress=bar)
    voice.document(tell(voice, outcome, f"{model.name} on unseen users of {table.name}", output))
