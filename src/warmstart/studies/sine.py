"""Sine regression: all learners on 5 and 10 points of an unseen sine, after 0, 1, 5 and 10 gradient steps.

Section 5.1 of Zou and Lu (2020) and of Finn, Abbeel and Levine (2017): y = A sin(x - b). Published, 5
points, after 1 / 5 / 10 steps: MAML 0.67 / 0.38 / 0.35, joint pre-training 2.41 / 2.23 / 2.19.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Learner, Task, check_names
from warmstart.core.trees import to_device
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Diverged, Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.learners import empirical_bayes, imaml, maml, meta_sgd, pretrain, reptile, scratch
from warmstart.metrics.errors import squared_error
from warmstart.report import Column, Row, called, make_results, make_row, table
from warmstart.report.figures import Adaptation, Curve, adaptations, curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.studies.sines import Training, conditioned, fit
from warmstart.tasks import sine

STEPS = (0, 1, 5, 10)
SHOTS = (5, 10)
TEST = 20_000  # seed of the test tasks
PAPER = {
    ("maml", 1): 0.67,
    ("maml", 5): 0.38,
    ("maml", 10): 0.35,
    ("pretrain", 1): 2.41,
    ("pretrain", 5): 2.23,
    ("pretrain", 10): 2.19,
}
FAMILIAR, KERNEL, ZERO = "least squares on sin x, cos x", "kernel ridge on the support", "predict 0"


class Entry(NamedTuple):
    """A learner as it is run here. Inner settings are the papers', or ours where they give none."""

    build: Callable[..., Learner]
    config: Any
    fast: str = "*"


ENTRIES = {
    "scratch": Entry(scratch.build, scratch.Config(inner_lr=0.01, inner="adam")),
    "pretrain": Entry(pretrain.build, pretrain.Config(inner_lr=0.01)),
    "maml": Entry(maml.build, maml.Config(inner_lr=0.01, inner_steps=1)),
    "fomaml": Entry(maml.build, maml.Config(inner_lr=0.01, inner_steps=1, first_order=True)),
    "anil": Entry(maml.build, maml.Config(inner_lr=0.01, inner_steps=1), "head.*"),
    "reptile": Entry(reptile.build, reptile.Config(inner_lr=0.01, inner_steps=5, inner="adam", outer_lr=0.3)),
    "imaml": Entry(
        imaml.build,
        imaml.Config(inner_lr=0.01, inner_steps=16, halvings=5, prox=2.0, solve_steps=5, damping=1.0),
    ),
    "meta_sgd": Entry(meta_sgd.build, meta_sgd.Config(inner_lr=0.01, inner_steps=1)),
    "empirical_bayes": Entry(
        conditioned, empirical_bayes.Config(components=1, rank=8, weight_decay=0.0, outer_lr=1e-3)
    ),
}


class Preset(NamedTuple):
    iterations: int
    tests: int
    tasks: int = 25
    query: int = 10


PRESETS = {"quick": Preset(300, 100), "full": Preset(70_000, 1000)}


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
    names = list(only) or list(ENTRIES)
    bar = progress or (lambda label: silent)
    errors: dict[tuple[str, int, int], dict[int, Tensor]] = {}
    shown: list[Adaptation] = []
    for shot in SHOTS:
        test = sine.draw(sine.DEFAULT, size.tests, shot, 100, generator(TEST, shot), where)
        for name in names:
            for seed in seeds:
                try:
                    report = bar(f"{name}, {shot} points, seed {seed}")
                    kept = None if folder is None else folder / f"{size.iterations}-{name}-{shot}-{seed}"
                    training = Training(sine.DEFAULT, shot, size.iterations, size.tasks, size.query)
                    entry = ENTRIES[name]
                    learner, state = fit(entry.build, entry.config, training, seed, where, report, kept, entry.fast)
                except Diverged:  # which is a result
                    for steps in STEPS:
                        errors.setdefault((name, shot, steps), {})[seed] = torch.full((size.tests,), float("nan"))
                    continue
                for steps in STEPS:
                    # conditioning is exact: it is done once, however many steps the others take
                    count = min(steps, 1) if name == "empirical_bayes" else steps
                    errors.setdefault((name, shot, steps), {})[seed] = judge(learner, state, test, count)
                if name == "maml" and shot == SHOTS[0] and seed == seeds[0]:
                    shown = pictures(learner, state, shot, where)
        for name, predict in trivial(shot).items():
            found = squared_error(predict(test), test.query).cpu()
            for steps in STEPS:
                errors[name, shot, steps] = dict.fromkeys(seeds, found)
    rows = [_row(*key, by_seed) for key, by_seed in errors.items()]
    results = make_results("sine", preset, str(where), called(), rows)
    return Outcome(results, sections(rows, results, shown), verdict(rows))


def judge(learner: Learner, state: Any, test: Task, steps: int) -> Tensor:
    """Squared error of every test task."""
    return squared_error(predict_stack(learner, state, test, steps=steps, chunk=250).mean, test.query).cpu()


def trivial(shot: int) -> dict[str, Callable[[Task], Tensor]]:
    """What a sceptic would try: nothing, a smoother on the support alone, and knowing the family."""

    def near(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * (a.unsqueeze(-1) - b.unsqueeze(-2)) ** 2)

    def basis(x: Tensor) -> Tensor:
        return torch.cat([torch.sin(x), torch.cos(x)], -1).double()

    def kernel_ridge(task: Task) -> Tensor:
        support, query = task.support.x.squeeze(-1), task.query.x.squeeze(-1)
        system = near(support, support) + 1e-3 * torch.eye(shot, device=support.device)
        weights: Tensor = torch.linalg.solve(system, task.support.y[..., None])
        return (near(query, support) @ weights).squeeze(-1)

    def known_family(task: Task) -> Tensor:
        found: Tensor = torch.linalg.lstsq(basis(task.support.x), task.support.y[..., None].double()).solution
        return (basis(task.query.x) @ found).squeeze(-1).float()

    return {ZERO: lambda task: torch.zeros_like(task.query.y), KERNEL: kernel_ridge, FAMILIAR: known_family}


def pictures(learner: Learner, state: Any, shot: int, device: torch.device) -> list[Adaptation]:
    """Three unseen sines, before and after ten steps."""
    draw = generator(TEST, 99)
    parameters = sine.parameters(sine.DEFAULT, 3, draw)
    task = sine.observe(sine.DEFAULT, parameters, shot, 1, draw)
    x = torch.linspace(-5, 5, 120)
    grid = task.query._replace(x=x.expand(3, -1)[..., None], y=x.expand(3, -1), w=x.expand(3, -1), mask=x.expand(3, -1))
    asked = to_device(task._replace(query=grid), device)
    before, after = (predict_stack(learner, state, asked, steps=steps).mean.cpu() for steps in (0, 10))
    truth = sine.curve(parameters, x.expand(3, -1))
    return [
        Adaptation(
            f"A = {float(parameters[i, 0]):.1f}",
            x,
            truth[i],
            task.support.x[i, :, 0],
            task.support.y[i],
            Curve(x, before[i]),
            Curve(x, after[i]),
        )
        for i in range(3)
    ]


def sections(rows: Sequence[Row], results: Any, shown: list[Adaptation]) -> list[Section]:
    found = []
    for shot in SHOTS:
        columns = [Column(f"{k} steps", "MSE", {"shot": shot, "steps": k}, 3, "lower") for k in STEPS]
        made = table(
            results,
            columns=columns,
            baselines=[ZERO, KERNEL],
            references=[FAMILIAR],
            caption=f"Mean squared error, {shot} points",
        )
        lines = curves([row for row in rows if row.setting["shot"] == shot], "MSE", "steps")
        lines.pop(FAMILIAR, None)
        picture = error_curves(lines, x_label="gradient steps", y_label="MSE")
        found.append(Section(f"{shot} points of an unseen sine", table=made, svg=picture))
    if shown:
        found.append(Section("MAML, before and after ten steps", svg=adaptations(shown)))
    return found


def verdict(rows: Sequence[Row]) -> str:
    at = {row.method: row for row in rows if row.setting == {"shot": SHOTS[0], "steps": STEPS[-1]}}
    learners = [row for name, row in at.items() if name in ENTRIES and row.mean == row.mean]
    if not learners:
        return "Nothing was trained to the end."
    best = min(learners, key=lambda row: row.mean)
    return (
        f"From {SHOTS[0]} points of an unseen sine and {STEPS[-1]} steps, {best.method} reaches an MSE of "
        f"{best.mean:.3f}; a smoother on the points alone {at[KERNEL].mean:.2f}."
    )


def _row(name: str, shot: int, steps: int, by_seed: dict[int, Tensor]) -> Row:
    peer = str(PAPER.get((name, steps), "")) if shot == SHOTS[0] else ""
    values = {seed: found.tolist() for seed, found in by_seed.items()}
    return make_row(name, {"shot": shot, "steps": steps}, "MSE", values, peer=peer and f"paper {peer}")
