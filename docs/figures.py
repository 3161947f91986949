"""Committed results (results/*.json) to the pictures of `figures.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from warmstart.report import Row, load
from warmstart.report.figures import curves, error_curves
from warmstart.report.rows import Scalar


class Figure(NamedTuple):
    """A metric of a study against one setting, the others fixed."""

    study: str
    metric: str
    over: str
    methods: tuple[str, ...]
    where: Mapping[str, Scalar] = {}
    x_label: str = "gradient steps"
    y_label: str = ""


SINES = ("gem_bml_plus", "gem_head", "maml", "reptile", "abml", "bmaml")
COST = ("gem_bml_plus", "maml", "abml", "bmaml", "imaml", "reptile")
FIGURES = {
    "sines-default": Figure("bayes_sine", "MSE", "steps", SINES, {"family": "default"}),
    "sines-challenging": Figure("bayes_sine", "MSE", "steps", SINES, {"family": "challenging"}),
    "memory": Figure("cost", "peak", "inner_steps", COST, {}, "inner steps", "peak memory of a meta-step (MiB)"),
    "time": Figure("cost", "time", "inner_steps", COST, {}, "inner steps", "time of a meta-step (ms)"),
    **{
        f"gradient-{place}": Figure(
            *("gradient_error", "relative error", "inner_steps", ("gem_bml", "abml")),
            {"inputs": inputs},
            "inner steps",
            f"relative error, inputs {inputs}",
        )
        for place, inputs in enumerate(("along the axes", "correlated"), 1)
    },
    "zone": Figure(
        *("small_zone", "accuracy", "steps"),
        ("learned start", "amid 100 adapted", "amid two adapted", "one adapted", "as far in a random direction"),
        {"tasks": "omniglot"},
        y_label="accuracy (%)",
    ),
    "surrogate": Figure(
        *("select_convergence", "Spearman", "n", ("task_model", "task_model, linearised")),
        {"target": "mean", "size": 5},
        "subsets",
        "Spearman with held-out subsets",
    ),
    "population": Figure(
        *("population", "relative MSE", "samples"),
        ("empirical_bayes", "boosting", "maml", "pooled_ridge", "task_ridge", "task_mean"),
        {"group": "all"},
        "samples of an unseen task",
    ),
}


def draw(figure: Figure, rows: Sequence[Row]) -> str:
    """As an `<svg>` element. Every method named has to have been run."""
    wanted = [row for row in rows if figure.where.items() <= row.setting.items()]
    found = curves(wanted, figure.metric, figure.over)
    lines = {name: found[name] for name in figure.methods}
    return error_curves(lines, x_label=figure.x_label, y_label=figure.y_label or figure.metric)


def write(results: Path, target: Path) -> None:
    """One file each, from the runs at full size."""
    target.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        rows = load(results / f"{figure.study}.full.json").rows
        (target / f"{name}.svg").write_text(draw(figure, rows), encoding="utf-8")
