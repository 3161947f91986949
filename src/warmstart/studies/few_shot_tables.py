"""What the few-shot picture studies show: rows, a table and a reliability diagram for each setting, a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Batch
from warmstart.core.trees import concat
from warmstart.metrics import calibration
from warmstart.report import Column, Results, Row, make_row, table
from warmstart.report.figures import reliability as reliability_figure
from warmstart.report.page import Section
from warmstart.studies.few_shot_rows import Setting, is_baseline, plain_name

ACCURACY, ALONE, APART = "accuracy", "accuracy, alone", "accuracy, apart"
NLL, ECE, MCE = "NLL", "ECE", "MCE"
BY_CHANCE = "MCE, by chance"  # what honest probabilities, as sure as the calibrated ones, would have of as many rows
CALIBRATED = ", calibrated"  # all probabilities to a power that the validation classes settle
MANY = ", many tasks"  # of test tasks drawn for calibration alone: the widest bin of a thousand tasks is partly chance


class Said(NamedTuple):
    """Class probabilities of the query pictures of tasks."""

    probability: Tensor  # [t, n, classes]
    calibrated: Tensor  # [t, n, classes] to the power that is best on validation classes
    query: Batch  # [t, n] without its pictures


class Judged(NamedTuple):
    """A method on the test tasks of one setting and seed."""

    accuracy: Tensor  # [t]
    alone: Tensor  # [t] each of some query pictures seen with the support only
    nll: Tensor  # [t]
    said: Said
    apart: Tensor = torch.empty(0)  # [t] accuracy in tasks of which no class is another one turned
    many: Said | tuple[()] = ()  # of many more tasks, where the study asks for them


def rows_of(
    name: str, setting: Setting, by_seed: Mapping[int, Judged], published: Mapping[tuple[str, int, int], float]
) -> list[Row]:
    """Accuracies in percent and log loss over tasks; calibration errors over all rows."""
    where: dict[str, Any] = {"way": setting.way, "shot": setting.shot}
    number = published.get((plain_name(name), *setting))
    peer = "" if number is None else f"paper {number}"

    def over_tasks(metric: str, field: str, factor: float, unit: str, peer: str = "") -> Row:
        values = {seed: (factor * getattr(judged, field)).tolist() for seed, judged in by_seed.items()}
        return make_row(name, where, metric, values, unit, peer)

    def over_rows(said: Mapping[int, Said], ending: str) -> list[Row]:
        given = {seed: calibration.reliability(one.probability, one.query) for seed, one in said.items()}
        better = {seed: calibration.reliability(one.calibrated, one.query) for seed, one in said.items()}
        return [
            make_row(name, where, metric + ending, {seed: error(bins) for seed, bins in found.items()})
            for metric, error, found in (
                (ECE, calibration.expected_calibration_error, given),
                (MCE, calibration.maximum_calibration_error, given),
                (ECE + CALIBRATED, calibration.expected_calibration_error, better),
                (MCE + CALIBRATED, calibration.maximum_calibration_error, better),
                (BY_CHANCE, calibration.maximum_error_by_chance, better),
            )
        ]

    many = {seed: one.many for seed, one in by_seed.items() if one.many}
    return [
        over_tasks(ACCURACY, "accuracy", 100.0, "%", peer),
        over_tasks(ALONE, "alone", 100.0, "%"),
        *([over_tasks(APART, "apart", 100.0, "%", peer)] if all(len(one.apart) for one in by_seed.values()) else []),
        over_tasks(NLL, "nll", 1.0, ""),
        *over_rows({seed: one.said for seed, one in by_seed.items()}, ""),
        *(over_rows(many, MANY) if many else []),
    ]


def sections(
    results: Results, settings: Sequence[Setting], found: Mapping[tuple[str, Setting], Mapping[int, Judged]]
) -> list[Section]:
    """A table and a reliability diagram for each setting."""
    shown, simple = [], {row.method for row in results.rows if is_baseline(row.method)}
    for setting in settings:
        where: dict[str, Any] = {"way": setting.way, "shot": setting.shot}
        columns = [
            Column("accuracy (%)", ACCURACY, where, 2, "higher"),
            Column("each picture alone (%)", ALONE, where, 2, "higher"),
            Column("NLL", NLL, where, 3, "lower"),
        ]
        if any(row.metric == APART for row in results.rows):
            columns.insert(2, Column("no class another one turned (%)", APART, where, 2, "higher"))
        for ending in ("", MANY) if any(row.metric.endswith(MANY) for row in results.rows) else ("",):
            errors = (ECE, MCE, ECE + CALIBRATED, MCE + CALIBRATED)
            columns += [Column(metric + ending, metric + ending, where, 3, "lower") for metric in errors]
            columns.append(Column(BY_CHANCE + ending, BY_CHANCE + ending, where, 3))
        made = table(results, columns=columns, baselines=simple, caption=f"{setting.label}, unseen classes")
        bins = {
            name: calibration.reliability(*concat([(one.said.probability, one.said.query) for one in by_seed.values()]))
            for (name, which), by_seed in found.items()
            if which == setting
        }
        picture = reliability_figure(bins) if bins else ""
        shown.append(
            Section(
                setting.label,
                PROSE,
                made,
                picture,
                "How often the likeliest class was right, by the probability it was given",
            )
        )
    return shown


PROSE = (
    "Networks are normalised by the statistics of the pictures they are given: all query pictures of a task together, "
    "which tells them something of the classes' shares, or each query picture alone with the support. Where classes "
    "were turned to make more, a task may hold one of them turned two ways, and a circle turned is the same circle; "
    "one column has tasks without, as the code of MAML's paper draws them. Calibrated: with all probabilities raised "
    "to one power, settled on the validation classes. By chance: the widest gap that honest probabilities of the same "
    "sureness would show. Many tasks: on so many more that chance hardly shows. Warped: trained on pictures that are "
    "turned, moved, stretched and slanted a little, colour ones mirrored too, anew at every draw; those judged are as "
    "they came. Mirrored: so too, and every other class of a task, by chance, is its mirror image."
)


def verdict(rows: Sequence[Row], setting: Setting) -> str:
    at = {
        row.method: row.mean
        for row in rows
        if row.metric == ACCURACY and row.mean == row.mean and row.setting == {"way": setting.way, "shot": setting.shot}
    }
    ours = {name: value for name, value in at.items() if not is_baseline(name)}
    theirs = {name: value for name, value in at.items() if is_baseline(name)}
    said = []
    if ours:
        best = max(ours, key=lambda name: ours[name])
        said.append(f"{setting.label} on unseen classes: {best} is right on {ours[best]:.1f} %")
    if theirs:
        best = max(theirs, key=lambda name: theirs[name])
        said.append(f"the best baseline, {best}, on {theirs[best]:.1f} %")
    return "; ".join(said) + "." if said else "Nothing was run."
