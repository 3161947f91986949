"""The simulated population: every learner and every baseline against the exact Bayes prediction.

Six unequal groups of tasks over shared nonlinear features (tasks/population.py), whose optimum is
known. What counts is the share of the gap between the best tuned baseline and that optimum which a
learner closes, overall and in the small groups, at 5 and at 10 samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from warmstart.core import Prediction, Task, check_names
from warmstart.core.trees import take, to_device
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.estimators.choosing import run_id, tune
from warmstart.estimators.comparison import Judged, error_table, figures, judge, pictures, rows_of
from warmstart.estimators.fitting import (
    Problem,
    fingerprint,
    fit_method,
    predictor,
    runner,
    sees_descriptor_in_rows,
)
from warmstart.estimators.judging import SIZES, Calibration, Predictor, calibrate, held_out
from warmstart.estimators.methods import Network, configure, find
from warmstart.estimators.rivals import BASELINES, fit_baselines
from warmstart.models.likelihoods import squared
from warmstart.report import Row, called, make_results, make_row, plain
from warmstart.report.page import Outcome, Section
from warmstart.tasks.population import SHARES, SMALL, Population, exact_bayes, population
from warmstart.training.train import Plan

OPTIMUM = "exact Bayes"
AT = (5, 10)  # samples at which the gap counts
METRIC, GAP = "relative MSE", "gap closed"
GROUPS = {f"{share:.0%} group": [i] for i, share in enumerate(SHARES)} | {"small": list(SMALL)}


class Preset(NamedTuple):
    methods: tuple[str, ...]
    plan: Plan
    trials: int  # for each method and each baseline
    search: Plan  # shorter training while tuning
    settings: Mapping[str, Mapping[str, Any]] = {}  # of some methods, where they are not the defaults
    train: int = 2000
    test: int = 500


ALL = ("empirical_bayes", "maml", "fomaml", "anil", "reptile", "imaml", "meta_sgd", "pretrain", "scratch")
QUICK = Plan(steps=60, tasks=32, every=30)
PRESETS = {
    "demo": Preset(("empirical_bayes", "pretrain"), Plan(steps=1000, tasks=64, every=100), 1, QUICK),
    "quick": Preset(ALL, QUICK, 1, QUICK, train=300, test=100),
    "full": Preset(
        ALL,
        Plan(steps=6000, tasks=64, every=250, patience=8),
        10,
        Plan(steps=1500, tasks=64, every=250),
        {"empirical_bayes": {"members": 8}},
    ),
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
    """With a folder, a run that was interrupted goes on where it stopped."""
    chosen = PRESETS[preset]
    check_names(only, (*ALL, *BASELINES))
    methods = tuple(only) or (*chosen.methods, *BASELINES)
    began = time.perf_counter()
    judged: dict[int, Judged] = {}
    shown: list[Section] = []
    for seed in seeds:
        judged[seed], picture = run_seed(chosen, methods, seed, choose_device(device), progress, folder)
        shown = shown or [picture]
    rows = rows_of(judged, METRIC, GROUPS, fresh=True)
    rows += gap_rows(rows)
    where = str(choose_device(device))
    results = make_results("population", preset, where, called(), rows)
    baselines = set(BASELINES)
    groups = [name for name in GROUPS if name != "small"]
    sections = [
        error_table(results, METRIC, SIZES, baselines, OPTIMUM),
        *gap_section(rows),
        *figures(results, METRIC, groups, baselines, OPTIMUM, at=AT[0]),
        *shown,
    ]
    return Outcome(results, sections, verdict(rows, time.perf_counter() - began), gap_rows)


def run_seed(
    preset: Preset,
    methods: Sequence[str],
    seed: int,
    device: torch.device,
    progress: Callable[[str], Report] | None,
    folder: Path | None,
) -> tuple[Judged, Section]:
    """Tune on validation tasks, train, and judge once on the test tasks."""
    bar = progress or (lambda label: silent)
    drawn: Population = population(seed, preset.train, 200, preset.test)
    problem = Problem(drawn.train, drawn.validation, drawn.columns, drawn.descriptor_columns, squared)
    plan = preset.plan
    place = None if folder is None else folder / fingerprint(problem, plan, seed, Network(), None)
    predictors: dict[str, Predictor] = {}
    calibrations: dict[str, Calibration] = {}
    validation = held_out(drawn.validation, plan.support, plan.query, seed)
    baselines = [name for name in methods if name in BASELINES]
    for name in [name for name in methods if name not in BASELINES]:
        config = configure(find(name).config, preset.settings.get(name, {}))
        if preset.trials > 1:
            run = runner(problem, preset.search, seed=seed, device=device)
            method, report = find(name)._replace(config=config), bar(f"tuning {name}, seed {seed}")
            config = tune(name, method, run, preset.trials, seed, place, report)[0].config
        kept = None if place is None else place / "final" / run_id(name, config)
        report = bar(f"training {name}, seed {seed}")
        predictors[name] = _on_cpu(name, config, problem, plan, seed, device, kept, report)
        calibrations[name] = calibrate(predictors[name], validation, SIZES)
    predictors |= fit_baselines(problem, plan, preset.trials, seed, baselines, place, progress)
    predictors[OPTIMUM] = lambda task: _exact(drawn, task)
    task = held_out(drawn.test, plan.support, plan.query, seed)
    found = judge(predictors, calibrations, task, drawn.test.group, squared, SIZES)
    ours = methods[0]
    few = [int((drawn.test.group == g).nonzero()[0]) for g in (0, 2, 5)]
    labels = [f"{SHARES[g]:.0%} group" for g in (0, 2, 5)]
    return found, pictures(ours, predictors[ours], take(task, torch.tensor(few)), labels, [0, *AT])


def _on_cpu(
    name: str,
    config: Any,
    problem: Problem,
    plan: Plan,
    seed: int,
    device: torch.device,
    folder: Path | None,
    bar: Report,
) -> Predictor:
    learner, trained = fit_method(name, config, problem, plan, seed=seed, device=device, folder=folder, progress=bar)
    predict = predictor(name, learner, trained.state, sees_descriptor_in_rows(name, problem))

    def call(task: Task) -> Prediction:
        said: Prediction = to_device(predict(to_device(task, device)), "cpu")
        return said

    return call


def _exact(drawn: Population, task: Task) -> Prediction:
    said = exact_bayes(drawn.truth, task)
    return Prediction(said.mean.float(), said.variance.float())


def gap_rows(rows: Sequence[Row]) -> list[Row]:
    """The share of the gap between the best baseline and the optimum that each learner closes, by seed.

    Seeds count in which the learner, the optimum and every baseline have a row: they may come from several runs.
    """
    settings = [{"samples": size, "group": label} for size in AT for label in ("all", "small")]
    found = []
    for setting in settings:
        by_method = {
            row.method: dict(zip(row.seeds, row.values, strict=True))
            for row in rows
            if row.metric == METRIC and row.setting == setting
        }
        for method in [name for name in by_method if name in ALL]:
            needed = [by_method.get(name, {}) for name in (method, OPTIMUM, *BASELINES)]
            closed = {}
            for seed in set.intersection(*(set(values) for values in needed)):
                mean, optimum, *baselines = (values[seed] for values in needed)
                closed[seed] = (min(baselines) - mean) / (min(baselines) - optimum)
            if closed:
                found.append(make_row(method, setting, GAP, closed))
    return found


def gap_section(rows: Sequence[Row]) -> list[Section]:
    found = [row for row in rows if row.metric == GAP]
    settings = [(size, label) for size in AT for label in ("all", "small")]
    lines = []
    for method in dict.fromkeys(row.method for row in found):
        mean = {(row.setting["samples"], row.setting["group"]): row.mean for row in found if row.method == method}
        lines.append([method, *(f"{mean[setting]:.0%}" for setting in settings)])
    head = [
        "method",
        *(f"{size} samples, {'all tasks' if label == 'all' else 'small groups'}" for size, label in settings),
    ]
    caption = "Share closed of the gap between the best baseline and the exact Bayes prediction"
    return [Section("How much of what is possible", table=plain(head, lines, caption))] if lines else []


def verdict(rows: Sequence[Row], seconds: float) -> str:
    setting = {"samples": AT[0], "group": "all"}
    found = [row for row in rows if row.metric == GAP and row.setting == setting]
    if not found:
        return f"The share of the gap that is closed needs all baselines in the folder's results ({seconds:.0f} s)."
    best = max(found, key=lambda row: row.mean)
    return (
        f"From {AT[0]} samples of an unseen task, {best.method} closes {best.mean:.0%} of the gap between the best "
        f"baseline and the best prediction there is ({seconds:.0f} s)."
    )
