"""Peak memory of one MAML meta-update at 1, 5, 10 and 20 inner steps: graph kept, recomputed, first order.

An MLP 1-40-40-1 on 25 tasks. With 100 rows a task, activations outweigh parameters, as they do in
convolutional networks and whenever recomputation is worth its time; with 10 rows they do not, and the
inner states themselves are what is left to keep.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from warmstart.benches.timing import describe
from warmstart.core import functional
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.memory import peak_bytes
from warmstart.engine.meta import Feed, meta_update
from warmstart.engine.noise import generator
from warmstart.engine.stage import TRACED
from warmstart.learners import maml
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP, seeded
from warmstart.report import Column, Results, Row, make_results, make_row, table
from warmstart.report.page import Section
from warmstart.tasks import sine

TASKS, HIDDEN = 25, (40, 40)
ROWS = (10, 100)
STEPS = (1, 5, 10, 20)
WAYS = {
    "kept": maml.Config(),
    "recomputed": maml.Config(recompute=True),
    "first order": maml.Config(first_order=True),
}
PEAK, GROWTH = "peak", "growth"


def peak(cfg: maml.Config, rows: int, device: torch.device) -> int:
    """Of the second meta-update: the first one also records its programs."""
    with seeded(0):
        model = functional(MLP(1, HIDDEN, 1).to(device))
    feed = Feed(sine.draw(sine.DEFAULT, TASKS, rows, rows, generator(0, 1), device))
    learner = maml.build(model, squared, cfg, TRACED)
    update, state = meta_update(learner, stage=TRACED), learner.init(model.params)
    update(state, feed)
    return peak_bytes(lambda: update(state, feed), device)


def run(device: str = "auto", progress: Callable[[str], Report] | None = None) -> Results:
    """Peaks in MiB, and how much more the most steps take than the fewest."""
    where = choose_device(device)
    bar = progress or (lambda label: silent)
    found: list[Row] = []
    for rows in ROWS:
        report = bar(f"{rows} rows a task")
        for i, (name, cfg) in enumerate(WAYS.items()):
            setting = {"rows": rows, "device": where.type}
            peaks = [peak(replace(cfg, inner_steps=steps), rows, where) for steps in STEPS]
            found += [
                make_row(name, setting | {"inner_steps": steps}, PEAK, {0: most / 2**20}, "MiB")
                for steps, most in zip(STEPS, peaks, strict=True)
            ]
            found.append(make_row(name, setting, GROWTH, {0: peaks[-1] / peaks[0]}, "x"))
            report(i + 1, len(WAYS), name)
    return make_results("memory", "full", describe(where), " ".join(["warmstart", *sys.argv[1:]]), found)


def sections(results: Results) -> list[Section]:
    """A table for each number of rows."""
    found = []
    for rows in dict.fromkeys(row.setting["rows"] for row in results.rows):
        columns = [Column(f"{k} steps (MiB)", PEAK, {"rows": rows, "inner_steps": k}, 2) for k in STEPS]
        columns.append(Column(f"{STEPS[-1]} against {STEPS[0]}", GROWTH, {"rows": rows}, 2))
        found.append(Section(f"{rows} rows a task", table=table(results, columns=columns)))
    return found
