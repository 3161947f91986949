"""The baselines of every report, tuned like the methods they are held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from warmstart.baselines import boosting, global_mean, pooled_ridge, task_mean, task_ridge
from warmstart.engine.loop import Report, silent
from warmstart.estimators.fitting import Problem
from warmstart.estimators.judging import Predictor, held_out, mean_error, sizes_up_to
from warmstart.training.search import search
from warmstart.training.train import Plan

BASELINES: dict[str, ModuleType] = {
    "global_mean": global_mean,
    "task_mean": task_mean,
    "task_ridge": task_ridge,
    "pooled_ridge": pooled_ridge,
    "boosting": boosting,
}


def fit_baseline(name: str, problem: Problem, cfg: Any, seed: int) -> Predictor:
    module = BASELINES[name]
    predict: Predictor = module.fit(
        problem.train, problem.columns, problem.descriptor, problem.likelihood, problem.classes, cfg, seed
    )
    return predict


def fit_baselines(
    problem: Problem,
    plan: Plan,
    trials: int,
    seed: int = 0,
    names: Sequence[str] = tuple(BASELINES),
    folder: Path | None = None,
    progress: Callable[[str], Report] | None = None,
) -> dict[str, Predictor]:
    """Each baseline with the best of `trials` configurations, by the error that stops and tunes the methods."""
    task = held_out(problem.validation, plan.support, plan.query, seed)
    sizes = sizes_up_to(plan.support)
    found: dict[str, Predictor] = {}
    for name in names:
        module = BASELINES[name]

        def run(cfg: Any, name: str = name) -> float:
            return mean_error(fit_baseline(name, problem, cfg, seed), task, problem.likelihood, sizes)

        bar = silent if progress is None else progress(f"tuning {name}")
        best = module.Config()
        if trials > 1 and module.SPACE:
            store = None if folder is None else folder / f"trials-{name}.json"
            best = search(run, best, module.SPACE, trials, seed, store, bar)[0].config
        found[name] = fit_baseline(name, problem, best, seed)
    return found
