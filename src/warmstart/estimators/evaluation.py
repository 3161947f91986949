"""Evaluating a model on the held-out tasks of its table, beside what a user would pick instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.core.trees import take
from warmstart.engine.device import choose_device
from warmstart.estimators.comparison import (
    class_pictures,
    error_table,
    figures,
    honesty,
    judge,
    metric_of,
    pictures,
    ranked,
    rows_of,
)
from warmstart.estimators.fitting import Problem
from warmstart.estimators.judging import Calibration, held_out, reached, sizes_up_to
from warmstart.estimators.meta_learner import MetaLearner, split_pools
from warmstart.estimators.rivals import BASELINES, fit_baselines
from warmstart.metrics.intervals import paired
from warmstart.report import called, make_results
from warmstart.report.page import Outcome
from warmstart.tasks.pool import Pool
from warmstart.tasks.table import Source


def evaluate(
    model: MetaLearner,
    rows: Source,
    task_table: Source | None = None,
    item_table: Source | None = None,
    *,
    trials: int = 4,
    folder: Path | None = None,
    progress: Callable[[str], Any] | None = None,
) -> Outcome:
    """The table given to fit: the model on its held-out tasks against baselines tuned on its validation tasks."""
    device = choose_device(model.device)
    trained, plan = model.fitted.to(device), model.plan
    schema = trained.schema
    if schema is None or schema.split is None:
        raise InputError(
            "a model fitted on a table", "one without a table", "judge your own module with judging.errors"
        )
    named = schema.transform(rows, task_table, item_table)
    train, validation, test = split_pools(schema, named)
    if not (train.count and validation.count and test.count):
        raise InputError("the table the model was fitted on", "one without its tasks", "pass the table given to fit")
    problem = Problem(train, validation, schema.columns, schema.descriptor_columns, trained.likelihood, trained.classes)
    task = held_out(test, plan.support, plan.query, model.seed)
    sizes = sizes_up_to(plan.support)
    predictors = {
        trained.name: trained.predict,
        **fit_baselines(problem, plan, trials, model.seed, folder=folder, progress=progress),
    }
    calibrations = {trained.name: trained.calibration} if isinstance(trained.calibration, Calibration) else {}
    there = reached(task, sizes)
    at = _typical(there)
    grouping = _grouping(test, there[at], None if schema.roles.group is None else named.groups)
    found = judge(predictors, calibrations, task, grouping.of, trained.likelihood, sizes)
    metric = metric_of(trained.likelihood)
    rows_found = rows_of({model.seed: found}, metric, grouping.members)
    results = make_results("evaluate", "full", str(device), called(), rows_found)
    best = next(name for name in ranked(found.errors, at) if name in BASELINES)
    gain = paired(found.errors[trained.name][at], found.errors[best][at])
    verdict = (
        f"After {at} samples of an unseen task, {trained.name} has a {metric} of "
        f"{float(found.errors[trained.name][at].nanmean()):.3f}; the best baseline, {best}, "
        f"{float(found.errors[best][at].nanmean()):.3f} (difference {gain.mean:+.3f}, "
        f"95 % interval {gain.low:+.3f} to {gain.high:+.3f})."
    )
    ids = there[at].nonzero().squeeze(-1)[:4]
    few, names = take(task, ids), [f"task {i + 1}" for i in ids.tolist()]
    heading, order = grouping.heading, grouping.order
    sections = [
        error_table(results, metric, sizes, set(BASELINES))._replace(prose=_counts(there)),
        *figures(results, metric, list(grouping.members), set(BASELINES), at=at, heading=heading, order=order),
    ]
    before_and_after = sorted({0, at})
    if trained.likelihood.name == "squared":
        sections.append(pictures(trained.name, trained.predict, few, names, before_and_after))
    else:
        classes = schema.target.classes
        sections.append(honesty(results, found.bins, set(BASELINES), at))
        sections.append(class_pictures(trained.name, trained.predict, few, names, before_and_after, classes))
    return Outcome(results, sections, verdict)


class Grouping(NamedTuple):
    """Tasks by group; -1 for those in none."""

    of: Tensor  # [t]
    members: dict[str, list[int]]  # a name, with the number of tasks, and the integer it stands for; empty when alone
    heading: str
    order: str


def _grouping(pool: Pool, chosen: Tensor, names: tuple[str, ...] | None) -> Grouping:
    """The chosen tasks by the group column or, where there is none, by their number of rows."""
    if names is None:
        labels, of = _thirds(pool.lengths, chosen)
        groups = dict(sorted(_groups(labels, of[chosen]).items(), key=lambda pair: pair[1]))
        words = "By number of rows", "shortest tasks first"
    else:
        of, groups = pool.group, _groups(names, pool.group[chosen])
        words = "By group", "largest group first"
    return Grouping(torch.where(chosen, of, -1), groups if len(groups) > 1 else {}, *words)


def _counts(there: dict[int, Tensor]) -> str:
    """How many tasks each column is about, where that differs."""
    counts = {size: int(one.sum()) for size, one in there.items()}
    if len(set(counts.values())) < 2:
        return ""
    told = ", ".join(f"{count} with {size}" for size, count in counts.items())
    return f"Tasks that have so many samples to show: {told}."


def _typical(there: dict[int, Tensor], most: int = 5) -> int:
    """The largest number of samples up to `most` that at least half of the tasks, and two, can show."""
    return max(
        size for size, one in there.items() if size <= most and (size == 0 or int(one.sum()) >= max(2, len(one) / 2))
    )


def _thirds(rows: Tensor, chosen: Tensor) -> tuple[tuple[str, ...], Tensor]:
    """Thirds of the chosen tasks by their number of rows, shortest first; tasks of one length stay together."""
    own = rows[chosen]
    less = own[own < own.max()]
    cuts: list[int] = []
    if len(less):  # the longest of each third but the last, which keeps the longest of all
        ends = own.double().quantile(own.new_tensor([1, 2]).double() / 3, interpolation="lower").tolist()
        cuts = sorted({min(int(end), int(less.max())) for end in ends})
    place = torch.bucketize(rows, rows.new_tensor(cuts))
    spans = [own[place[chosen] == i].aminmax() for i in range(len(cuts) + 1)]
    return tuple(f"{low} rows" if low == high else f"{low}-{high} rows" for low, high in spans), place


def _groups(names: tuple[str, ...], group: Tensor, most: int = 8) -> dict[str, list[int]]:
    """The largest groups, with their sizes, largest first."""
    counts = torch.bincount(group, minlength=len(names))
    order = counts.argsort(descending=True, stable=True)[:most].tolist()
    return {f"{names[i]} (n={int(counts[i])})": [i] for i in order if counts[i] > 1}
