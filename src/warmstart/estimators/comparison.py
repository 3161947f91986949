"""Methods side by side on the same held-out tasks: rows, figures and the sentence on top."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Likelihood, Task
from warmstart.estimators.judging import Calibration, Predictor, error, interval, reached
from warmstart.metrics.calibration import (
    Reliability,
    expected_calibration_error,
    maximum_calibration_error,
    reliability,
)
from warmstart.metrics.errors import probability_of_truth, target_variance
from warmstart.metrics.intervals import coverage, width
from warmstart.report import Column, Results, Row, make_row, table
from warmstart.report.chances import chances
from warmstart.report.figures import curves, error_curves, group_bars, scatters
from warmstart.report.figures import reliability as reliability_figure
from warmstart.report.page import Section
from warmstart.report.svg import looks
from warmstart.tasks.pool import limit_support

LEVEL = 0.9  # of the intervals that reports judge
ECE, MCE = "ECE", "MCE"
BINS = 10


class Judged(NamedTuple):
    """Every method on the held-out tasks of one seed."""

    errors: dict[str, dict[int, Tensor]]  # method -> support size -> [t]
    inside: dict[str, dict[int, Tensor]]  # share of rows inside the intervals
    width: dict[str, dict[int, Tensor]]
    group: Tensor  # [t]
    bins: dict[str, dict[int, Reliability]]  # of a target of classes


def judge(
    predictors: Mapping[str, Predictor],
    calibrations: Mapping[str, Calibration],
    task: Task,
    group: Tensor,
    likelihood: Likelihood,
    sizes: Sequence[int],
) -> Judged:
    """Errors (relative to the variance of y when squared) at every support size, and intervals where calibrated; of
    classes, how well probabilities are calibrated.

    As in `judging.errors`, NaN for a task that has fewer rows to show, and no size that none reaches.
    """
    unit = target_variance(task.query) if likelihood.name == "squared" else torch.ones(())
    found = Judged({}, {}, {}, group, {})
    for name, predict in predictors.items():
        found.errors[name] = {}
        for size, there in reached(task, sizes).items():
            shown = limit_support(task, size)
            said = predict(shown)
            found.errors[name][size] = torch.where(there, error(likelihood, said, task.query) / unit, torch.nan)
            if likelihood.name != "squared":
                query = task.query._replace(mask=task.query.mask * there[:, None])
                found.bins.setdefault(name, {})[size] = reliability(said.mean, query, BINS)
            if name in calibrations:
                low, high = interval(calibrations[name], said, shown.support.mask.sum(-1), LEVEL)
                found.inside.setdefault(name, {})[size] = torch.where(there, coverage(low, high, task.query), torch.nan)
                found.width.setdefault(name, {})[size] = torch.where(there, width(low, high, task.query), torch.nan)
    return found


def metric_of(likelihood: Likelihood) -> str:
    return "relative MSE" if likelihood.name == "squared" else "log loss"


def rows_of(
    judged: Mapping[int, Judged], metric: str, groups: Mapping[str, Collection[int]], fresh: bool = False
) -> list[Row]:
    """One row for each method, support size and group; a group is a name and the integers it covers."""
    first = next(iter(judged.values()))
    rows = []
    for name, by_size in first.errors.items():
        for size in by_size:
            for label, members in {"all": None, **groups}.items():
                kept = {seed: _kept(found.errors[name][size], found.group, members) for seed, found in judged.items()}
                if all(len(values) for values in kept.values()):
                    rows.append(make_row(name, {"samples": size, "group": label}, metric, kept, fresh_tasks=fresh))
            for metric_name, part in (("coverage", "inside"), ("width", "width")):
                if name in getattr(first, part):
                    values = {
                        seed: _kept(getattr(found, part)[name][size], found.group, None)
                        for seed, found in judged.items()
                    }
                    if all(len(one) for one in values.values()):
                        rows.append(
                            make_row(name, {"samples": size, "group": "all"}, metric_name, values, fresh_tasks=fresh)
                        )
            if name in first.bins:
                for metric_name, gap in ((ECE, expected_calibration_error), (MCE, maximum_calibration_error)):
                    gaps = {seed: gap(found.bins[name][size]) for seed, found in judged.items()}
                    rows.append(make_row(name, {"samples": size, "group": "all"}, metric_name, gaps))
    return rows


def _kept(values: Tensor, group: Tensor, members: Collection[int] | None) -> list[float]:
    chosen = values if members is None else values[torch.isin(group.cpu(), torch.tensor(sorted(members)))]
    return [float(value) for value in chosen if value == value]


def error_table(
    results: Results, metric: str, sizes: Sequence[int], baselines: Collection[str], reference: str = ""
) -> Section:
    """A column for each size at which something was judged."""
    found = {row.setting.get("samples") for row in results.rows if row.metric == metric}
    columns = [
        Column(f"{size}", metric, {"samples": size, "group": "all"}, 3, "lower") for size in sizes if size in found
    ]
    references = [reference] if reference else []
    made = table(
        results,
        columns=columns,
        baselines=baselines,
        references=references,
        caption=f"{metric} on unseen tasks, by the number of samples they have shown; a task with fewer is left out",
    )
    return Section("Unseen tasks, learned from a few samples", table=made)


def figures(
    results: Results,
    metric: str,
    groups: Sequence[str],
    baselines: Collection[str],
    reference: str = "",
    floor: float | None = None,
    at: int = 5,
    heading: str = "By group",
    order: str = "largest group first",
) -> list[Section]:
    """Error against samples, error by group, and coverage; `heading` and `order` tell what the groups are."""
    whole = [row for row in results.rows if row.setting.get("group") == "all"]
    lines = curves(whole, metric, "samples")
    optimum = lines.pop(reference, None)
    style = looks(list(lines), baselines)
    shown = [
        Section(
            svg=error_curves(lines, style, optimum, floor, "support samples", metric),
            caption="Error against the number of samples a new task has shown; bands are 95 % intervals.",
        )
    ]
    if groups:
        by = {
            (row.method, row.setting["group"]): row.interval
            for row in results.rows
            if row.metric == metric and row.setting.get("samples") == at
        }
        bars = {name: [by[name, group] for group in groups] for name in lines if all((name, g) in by for g in groups)}
        if bars:
            shown.append(
                Section(
                    heading,
                    svg=group_bars(groups, bars, style, y_label=metric),
                    caption=f"Error after {at} samples in each group, {order}.",
                )
            )
    held = [row for row in whole if row.metric == "coverage"]
    if held:
        columns = [
            Column(f"{row.setting['samples']}", "coverage", {"samples": row.setting["samples"]}, 3)
            for row in held
            if row.method == held[0].method
        ]
        caption = f"Share of unseen tasks' points inside their {LEVEL:.0%} intervals, by samples shown"
        if any(row.metric == "width" and not math.isfinite(row.mean) for row in whole):
            caption += "; too few validation tasks leave intervals without end, which hold every point"
        only = list(dict.fromkeys(row.method for row in held))
        shown.append(Section("How sure it is", table=table(results, only, columns, caption=caption)))
    return shown


def honesty(
    results: Results, bins: Mapping[str, dict[int, Reliability]], baselines: Collection[str], at: int
) -> Section:
    """Of a target of classes: calibration errors by samples, and the reliability after `at` of them."""
    columns = [Column(f"{size}", ECE, {"samples": size}, 3, "lower") for size in next(iter(bins.values()))]
    columns.append(Column(f"{MCE}, {at}", MCE, {"samples": at}, 3, "lower"))
    caption = "How far probabilities are from how often they come true, in the mean (ECE) by samples shown; last, in "
    caption += "the worst tenth of the scale that holds ten rows or more (MCE)"
    return Section(
        "How sure it is",
        table=table(results, list(bins), columns, baselines, caption=caption),
        svg=reliability_figure({name: found[at] for name, found in bins.items()}, looks(list(bins), baselines)),
        caption="How often the likeliest class was right, against the probability it was given, after "
        f"{at} samples: on the diagonal, probabilities mean what they say.",
    )


def pictures(name: str, predict: Predictor, task: Task, labels: Sequence[str], sizes: Sequence[int]) -> Section:
    """Predicted against true for a few tasks, before and after samples."""
    panels: dict[str, dict[str, tuple[list[float], list[float]]]] = {label: {} for label in labels}
    for size in sizes:
        said = predict(limit_support(task, size)).mean
        for i, label in enumerate(labels):
            real = task.query.mask[i] > 0
            panels[label][f"{size} samples"] = (task.query.y[i][real].tolist(), said[i][real].tolist())
    return Section(
        "A few adaptations",
        svg=scatters(panels),
        caption=f"{name}: predictions for rows of unseen tasks, before and after it has seen samples of them.",
    )


def class_pictures(
    name: str, predict: Predictor, task: Task, labels: Sequence[str], sizes: Sequence[int], classes: Sequence[str]
) -> Section:
    """The probability given to what came, for rows of a few tasks, before and after samples."""
    said = [probability_of_truth(predict(limit_support(task, size)).mean, task.query) for size in sizes]
    given = torch.stack(said, -1)  # [t, n, sizes]
    panels: dict[str, dict[str, list[list[float]]]] = {label: {} for label in labels}
    for i, label in enumerate(labels):
        for row in (task.query.mask[i] > 0).nonzero().squeeze(-1).tolist():
            panels[label].setdefault(classes[int(task.query.y[i, row])], []).append(given[i, row].tolist())
    return Section(
        "A few adaptations",
        svg=chances(panels, sizes),
        caption=f"{name}: the probability of the true class for rows of unseen tasks, before and after it has seen "
        "samples of them; the black line is the mean.",
    )


def ranked(errors: Mapping[str, dict[int, Tensor]], size: int) -> list[str]:
    """Methods by their mean error at a support size, best first."""
    return sorted(errors, key=lambda name: float(errors[name][size].nanmean()))
