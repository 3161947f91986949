"""Evaluating a model on the held-out tasks of its table, beside what a user would pick instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from warmstart.core import InputError
from warmstart.core.trees import take
from warmstart.engine.device import choose_device
from warmstart.estimators.comparison import error_table, figures, judge, metric_of, pictures, ranked, rows_of
from warmstart.estimators.fitting import Problem
from warmstart.estimators.judging import held_out, sizes_up_to
from warmstart.estimators.meta_learner import MetaLearner, split_pools
from warmstart.estimators.rivals import BASELINES, fit_baselines
from warmstart.metrics.intervals import paired
from warmstart.report import make_results
from warmstart.report.page import Outcome
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
    calibrations = {} if trained.calibration is None else {trained.name: trained.calibration}
    found = judge(predictors, calibrations, task, test.group, trained.likelihood, sizes)
    groups = _groups(named.groups, test.group)
    metric = metric_of(trained.likelihood)
    rows_found = rows_of({model.seed: found}, metric, groups if len(groups) > 1 else {})
    results = make_results("evaluate", "full", str(device), " ".join(["warmstart", *sys.argv[1:]]), rows_found)
    at = min(5, plan.support)
    best = next(name for name in ranked(found.errors, at) if name in BASELINES)
    gain = paired(found.errors[trained.name][at], found.errors[best][at])
    verdict = (
        f"After {at} samples of an unseen task, {trained.name} has a {metric} of "
        f"{float(found.errors[trained.name][at].nanmean()):.3f}; the best baseline, {best}, "
        f"{float(found.errors[best][at].nanmean()):.3f} (difference {gain.mean:+.3f}, "
        f"95 % interval {gain.low:+.3f} to {gain.high:+.3f})."
    )
    few = take(task, slice(0, 4))
    names = [f"task {i + 1}" for i in range(len(few.key))]
    sections = [
        error_table(results, metric, sizes, set(BASELINES)),
        *figures(results, metric, list(groups) if len(groups) > 1 else [], set(BASELINES), at=at),
    ]
    if trained.likelihood.name == "squared":
        sections.append(pictures(trained.name, trained.predict, few, names, [0, at]))
    return Outcome(results, sections, verdict)


def _groups(names: tuple[str, ...], group: torch.Tensor, most: int = 8) -> dict[str, list[int]]:
    """The largest groups, with their sizes, largest first."""
    counts = torch.bincount(group, minlength=len(names))
    order = counts.argsort(descending=True, stable=True)[:most].tolist()
    return {f"{names[i]} (n={int(counts[i])})": [i] for i in order if counts[i] > 1}
