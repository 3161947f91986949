"""A model of preferences on users it has not seen, beside what a user of it would pick instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.estimators.comparison import LEVEL, Judged, figures, ranked, rows_of
from warmstart.estimators.judging import Calibration, interval
from warmstart.estimators.preference_chances import Chances, put_right_by
from warmstart.estimators.preference_judging import METRIC, Data, Predictor, errors_of, predictor, split_data
from warmstart.estimators.preference_learner import PreferenceLearner
from warmstart.estimators.preference_model import TrainedPreferences
from warmstart.estimators.preference_rivals import fit_baselines
from warmstart.metrics.calibration import reliability
from warmstart.metrics.errors import absolute_error, log_loss, squared_error
from warmstart.metrics.intervals import coverage, paired, width
from warmstart.metrics.ranking import auc, ndcg, pooled_auc, weighted_entropy
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import reliability as reliability_figure
from warmstart.report.page import Outcome, Section
from warmstart.report.svg import looks
from warmstart.tasks.clicks import EVENTS
from warmstart.tasks.cold_start import SIZES, Users, first
from warmstart.tasks.ratings import read_ratings, to_batch, to_stack
from warmstart.tasks.table import Source

ALL = "80 %"
AT = 5  # events after which the verdict is given
RANKED = {"nDCG@3": 3, "nDCG@5": 5}
POOLED, WITHIN, ENTROPY = "AUC", "AUC per user", "weighted entropy"
BETTER = {"MSE": "lower", "MAE": "lower", "log loss": "lower", ENTROPY: "lower"}  # else higher
SHOWN = {  # with all that users may show
    "squared": ("MSE", "MAE", *RANKED),
    "binary": ("log loss", POOLED, WITHIN, ENTROPY),
}
ERROR = {"squared": "mean squared error", "binary": "log loss"}


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
    metric = METRIC[trained.kind]
    data = _data(model, ratings, task_table, item_table)
    predictors = {trained.name: _as_told(trained), **fit_baselines(data, trials, model.seed, progress)}
    found = Judged({}, {}, {}, torch.zeros(len(data.test.shown.users), dtype=torch.long), {})
    for name, predict in predictors.items():
        found.errors[name] = {size: errors_of(predict, first(data.test, size)) for size in SIZES}
    if isinstance(trained.calibration, Calibration):
        _judge_intervals(found, trained, trained.calibration, predictors[trained.name], data.test)
    rows = rows_of({model.seed: found}, metric, {})
    for name, predict in predictors.items():
        rows += _rows(name, {"shown": ALL}, _scores(predict, data.test), model.seed)
        for size in SIZES if trained.kind == "binary" else ():
            scores = _scores(predict, first(data.test, size))
            order = {metric: scores[metric] for metric in (POOLED, WITHIN)}
            rows += _rows(name, {"samples": size, "group": "all"}, order, model.seed)
    results = make_results("evaluate", "full", "cpu", called(), rows)
    return Outcome(results, _sections(results, predictors, data.test), _verdict(found, trained))


def _as_told(trained: TrainedPreferences) -> Predictor:
    """What users of the model are told: of clicks, chances that were put right."""
    predict = predictor(trained.method, trained.state)
    return put_right_by(predict, trained.calibration) if isinstance(trained.calibration, Chances) else predict


def _verdict(found: Judged, trained: TrainedPreferences) -> str:
    best = next(name for name in ranked(found.errors, AT) if name != trained.name)
    ours, theirs = (found.errors[name][AT] for name in (trained.name, best))
    gain = paired(ours, theirs)
    return (
        f"After {AT} {EVENTS[trained.kind]} of an unseen user, {trained.name} has a {ERROR[trained.kind]} of "
        f"{float(ours.nanmean()):.3f}; the best baseline, {best}, {float(theirs.nanmean()):.3f} "
        f"(difference {gain.mean:+.3f}, 95 % interval {gain.low:+.3f} to {gain.high:+.3f})."
    )


def _sections(results: Results, predictors: Mapping[str, Predictor], users: Users) -> list[Section]:
    """By what was shown, errors and orders with all of it, curves and, of clicks, whether chances came true."""
    kind, baselines = users.asked.kind, set(list(predictors)[1:])
    metric, events = METRIC[kind], EVENTS[kind]

    def by_size(name: str, better: str) -> Section:
        columns = [Column(f"{size}", name, {"samples": size, "group": "all"}, 3, better) for size in SIZES]
        caption = f"{name} on unseen users, by the number of {events} they have shown"
        return Section("", table=table(results, None, columns, baselines, caption=caption))

    columns = [Column(name, name, {"shown": ALL}, 3, BETTER.get(name, "higher")) for name in SHOWN[kind]]
    caption = f"With {ALL} of an unseen user's {events} shown"
    found = [
        by_size(metric, "lower")._replace(heading=f"Unseen users, after a few {events}"),
        Section("Errors and rankings", table=table(results, None, columns, baselines, caption=caption)),
        *figures(results, metric, [], baselines, at=AT),
    ]
    if kind == "squared":
        return found
    batch = to_batch(users.asked)
    bins = {
        name: reliability(to_stack(users.asked, predict(users).mean.double()), batch, bins=10)
        for name, predict in predictors.items()
    }
    sure = Section(
        "How sure it is",
        svg=reliability_figure(bins, looks(list(predictors), baselines)),
        caption="How often the likelier of a click and none came, against the chance it was given: on the diagonal, "
        "chances mean what they say.",
    )
    return [*found, by_size(POOLED, "higher"), by_size(WITHIN, "higher"), sure]


def _data(model: PreferenceLearner, ratings: Source, task_table: Source | None, item_table: Source | None) -> Data:
    """The same split of the same tables."""
    trained = model.fitted
    users, items = len(trained.profile.names), len(trained.items.columns)
    for whose, columns, side in (("users", users, task_table), ("items", items, item_table)):
        if columns and side is None:
            raise InputError(f"the table of {whose} that the model was fitted with", "none", "pass it")
    scale = trained.scale if trained.kind == "squared" else None
    again = read_ratings(ratings, trained.roles, task_table, item_table, scale, trained.kind)
    data = split_data(again, model.seed, trained.roles.time is not None, trained.roles.context)
    if data.split != trained.split or not np.array_equal(again.items.index, trained.items.index):
        raise InputError("the tables that the model was fitted on", "others", "pass the tables given to fit")
    return data


def _judge_intervals(
    found: Judged, trained: TrainedPreferences, calibration: Calibration, predict: Predictor, users: Users
) -> None:
    batch = to_batch(users.asked)
    found.inside[trained.name], found.width[trained.name] = {}, {}
    for size in SIZES:
        some = first(users, size)
        said = predict(some)
        shown = torch.from_numpy(np.bincount(some.shown.user, minlength=len(some.shown.users)))
        stacked = type(said)(*(to_stack(users.asked, part) if isinstance(part, Tensor) else part for part in said))
        low, high = interval(calibration, stacked, shown, LEVEL)
        found.inside[trained.name][size] = coverage(low, high, batch)
        limits = low.clamp(min=trained.scale[0]), high.clamp(max=trained.scale[1])
        found.width[trained.name][size] = width(*limits, batch)


def _scores(predict: Predictor, users: Users) -> dict[str, Tensor]:
    """Every metric, one number per user; the pooled AUC is one for all."""
    batch = to_batch(users.asked)
    mean = to_stack(users.asked, predict(users).mean.double())
    if users.asked.kind == "binary":
        pooled = torch.tensor([pooled_auc(mean, batch)])
        return {
            "log loss": log_loss(mean, batch),
            POOLED: pooled,
            WITHIN: auc(mean, batch),
            ENTROPY: weighted_entropy(mean, batch),
        }
    scores = {"MSE": squared_error(mean, batch), "MAE": absolute_error(mean, batch)}
    return scores | {name: ndcg(mean, batch, k) for name, k in RANKED.items()}


def _rows(name: str, setting: Mapping[str, Any], scores: Mapping[str, Tensor], seed: int) -> list[Row]:
    kept = {metric: values[~values.isnan()] for metric, values in scores.items()}
    return [make_row(name, setting, metric, {seed: values}) for metric, values in kept.items() if len(values)]
