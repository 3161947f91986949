"""Gradient error: how far estimated meta-gradients are from the exact one, by the number of inner steps.

Figure C.1 of Zou and Lu (2020): linear regression, where the gradient of the log marginal likelihood in
prior mean and standard deviation is known. Gradient-EM takes the posterior as it is; the evidence bound is
differentiated through the steps that led there. With inputs along the axes a diagonal posterior is
exact, with correlated ones it never is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from warmstart.core import Batch, Task, check_names, functional, make_batch, make_task
from warmstart.core.trees import pack, tree_map, unpack
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator, train_noise
from warmstart.engine.stage import TRACED
from warmstart.learners import abml, gem
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import seeded
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section

GEM, BOUND = "gem_bml", "abml"
METHODS = (GEM, BOUND)
INPUTS = {"along the axes": False, "correlated": True}  # what rows look like, and whether their inputs correlate
SIZE, ROWS, NOISE, SAMPLES = 5, 10, 0.5, 20
RATE = 0.005  # of the inner steps, below what the steepest direction allows
METRIC = "relative error"


class Preset(NamedTuple):
    steps: tuple[int, ...]
    runs: int  # random tasks


PRESETS = {"quick": Preset((1, 5, 20), 20), "full": Preset((1, 2, 5, 10, 20, 50, 100, 200), 50)}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """In double precision on the CPU: this is about errors, not speed."""
    check_names(only, METHODS)
    chosen, names = PRESETS[preset], list(only) or list(METHODS)
    bar = progress or (lambda label: silent)
    rows: list[Row] = []
    for label, correlated in INPUTS.items():
        report = bar(f"inputs {label}")
        for i, steps in enumerate(chosen.steps):
            found = {seed: errors(names, steps, chosen.runs, correlated, seed) for seed in seeds}
            setting: dict[str, Any] = {"inputs": label, "inner_steps": steps}
            for name in names:
                values = {seed: by_name[name].tolist() for seed, by_name in found.items()}
                rows.append(make_row(name, setting, METRIC, values, fresh_tasks=True))
            report(i + 1, len(chosen.steps), f"{steps} inner steps")
    results = make_results("gradient_error", preset, "cpu", called(), rows)
    return Outcome(results, sections(results, chosen.steps), verdict(rows, chosen.steps))


def errors(names: Sequence[str], steps: int, runs: int, correlated: bool, seed: int) -> dict[str, Tensor]:
    """|estimate - exact| / |exact| of every run, each with a task and a prior of its own."""
    source = generator(seed, steps, int(correlated))
    with seeded(seed):
        model = functional(nn.Linear(SIZE, 1, bias=False).double())
    shared: dict[str, Any] = {"inner_lr": RATE, "inner_steps": steps, "samples": SAMPLES, "noise": NOISE}
    learners = {
        GEM: gem.build(model, squared, gem.Config(**shared, plus=False, joint=True, natural=False), TRACED),
        BOUND: abml.build(model, squared, abml.Config(**shared, objective="all", hyper_weight=0.0), TRACED),
    }
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for _ in range(runs):
        mean, log_sd = _normal(source, SIZE), 0.3 * _normal(source, SIZE) - 1.0
        task = draw_task(mean, log_sd, correlated, source)
        exact = pack(torch.func.grad(log_marginal, argnums=(0, 1))(mean, log_sd, all_rows(task)))
        for name in names:
            learner = learners[name]
            state = learner.init(model.params)
            theta = {"mean": unpack(mean, state.theta["mean"]), "log_sd": unpack(log_sd, state.theta["log_sd"])}
            noise = tree_map(lambda leaf: leaf.double(), train_noise(learner.noise, 1, source))
            delta, _ = learner.meta_grad(state._replace(theta=theta), task, noise)
            found[name].append((-pack(delta.grad) - exact).norm() / exact.norm())
    return {name: torch.stack(values) for name, values in found.items()}


def draw_task(mean: Tensor, log_sd: Tensor, correlated: bool, source: torch.Generator) -> Task:
    """A weight from the prior, and rows of it."""
    weight = mean + log_sd.exp() * _normal(source, SIZE)

    def rows(count: int) -> Batch:
        if correlated:
            x = (_normal(source, count, SIZE) + _normal(source, count, 1)) / SIZE**0.5  # correlation 1/2
        else:
            x = torch.eye(SIZE, dtype=torch.float64).repeat(count // SIZE, 1) * (1 + _normal(source, count, 1).abs())
        y = x @ weight + NOISE * _normal(source, count)
        return make_batch(x[None], y[None])

    return make_task(rows(ROWS), rows(ROWS))


def log_marginal(mean: Tensor, log_sd: Tensor, batch: Batch) -> Tensor:
    """log N(y; x m, x S x' + noise) of one task."""
    x, y = batch.x[0], batch.y[0]
    covariance = (x * torch.exp(2 * log_sd)) @ x.T + NOISE**2 * torch.eye(len(y), dtype=x.dtype)
    density: Tensor = MultivariateNormal(x @ mean, covariance).log_prob(y)  # type: ignore[no-untyped-call]
    return density


def all_rows(task: Task) -> Batch:
    rows: Batch = tree_map(lambda shown, judged: torch.cat([shown, judged], 1), task.support, task.query)
    return rows


def _normal(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def sections(results: Results, steps: Sequence[int]) -> list[Section]:
    found = []
    for label in INPUTS:
        columns = [Column(f"{k} steps", METRIC, {"inputs": label, "inner_steps": k}, 3, "lower") for k in steps]
        made = table(results, columns=columns, caption=f"Relative error of the meta-gradient, inputs {label}")
        lines = curves([row for row in results.rows if row.setting["inputs"] == label], METRIC, "inner_steps")
        picture = error_curves(lines, x_label="inner steps", y_label="relative error")
        found.append(Section(f"Inputs {label}", table=made, svg=picture))
    return found


def verdict(rows: Sequence[Row], steps: Sequence[int]) -> str:
    at = {(row.method, row.setting["inputs"], row.setting["inner_steps"]): row.mean for row in rows}
    pairs = [(label, k) for label in INPUTS for k in steps if all((name, label, k) in at for name in METHODS)]
    better = [pair for pair in pairs if at[(GEM, *pair)] < at[(BOUND, *pair)]]
    if not pairs:
        return "One estimator was run; run both to compare them."
    worse = ", ".join(f"{k} steps with inputs {label}" for label, k in pairs if (label, k) not in better)
    said = f"Gradient-EM is closer to the exact meta-gradient than the bound in {len(better)} of {len(pairs)} settings"
    return f"{said}; not at {worse}." if worse else f"{said}."
