"""Mixture prior: GEM with one Gaussian and with three on sines, lines and parabolas in one family, and on sines alone.

Section 2.3 of Zou and Lu (2020) names this family and leaves it open. Ten points of an unseen curve, with noise; one
Gaussian is also given three times the updates, which is what three cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Learner, Task, check_names, functional
from warmstart.core.trees import to_device
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.engine.stage import COMPILED, TRACED
from warmstart.learners import gem, gem_mixture
from warmstart.metrics.errors import squared_error
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP, seeded
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.report.rows import differences
from warmstart.studies.sines import LONG
from warmstart.tasks import modes
from warmstart.training.sources import from_family
from warmstart.training.train import Plan, train

SHOT, STEPS = 10, (0, 1, 5, 10)
TEST = 20_000  # seed of the test tasks
FAMILIES = {"three modes": modes.THREE, "sines alone": modes.ONE}
ONE, LONGER, MIXTURE = "gem_bml_plus", "gem_bml_plus, 3 times the updates", "gem_mixture"
FAMILIAR, KERNEL, ZERO = "least squares on 1, x, x^2, sin x, cos x", "kernel ridge on the support", "predict 0"
MSE, LESS = "MSE", "MSE less that of one Gaussian"
SHARED: dict[str, Any] = {  # Gauss-Newton steps, as for sines; a row's noise is that of the families
    "inner": "newton",
    "joint": True,
    "inner_steps": 2,
    "noise": modes.THREE.noise,
    "sd": 3e-3,
    "head_sd": 0.3,
    "outer_lr": 3e-3,
}


class Entry(NamedTuple):
    build: Callable[..., Learner]
    config: Any
    times: int = 1  # the updates of the preset


ENTRIES = {
    ONE: Entry(gem.build, gem.Config(**SHARED)),
    LONGER: Entry(gem.build, gem.Config(**SHARED), 3),
    MIXTURE: Entry(gem_mixture.build, gem_mixture.Config(**SHARED, components=3)),
}


class Preset(NamedTuple):
    iterations: int
    tests: int
    tasks: int


PRESETS = {"quick": Preset(100, 200, 8), "full": Preset(8_000, 1000, 25)}


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
    check_names(only, (*ENTRIES, *FAMILIES), "methods or families")
    bar = progress or (lambda label: silent)
    rows: list[Row] = []
    for family in [name for name in FAMILIES if name in only] or list(FAMILIES):
        test = modes.draw(FAMILIES[family], size.tests, SHOT, 100, generator(TEST), where)
        errors: dict[tuple[str, int], dict[int, Tensor]] = {}
        for name in [name for name in only if name in ENTRIES] or list(ENTRIES):
            for seed in seeds:
                learner, state = fit(name, family, seed, size, where, bar(f"{name}, {family}, seed {seed}"), folder)
                for steps in STEPS:
                    errors.setdefault((name, steps), {})[seed] = judge(learner, state, test, steps)
        for name, predict in trivial().items():
            found = squared_error(predict(test), test.query).cpu()
            errors |= {(name, steps): dict.fromkeys(seeds, found) for steps in STEPS}
        for (name, steps), by_seed in errors.items():
            setting: dict[str, Any] = {"family": family, "steps": steps}
            rows.append(make_row(name, setting, MSE, {seed: each.tolist() for seed, each in by_seed.items()}))
            if name == MIXTURE and (ONE, steps) in errors:
                rows.append(make_row(name, setting, LESS, differences(by_seed, errors[ONE, steps])))
    results = make_results("mixture", preset, str(where), called(), rows)
    return Outcome(results, sections(results), verdict(rows))


def fit(
    name: str,
    family: str,
    seed: int,
    size: Preset,
    device: torch.device,
    bar: Report = silent,
    folder: Path | None = None,
) -> tuple[Learner, Any]:
    """Train one learner on fresh curves; no test task is looked at."""
    entry, updates = ENTRIES[name], size.iterations * ENTRIES[name].times
    stage = COMPILED if device.type == "cuda" or updates >= LONG else TRACED
    config = replace(entry.config, outer_decay=updates)
    if name == MIXTURE:
        config = replace(config, anneal=updates // 3, seed=seed)
    with seeded(seed):
        model = functional(MLP(1, (40, 40), 1))
    learner = entry.build(model, squared, config, stage)
    source = from_family(
        lambda count, draw: modes.draw(FAMILIES[family], count, SHOT, SHOT, draw),
        size.tasks,
        seed,
        learner.noise,
        device,
        block=10,
    )
    plan = Plan(steps=updates, tasks=size.tasks, every=max(updates // 70, 10))
    kept = None if folder is None else folder / f"{size.iterations}-{name}-{family}-{seed}"
    state = to_device(learner.init(model.params), device)
    return learner, train(learner, state, source, plan, stage=stage, folder=kept, progress=bar).state


def judge(learner: Learner, state: Any, test: Task, steps: int) -> Tensor:
    """Squared error of every test task."""
    return squared_error(predict_stack(learner, state, test, steps=steps, chunk=100).mean, test.query).cpu()


def trivial() -> dict[str, Callable[[Task], Tensor]]:
    """What a sceptic would try: nothing, a smoother on the support alone, and knowing all three kinds of curve."""

    def near(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * (a.unsqueeze(-1) - b.unsqueeze(-2)) ** 2)

    def basis(x: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(x), x, x**2, torch.sin(x), torch.cos(x)], -1).double()

    def kernel_ridge(task: Task) -> Tensor:
        support, query = task.support.x.squeeze(-1), task.query.x.squeeze(-1)
        system = near(support, support) + 0.1 * torch.eye(SHOT, device=support.device)
        weights: Tensor = torch.linalg.solve(system, task.support.y[..., None])
        return (near(query, support) @ weights).squeeze(-1)

    def known_family(task: Task) -> Tensor:
        seen = basis(task.support.x)
        ridge = 0.01 * torch.eye(seen.shape[-1], dtype=seen.dtype, device=seen.device)
        found: Tensor = torch.linalg.solve(seen.mT @ seen + ridge, seen.mT @ task.support.y[..., None].double())
        return (basis(task.query.x) @ found).squeeze(-1).float()

    return {ZERO: lambda task: torch.zeros_like(task.query.y), KERNEL: kernel_ridge, FAMILIAR: known_family}


def sections(results: Results) -> list[Section]:
    found = []
    for family in dict.fromkeys(str(row.setting["family"]) for row in results.rows):
        columns = [Column(f"{k} steps", MSE, {"family": family, "steps": k}, 3, "lower") for k in STEPS]
        made = table(
            results,
            columns=columns,
            baselines=[ZERO, KERNEL],
            references=[FAMILIAR],
            caption=f"Mean squared error, {SHOT} points, {family}",
        )
        lines = curves([row for row in results.rows if row.setting["family"] == family], MSE, "steps")
        picture = error_curves(lines, x_label="gradient steps", y_label=MSE)
        found.append(Section(f"{SHOT} points, {family}", table=made, svg=picture))
    return found


def verdict(rows: Sequence[Row]) -> str:
    at = [row for row in rows if row.setting["steps"] == STEPS[-1] and row.metric == MSE]
    last = {(row.method, row.setting["family"]): row.mean for row in at}
    families = list(dict.fromkeys(family for _, family in last))

    def lower(than: str) -> str:
        parts = [f"{100 * (1 - last[MIXTURE, family] / last[than, family]):.0f} % on {family}" for family in families]
        return " and ".join(parts)

    if not all((name, family) in last for name in (ONE, MIXTURE) for family in families):
        return "One prior was run; run both to compare them."
    said = f"After {STEPS[-1]} steps the error of three Gaussians is lower than that of one by {lower(ONE)}"
    if not all((LONGER, family) in last for family in families):
        return f"{said}."
    return f"{said}, and than that of one with three times the updates by {lower(LONGER)}."
