"""Inner steps: how many a learner is trained with, on sines whose frequency varies but whose rows have no noise.

Figure C.2 of Zou and Lu (2020): frequencies between 0.5 and 1, MAML with one, two and three inner steps in
training, judged after 0 to 10. The figure shows MAML; methods that do not differentiate the inner loop are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite, pi
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Learner, check_names
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Diverged, Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.learners import gem, maml
from warmstart.metrics.errors import squared_error
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import Curve, curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.studies import bayes_sine_rows
from warmstart.studies.sines import Training, fit
from warmstart.tasks import sine

FAMILY = sine.Family(phase=(0.0, 2 * pi), frequency=(0.5, 1.0))
SHOT, TRAINED, STEPS, MSE = 10, (1, 2, 3), (0, 1, 2, 3, 5, 10), "MSE"
TEST = 20_000  # seed of the test tasks


class Entry(NamedTuple):
    build: Callable[..., Learner]
    config: Any  # but for the inner steps


ENTRIES = {
    "maml": Entry(maml.build, maml.Config(inner_lr=0.01)),
    "fomaml": Entry(maml.build, maml.Config(inner_lr=0.01, first_order=True)),
    **{name: Entry(gem.build, bayes_sine_rows.ENTRIES[name].config) for name in ("gem_bml_plus", "gem_bml_plus, sgd")},
}


class Preset(NamedTuple):
    iterations: int
    tests: int
    tasks: int = 25


PRESETS = {"quick": Preset(100, 100, 5), "full": Preset(40_000, 1000)}


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
    check_names(only, ENTRIES)
    bar = progress or (lambda label: silent)
    test = sine.draw(FAMILY, size.tests, SHOT, 100, generator(TEST, SHOT), where)
    training = Training(FAMILY, SHOT, size.iterations, size.tasks)
    rows: list[Row] = []
    for name in list(only) or list(ENTRIES):
        for count in TRAINED:
            config = replace(ENTRIES[name].config, inner_steps=count)
            errors: dict[int, dict[int, Tensor]] = {steps: {} for steps in STEPS}
            for seed in seeds:
                report = bar(f"{name}, {count} inner steps, seed {seed}")
                kept = None if folder is None else folder / f"{size.iterations}-{name}-{count}-{seed}"
                try:
                    learner, state = fit(ENTRIES[name].build, config, training, seed, where, report, kept)
                except Diverged:  # which is a result
                    for by_seed in errors.values():
                        by_seed[seed] = torch.full((size.tests,), float("nan"))
                    continue
                for steps, by_seed in errors.items():
                    said = predict_stack(learner, state, test, steps=steps, chunk=250)
                    by_seed[seed] = squared_error(said.mean, test.query).cpu()
            for steps, by_seed in errors.items():
                values = {seed: found.tolist() for seed, found in by_seed.items()}
                rows.append(make_row(name, {"inner_steps": count, "steps": steps}, MSE, values))
    results = make_results("inner_steps", preset, str(where), called(), rows)
    return Outcome(results, sections(results), verdict(rows))


def sections(results: Results) -> list[Section]:
    found = []
    lines: dict[str, Curve] = {}
    for count in TRAINED:
        columns = [Column(f"{k} steps", MSE, {"inner_steps": count, "steps": k}, 3, "lower") for k in STEPS]
        words = f"{count} inner step{'s' if count > 1 else ''} in training"
        found.append(Section(words.capitalize(), table=table(results, columns=columns, caption=words)))
        trained = [row for row in results.rows if row.setting["inner_steps"] == count]
        lines |= {f"{name}, {count}": line for name, line in curves(trained, MSE, "steps").items()}
    picture = error_curves(lines, x_label="gradient steps", y_label=MSE)
    return [Section("Error by steps of training", svg=picture), *found]


def verdict(rows: Sequence[Row]) -> str:
    name, last = rows[0].method, STEPS[-1]
    at = {row.setting["inner_steps"]: row.mean for row in rows if row.method == name and row.setting["steps"] == last}
    told = ", ".join(f"{at[count]:.3f}" if isfinite(at[count]) else "not finite" for count in TRAINED)
    return f"{name} trained with {', '.join(map(str, TRAINED))} inner steps has an MSE of {told} after {last} steps."
