"""A model of preferences on users it has not seen, beside what a user of it would pick instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.estimators.comparison import LEVEL, Judged, error_table, figures, ranked, rows_of
from warmstart.estimators.judging import interval
from warmstart.estimators.preference_judging import Data, Predictor, mse, predictor, split_data
from warmstart.estimators.preference_learner import PreferenceLearner
from warmstart.estimators.preference_model import TrainedPreferences
from warmstart.estimators.preference_rivals import BASELINES, fit_baselines
from warmstart.metrics.errors import absolute_error
from warmstart.metrics.intervals import coverage, paired, width
from warmstart.metrics.ranking import ndcg
from warmstart.report import Column, Row, called, make_results, make_row, table
from warmstart.report.page import Outcome, Section
from warmstart.tasks.cold_start import SIZES, Users, first
from warmstart.tasks.ratings import read_ratings, to_batch, to_stack
from warmstart.tasks.table import Source

METRIC, ALL = "MSE", "80 %"
RANKED = {"nDCG@3": 3, "nDCG@5": 5}


def evaluate(
    model: PreferenceLearner,
    ratings: Source,
    task_table: Source | None = None,
    item_table: Source | None = None,
    *,
    trials: int = 1,
    progress: Callable[[str], Any] | None = None,
) -> Outcome:
    """The tables given to fit: the model on users held out, against baselines tuned on its validation users."""
    trained = model.fitted
    data = _data(model, ratings, task_table, item_table)
    predictors = {
        trained.name: predictor(trained.method, trained.state),
        **fit_baselines(data, trials, model.seed, progress),
    }
    found = Judged({}, {}, {}, torch.zeros(len(data.test.shown.users), dtype=torch.long))
    for name, predict in predictors.items():
        found.errors[name] = {size: mse(predict, first(data.test, size)) for size in SIZES}
    _judge_intervals(found, trained, predictors[trained.name], data.test)
    rows = rows_of({model.seed: found}, METRIC, {}) + _rows_with_all(predictors, data.test, model.seed)
    results = make_results("evaluate", "full", "cpu", called(), rows)
    at = 5
    best = next(name for name in ranked(found.errors, at) if name in BASELINES)
    gain = paired(found.errors[trained.name][at], found.errors[best][at])
    verdict = (
        f"After {at} ratings of an unseen user, {trained.name} has a mean squared error of "
        f"{float(found.errors[trained.name][at].nanmean()):.3f}; the best baseline, {best}, "
        f"{float(found.errors[best][at].nanmean()):.3f} (difference {gain.mean:+.3f}, "
        f"95 % interval {gain.low:+.3f} to {gain.high:+.3f})."
    )
    columns = [Column(f"{metric}", metric, {"shown": ALL}, 3, "lower") for metric in (METRIC, "MAE")]
    columns += [Column(metric, metric, {"shown": ALL}, 3, "higher") for metric in RANKED]
    caption = f"With {ALL} of an unseen user's ratings shown"
    errors = error_table(results, METRIC, SIZES, set(BASELINES))
    assert errors.table is not None
    told = errors.table._replace(caption=f"{METRIC} on unseen users, by the number of ratings they have shown")
    sections = [
        Section("Unseen users, after a few ratings", table=told),
        Section("Errors and rankings", table=table(results, None, columns, set(BASELINES), caption=caption)),
        *figures(results, METRIC, [], set(BASELINES), at=at),
    ]
    return Outcome(results, sections, verdict)


def _data(model: PreferenceLearner, ratings: Source, task_table: Source | None, item_table: Source | None) -> Data:
    """The same split of the same tables."""
    trained = model.fitted
    users, items = len(trained.profile.names), len(trained.items.columns)
    for whose, columns, side in (("users", users, task_table), ("items", items, item_table)):
        if columns and side is None:
            raise InputError(f"the table of {whose} that the model was fitted with", "none", "pass it")
    again = read_ratings(ratings, trained.roles, task_table, item_table, trained.scale)
    data = split_data(again, model.seed, trained.roles.time is not None)
    if data.split != trained.split or not np.array_equal(again.items.index, trained.items.index):
        raise InputError("the tables that the model was fitted on", "others", "pass the tables given to fit")
    return data


def _judge_intervals(found: Judged, trained: TrainedPreferences, predict: Predictor, users: Users) -> None:
    batch = to_batch(users.asked)
    found.inside[trained.name], found.width[trained.name] = {}, {}
    for size in SIZES:
        some = first(users, size)
        said = predict(some)
        shown = torch.from_numpy(np.bincount(some.shown.user, minlength=len(some.shown.users)))
        stacked = type(said)(*(to_stack(users.asked, part) if isinstance(part, Tensor) else part for part in said))
        low, high = interval(trained.calibration, stacked, shown, LEVEL)
        found.inside[trained.name][size] = coverage(low, high, batch)
        limits = low.clamp(min=trained.scale[0]), high.clamp(max=trained.scale[1])
        found.width[trained.name][size] = width(*limits, batch)


def _rows_with_all(predictors: Mapping[str, Predictor], users: Users, seed: int) -> list[Row]:
    batch = to_batch(users.asked)
    rows = []
    for name, predict in predictors.items():
        mean = to_stack(users.asked, predict(users).mean.double())
        scores = {METRIC: mse(predict, users), "MAE": absolute_error(mean, batch)}
        scores |= {metric: ndcg(mean, batch, k) for metric, k in RANKED.items()}
        for metric, values in scores.items():
            kept = values[~values.isnan()]
            if len(kept):
                rows.append(make_row(name, {"shown": ALL}, metric, {seed: kept}))
    return rows
