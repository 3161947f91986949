"""Clean sources: six census states, each with all others as sources; is choosing among them worth anything?

Tables 4, 6 and 7 of the paper, with the rows that a sceptic asks for: target only, everything pooled, then
fine-tuned, sources in random order under the same rule, boosted trees with and without the state. Groups are races
with at least 200 test rows; gaps are between black and white. California is left out: its rows are biased.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from warmstart.core import InputError, check_names
from warmstart.engine.device import choose_device
from warmstart.engine.files import read_json, write_json
from warmstart.engine.loop import Report, silent
from warmstart.estimators.source_methods import (
    ALL,
    ALONE,
    BASELINES,
    MARGIN,
    METHODS,
    OURS,
    PAIRS,
    RANDOM,
    TREES,
    TREES_ALONE,
    TUNED,
    Plan,
    Session,
    fit_method,
)
from warmstart.metrics.groups import demographic_parity, equal_opportunity, worst_group
from warmstart.report import Column, Results, Row, called, make_results, table
from warmstart.report.page import Outcome, Section
from warmstart.selection import final, task_model, thresholds, training
from warmstart.selection.final import Fitted
from warmstart.selection.measures import cross_entropy, guess
from warmstart.studies.select_rows import ACCURACY, BEST, MEAN, VALIDATION, WORST, Score, judge, preferred, rows_of
from warmstart.tasks.acs_income import ROLES, STATE, read_acs_income
from warmstart.tasks.data_folder import given
from warmstart.tasks.transfer import Rows, Transfer, read_transfer

TARGETS = ("HI", "KS", "LA", "NJ", "NV", "SC")
LEFT_OUT = "CA"
PARITY, OPPORTUNITY = "demographic parity gap", "equal opportunity gap"
BLACK, WHITE = "2", "1"
THRESHOLDS = f"{TREES_ALONE}, group thresholds"
PRICED = f"{TREES_ALONE}, thresholds at a price"
PUBLISHED = {
    (MARGIN, WORST): "paper 76.5",
    (ALL, WORST): "paper 74.8",
    (ALONE, WORST): "paper 74.2",
    (MARGIN, PARITY): "paper 13.3",
    (MARGIN, OPPORTUNITY): "paper 10.7",
}


class Preset(NamedTuple):
    targets: tuple[str, ...]
    methods: tuple[str, ...]
    plan: Plan
    most: int | None = None  # rows of a source


QUICK = Plan(
    final.Config(training.Config(steps=300, batch=256), tuning=50),
    task_model.Config(
        subsets=100, held_out=20, starts=1, training=training.Config(hidden=(32,), steps=150, balance=0.0)
    ),
    trials=5,
    tree_rows=20_000,
)
FULL = Plan(final.Config(), task_model.Config(), trials=10, threads=max(1, (os.cpu_count() or 1) - 1))
PRESETS = {
    "quick": Preset(("HI",), (ALONE, ALL, TUNED, RANDOM, TREES_ALONE, TREES, OURS), QUICK, 3000),
    "full": Preset(TARGETS, tuple(METHODS), FULL),
}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """With a folder, a run that was interrupted goes on where it stopped. Exhaustive pairs on the first target only."""
    check_names(only, METHODS)
    data = given(data, "ACSIncome")
    began, chosen, place = time.perf_counter(), PRESETS[preset], choose_device(device)
    names = [name for name in METHODS if name in (only or chosen.methods)]
    people = read_acs_income(data)
    people = people[people[STATE] != LEFT_OUT].reset_index(drop=True)
    judged: dict[str, dict[tuple[int, str], Score]] = {name: {} for name in names}
    if TREES_ALONE in names:
        judged |= {THRESHOLDS: {}, PRICED: {}}
    for seed in seeds:
        for target in chosen.targets:
            transfer = read_transfer(people, ROLES, target, seed=seed, most=chosen.most).to(place)
            session = Session(transfer, cross_entropy, chosen.plan, seed, {}, {})
            report = (progress or (lambda label: silent))(f"{target}, seed {seed}")
            for i, name in enumerate(names):
                if name == PAIRS and target != chosen.targets[0]:
                    continue
                kept = None if folder is None else folder / f"seed {seed}" / target / f"{name}.json"
                for of, score in run_method(name, session, kept).items():
                    judged[of][seed, target] = score
                report(i + 1, len(names), name)
    if len(names) > 1:
        judged[BEST] = preferred({name: scores for name, scores in judged.items() if name not in (THRESHOLDS, PRICED)})
    rows = rows_of(judged, PUBLISHED)
    results = make_results("select_census", preset, str(place), called(), rows)
    return Outcome(results, sections(results, list(judged)), verdict(rows, time.perf_counter() - began))


def run_method(name: str, session: Session, kept: Path | None) -> dict[str, Score]:
    """Scores of the method, and of trees with thresholds by group beside them."""
    if kept is not None and kept.exists():
        found: dict[str, Score] = read_json(kept)
        if name != TREES_ALONE or PRICED in found:  # older runs had no such thresholds
            return found
    transfer = session.transfer
    fitted, told = fit_method(session, name)
    scores = {name: {VALIDATION: fitted.value} | judge(transfer, fitted) | gaps(transfer, fitted) | told}
    if name == TREES_ALONE:
        scores[THRESHOLDS] = with_thresholds(transfer, fitted)
        scores[PRICED] = with_price(transfer, fitted)
    if kept is not None:
        write_json(kept, scores)
    return scores


def _pair(transfer: Transfer) -> tuple[int, int]:
    return transfer.groups.index(BLACK), transfer.groups.index(WHITE)


def gaps(transfer: Transfer, fitted: Fitted) -> Score:
    """Percent points between black and white, on test rows."""
    test = transfer.test
    return _gaps(guess(fitted.outputs(test.x)), test, _pair(transfer))


def _gaps(said: Tensor, rows: Rows, pair: tuple[int, int]) -> Score:
    return {
        PARITY: 100 * float(demographic_parity(said, rows.group, pair)),
        OPPORTUNITY: 100 * float(equal_opportunity(said, rows.y, rows.group, pair)),
    }


class Scorer(BaseEstimator):  # type: ignore[misc]
    """What fairlearn takes for a classifier: scores that were made before."""

    def fit(self, x: Any, y: Any) -> Scorer:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, x: Any) -> Any:
        return np.asarray(x).reshape(-1)


def with_thresholds(transfer: Transfer, fitted: Fitted) -> Score:
    """A threshold for each race that makes true positive rates equal on validation rows (fairlearn)."""
    try:
        from fairlearn.postprocessing import ThresholdOptimizer
    except ImportError:
        remedy = "pip install 'warmstart[fairness]'"
        raise InputError("fairlearn for group thresholds", "none installed", remedy) from None
    validation, test = transfer.validation, transfer.test
    first, second = (torch.sigmoid(fitted.outputs(rows.x)).double().cpu().numpy() for rows in (validation, test))
    model = ThresholdOptimizer(
        estimator=Scorer(),
        constraints="true_positive_rate_parity",
        objective="accuracy_score",
        prefit=True,
        predict_method="predict",
    )
    model.fit(first, validation.y.cpu().numpy(), sensitive_features=_merged(transfer, validation))
    said = model.predict(second, sensitive_features=_merged(transfer, test), random_state=0)
    return _judge(torch.from_numpy(np.asarray(said)).to(test.y), transfer)


def with_price(transfer: Transfer, fitted: Fitted) -> Score:
    """Thresholds for black and white that close the gap on validation rows for the least accuracy."""
    validation, test = transfer.validation, transfer.test
    found = thresholds.fit(fitted.outputs(validation.x), validation, _pair(transfer))
    return _judge(thresholds.guess(fitted.outputs(test.x), test.group, found), transfer)


def _judge(guessed: Tensor, transfer: Transfer) -> Score:
    test = transfer.test
    right = float((guessed == test.y).double().mean())
    worst = float(worst_group(guessed, test.y, test.group))
    return {ACCURACY: 100 * right, WORST: 100 * worst} | _gaps(guessed, test, _pair(transfer))


def _merged(transfer: Transfer, rows: Rows) -> Any:
    """Black, white and the others: races of a few rows have no threshold of their own."""
    group, (black, white) = rows.group.cpu(), _pair(transfer)
    return torch.where(group == black, 1, torch.where(group == white, 0, 2)).numpy()


def sections(results: Results, names: Sequence[str]) -> list[Section]:
    baselines = [name for name in names if name in (*BASELINES, THRESHOLDS)]
    found = []
    pairs = [f"{ACCURACY} minus {other}" for other in (ALL, RANDOM, TREES)]
    columns = [Column(metric, metric, {"target": MEAN}, 2, "higher") for metric in (ACCURACY, WORST)]
    columns += [Column(metric, metric, {"target": MEAN}, 2) for metric in pairs]
    caption = "Percent of the target's test rows, mean over targets; differences are paired by seed and target"
    found.append(Section("Accuracy", table=table(results, names, columns, baselines, caption=caption)))
    gap = [Column(metric, metric, {"target": MEAN}, 1, "lower") for metric in (PARITY, OPPORTUNITY)]
    found.append(
        Section("Fairness", table=table(results, names, gap, baselines, caption="Black against white, points"))
    )
    each = [target for target in TARGETS if any(row.setting["target"] == target for row in results.rows)]
    worst = [Column(target, WORST, {"target": target}, 2, "higher") for target in each]
    found.append(Section("Worst group by target", table=table(results, names, worst, baselines)))
    return found


def verdict(rows: Sequence[Row], seconds: float) -> str:
    at = {(row.method, row.metric): row for row in rows if row.setting["target"] == MEAN}
    words = []
    if (BEST, ACCURACY) in at:
        words.append(
            f"the model that validation prefers reaches {at[BEST, ACCURACY].mean:.1f} and {at[BEST, WORST].mean:.1f}"
        )
    against = at.get((OURS, f"{ACCURACY} minus {RANDOM}"))
    if against is not None:
        worth = "worth something" if against.low > 0 else "not shown to be worth anything"
        words.append(f"choosing sources is {worth} on clean data, {against.mean:+.2f} points against random order")
    told = "; ".join(words) or f"rows of {len({row.method for row in rows})} methods"
    return f"{told[0].upper()}{told[1:]} ({seconds:.0f} s)."
