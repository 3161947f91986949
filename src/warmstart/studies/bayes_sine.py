"""Bayesian learners on sines: error, likelihood and intervals after 0 to 10 gradient steps on 10 points.

Figure 2(a) of Zou and Lu (2020), section 5.1: the default family, and a challenging one whose frequency varies too and
whose rows are noisy. Every row gets the same number of short trials on validation tasks, separately for each family,
judged by the squared error after ten steps. What does well for a while may not last, so the best few trials are
trained in full with the first seed, and the other seeds take the settings of the one that validation tasks find best.
Of every training the state is kept that was best on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.core import Learner, Prediction, Task, check_names
from warmstart.core.trees import tree_map
from warmstart.engine.device import choose_device
from warmstart.engine.jobs import config_hash
from warmstart.engine.loop import Diverged, Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.engine.stage import TRACED
from warmstart.estimators.judging import scale
from warmstart.metrics.errors import average, gaussian_nll, squared_error
from warmstart.metrics.intervals import conformal_quantile, coverage, gaussian, width
from warmstart.report import Column, Results, Row, called, differences, make_results, make_row, plain, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.studies.bayes_sine_rows import CONDITIONED, ENTRIES, GP, ZERO, Smoother, smooth
from warmstart.studies.sines import Training, fit
from warmstart.tasks import sine
from warmstart.training.search import Trial, search

FAMILIES = {"default": sine.DEFAULT, "challenging": sine.CHALLENGING}
SHOT, STEPS, LEVEL = 10, (0, 1, 3, 5, 10), 0.9
TEST, VALIDATION = 20_000, 30_000  # seeds of the tasks
LOOKED = 250  # validation tasks that choose among the states of a training
MSE, NLL, COVERAGE, WIDTH, OWN_NLL, OWN_COVERAGE = "MSE", "NLL", "coverage", "width", "own NLL", "own coverage"
TUNING = "validation MSE"  # of a trial
OURS, RIVALS = "gem_bml_plus", ("maml", "reptile", "abml", "bmaml")
BASELINES = (GP, ZERO)

Predictor: TypeAlias = Callable[[Task, int], Prediction]  # a stack of tasks, inner steps


class Preset(NamedTuple):
    methods: tuple[str, ...]
    families: tuple[str, ...]
    iterations: int
    tuning: int  # iterations of a trial
    trials: int
    tests: int
    tasks: int = 25
    finalists: int = 1  # trials that are trained in full


PRESETS = {
    "quick": Preset((OURS, "maml", "abml", "bmaml", "empirical_bayes"), ("challenging",), 40, 10, 2, 100, 5),
    "full": Preset(tuple(ENTRIES), tuple(FAMILIES), 40_000, 4_000, 10, 1000, finalists=3),
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
    size, where = PRESETS[preset], choose_device(device)
    check_names(only, (*ENTRIES, *size.families), "methods or families")
    bar = progress or (lambda label: silent)
    rows: list[Row] = []
    families = [label for label in size.families if label in only] or list(size.families)
    for label in families:
        drawn = [
            sine.draw(FAMILIES[label], size.tests, SHOT, 50, generator(seed), where) for seed in (VALIDATION, TEST)
        ]
        found: dict[str, dict[int, dict[tuple[str, int], Tensor]]] = {}
        for name in [name for name in only if name in ENTRIES] or list(size.methods):
            trials = tune(name, label, size, drawn[0], where, bar(f"tuning {name}, {label}"), folder)
            kept = final(name, trials, label, size, seeds[0], drawn[0], bar, folder)
            rows += trial_rows(name, label, trials, kept)
            for seed in seeds:
                report = bar(f"{name}, {label}, seed {seed}")
                predict = trained(name, trials[kept].config, label, size, seed, drawn[0], report, folder)
                found.setdefault(name, {})[seed] = judge(predict, *drawn)
        chosen, predict = tuned_smoother(size.trials, drawn[0])
        rows += trial_rows(GP, label, chosen)
        for name, said in {GP: predict, ZERO: _zero}.items():
            found[name] = dict.fromkeys(seeds, judge(said, *drawn))
        rows += [row for name, by_seed in found.items() for row in score_rows(name, label, by_seed)]
        rows += paired_rows(label, found)
    results = make_results("bayes_sine", preset, str(where), called(), rows)
    return Outcome(results, sections(results, families), verdict(results))


def tune(
    name: str, label: str, size: Preset, validation: Task, device: torch.device, bar: Report, folder: Path | None
) -> list[Trial]:
    """Short trainings, best first by squared error on the validation tasks after ten steps."""
    entry, training = ENTRIES[name], Training(FAMILIES[label], SHOT, size.tuning, size.tasks)

    def value(config: Any) -> float:
        stage = TRACED if device.type == "cuda" else None  # where compiling takes longer than a trial; None: by length
        learner, state = fit(entry.build, config, training, 0, device, fast=entry.fast, stage=stage)
        return far(name, validation, learner, state)

    if size.trials == 1 or not entry.space:
        return [Trial(entry.config, float("nan"))]
    store = None if folder is None else folder / f"{size.tuning}-tuning-{name}-{label}.json"
    return search(value, entry.config, entry.space, size.trials, 0, store, bar)


def final(
    name: str,
    trials: Sequence[Trial],
    label: str,
    size: Preset,
    seed: int,
    validation: Task,
    bar: Callable[[str], Report],
    folder: Path | None,
) -> int:
    """Which of the best trials is best on the validation tasks when it is trained in full."""

    def value(place: int) -> float:
        report = bar(f"{name}, {label}, finalist {place}")
        predict = trained(name, trials[place].config, label, size, seed, validation, report, folder)
        found = math.inf if predict is None else error(predict, validation)
        return found if math.isfinite(found) else math.inf

    places = range(min(size.finalists, len(trials)))
    return min(places, key=value) if len(places) > 1 else 0


def trained(
    name: str,
    config: Any,
    label: str,
    size: Preset,
    seed: int,
    validation: Task,
    bar: Report,
    folder: Path | None,
) -> Predictor | None:
    """In full; None when it diverged before it was looked at, which is a result."""
    entry, training = ENTRIES[name], Training(FAMILIES[label], SHOT, size.iterations, size.tasks)
    some, device = tree_map(lambda leaf: leaf[:LOOKED], validation), validation.query.y.device
    made = config_hash(asdict(config))
    kept = None if folder is None else folder / f"{size.iterations}-{name}-{label}-{seed}-{made}"
    try:
        fitted = fit(
            entry.build, config, training, seed, device, bar, kept, entry.fast, validate=partial(far, name, some)
        )
        return predictor(name, *fitted)
    except Diverged:
        return None


def far(name: str, tasks: Task, learner: Learner, state: Any) -> float:
    """How far predictions are after ten steps: the mean squared error."""
    return error(predictor(name, learner, state), tasks)


def error(predict: Predictor, tasks: Task) -> float:
    return float(squared_error(predict(tasks, STEPS[-1]).mean, tasks.query).mean())


def predictor(name: str, learner: Learner, state: Any) -> Predictor:
    def call(task: Task, steps: int) -> Prediction:
        # conditioning is exact: it is done once, however many steps the others take
        count = min(steps, 1) if name in CONDITIONED else steps
        return predict_stack(learner, state, task, steps=count, chunk=250)

    return call


def tuned_smoother(trials: int, validation: Task) -> tuple[list[Trial], Predictor]:
    """A Gaussian process on the support alone, with as many trials as everybody."""

    def value(config: Smoother) -> float:
        return float(squared_error(smooth(config, validation).mean, validation.query).mean())

    found = search(value, Smoother(), Smoother.SPACE, trials)
    return found, lambda task, steps: smooth(found[0].config, task)


def _zero(task: Task, steps: int) -> Prediction:
    return Prediction(torch.zeros_like(task.query.y))


def judge(predict: Predictor | None, validation: Task, test: Task) -> dict[tuple[str, int], Tensor]:
    """Every score of every test task, by metric and steps.

    What a method says of its spread, 1 everywhere where it says nothing, is a scale: its likelihood is that of a
    normal with this scale times one factor, and its interval reaches so many scales, both taken from the
    validation tasks. `own` scores take the method by its word.
    """
    found: dict[tuple[str, int], Tensor] = {}
    for steps in STEPS:
        if predict is None:
            nothing = torch.full((len(test.key),), float("nan"))
            found |= {(metric, steps): nothing for metric in (MSE, NLL, COVERAGE, WIDTH)}
            continue
        before, said = predict(validation, steps), predict(test, steps)
        away, unit = (validation.query.y - before.mean).abs() / scale(before), scale(said)
        factor = average(away**2, validation.query).mean()
        reach = conformal_quantile(away, validation.query.mask, LEVEL)
        low, high = said.mean - reach * unit, said.mean + reach * unit
        scores = {
            MSE: squared_error(said.mean, test.query),
            NLL: gaussian_nll(said.mean, factor * unit**2, test.query),
            COVERAGE: 100 * coverage(low, high, test.query),
            WIDTH: width(low, high, test.query),
        }
        if isinstance(said.variance, Tensor):
            scores[OWN_NLL] = gaussian_nll(said.mean, said.variance, test.query)
            scores[OWN_COVERAGE] = 100 * coverage(*gaussian(said.mean, said.variance, LEVEL), test.query)
        found |= {(metric, steps): values.cpu() for metric, values in scores.items()}
    return found


def score_rows(name: str, label: str, by_seed: Mapping[int, Mapping[tuple[str, int], Tensor]]) -> list[Row]:
    rows = []
    for metric, steps in max(by_seed.values(), key=len):  # a training that diverged says nothing of its own spread
        setting = {"family": label, "steps": steps}
        values = {
            seed: scores.get((metric, steps), torch.full_like(scores[MSE, steps], torch.nan)).tolist()
            for seed, scores in by_seed.items()
        }
        rows.append(make_row(name, setting, metric, values, "%" if "coverage" in metric else ""))
    return rows


def paired_rows(label: str, found: Mapping[str, Mapping[int, Mapping[tuple[str, int], Tensor]]]) -> list[Row]:
    """Ours less a rival's, task by task, after the last step."""
    last, setting = STEPS[-1], {"family": label, "steps": STEPS[-1]}
    rows = []
    for rival in RIVALS:
        if OURS in found and rival in found:
            for metric in (MSE, NLL):
                ours, theirs = ({s: v[metric, last] for s, v in found[name].items()} for name in (OURS, rival))
                pairs = differences(ours, theirs)
                rows.append(make_row(f"{OURS} less {rival}", setting, f"{metric} difference", pairs))
    return rows


def trial_rows(name: str, label: str, trials: Sequence[Trial], kept: int = 0) -> list[Row]:
    """Best first; `kept` is the one that all seeds were trained with."""
    varied = Smoother.SPACE if name == GP else ENTRIES[name].space

    def settings(config: Any) -> str:
        return ", ".join(f"{key} {value}" for key, value in asdict(config).items() if key in varied) or "the paper's"

    return [
        make_row(
            name,
            {"family": label, "trial": i, "settings": settings(trial.config), "kept": i == kept},
            TUNING,
            {0: trial.value},
        )
        for i, trial in enumerate(trials)
    ]


def sections(results: Results, families: Sequence[str]) -> list[Section]:
    found = []
    for label in families:
        for metric, better in ((MSE, "lower"), (NLL, "lower"), (COVERAGE, ""), (WIDTH, "lower")):
            columns = [Column(f"{k} steps", metric, {"family": label, "steps": k}, 3, better) for k in STEPS]
            rows = [row for row in results.rows if row.metric == metric and row.setting["family"] == label]
            names = list(dict.fromkeys(row.method for row in rows))
            picture = error_curves(curves(rows, metric, "steps"), x_label="gradient steps", y_label=metric)
            made = table(results, names, columns, BASELINES, caption=f"{metric}, {label} family, {SHOT} points")
            found.append(Section(f"{metric}, {label} family", table=made, svg=picture))
    pairs = [row for row in results.rows if row.metric.endswith("difference")]
    lines = [
        [row.method, str(row.setting["family"]), row.metric, f"{row.mean:.3f} ({row.low:.3f} to {row.high:.3f})"]
        for row in pairs
    ]
    if lines:
        head = ["methods", "family", "metric", "mean and 95 % interval"]
        found.append(Section("Paired differences", table=plain(head, lines, f"After {STEPS[-1]} steps, task by task")))
    best = [row for row in results.rows if row.metric == TUNING and row.setting["kept"]]
    lines = [
        [
            r.method,
            *(str(r.setting[key]) for key in ("family", "settings")),
            f"{r.mean:.3f}" if r.mean == r.mean else "",
        ]
        for r in best
    ]
    found.append(
        Section("Settings", table=plain(["method", "family", "chosen", TUNING], lines, "Of the trials, as kept"))
    )
    return found


def verdict(results: Results) -> str:
    label = str(results.rows[-1].setting["family"])
    wanted = {"family": label, "steps": STEPS[-1]}
    at = {row.method: row.mean for row in results.rows if row.metric == MSE and row.setting == wanted}
    learners = {name: value for name, value in at.items() if name not in BASELINES and value == value}
    if not learners:
        return "Nothing was trained to the end."
    best = min(learners, key=lambda name: learners[name])
    return (
        f"From {SHOT} points of an unseen sine of the {label} family and {STEPS[-1]} steps, {best} reaches an MSE of "
        f"{learners[best]:.3g}; a Gaussian process on the points alone {at[GP]:.3g}."
    )
