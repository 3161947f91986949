"""Peak memory of one meta-update at 1, 5, 10 and 20 inner steps: MAML with the graph kept, recomputed and first order,
ABML and GEM.

An MLP 1-40-40-1 on 25 tasks. With 100 rows a task, activations outweigh parameters, as they do in
convolutional networks and whenever recomputation is worth its time; with 10 rows they do not, and the
inner states themselves are what is left to keep. The noise of an update is drawn before it and counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from warmstart.benches.timing import describe
from warmstart.core import Learner, check_names, functional
from warmstart.core.trees import leaves
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.memory import peak_bytes
from warmstart.engine.meta import Feed, meta_update
from warmstart.engine.noise import generator, train_noise
from warmstart.engine.stage import TRACED
from warmstart.learners import abml, gem, maml
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP, seeded
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.page import Section
from warmstart.tasks import sine

TASKS, HIDDEN = 25, (40, 40)
ROWS = (10, 100)
STEPS = (1, 5, 10, 20)


class Way(NamedTuple):
    build: Callable[..., Learner]
    config: Any


WAYS = {
    "maml, kept": Way(maml.build, maml.Config()),
    "maml, recomputed": Way(maml.build, maml.Config(recompute=True)),
    "maml, first order": Way(maml.build, maml.Config(first_order=True)),
    "abml, kept": Way(abml.build, abml.Config()),
    "abml, recomputed": Way(abml.build, abml.Config(recompute=True)),
    "gem": Way(gem.build, gem.Config()),
}
PEAK, GROWTH, NOISE = "peak", "growth", "noise"


def peak(way: Way, steps: int, rows: int, device: torch.device) -> tuple[int, int]:
    """Bytes of the second meta-update with its noise, as the first one also records its programs, and of the noise."""
    with seeded(0):
        model = functional(MLP(1, HIDDEN, 1).to(device))
    learner = way.build(model, squared, replace(way.config, inner_steps=steps), TRACED)
    noise = train_noise(learner.noise, TASKS, generator(0, 2, device=device))
    feed = Feed(sine.draw(sine.DEFAULT, TASKS, rows, rows, generator(0, 1), device), noise)
    update, state = meta_update(learner, stage=TRACED), learner.init(model.params)
    update(state, feed)
    drawn = sum(leaf.numel() * leaf.element_size() for leaf in leaves(noise))
    return drawn + peak_bytes(lambda: update(state, feed), device), drawn


def run(device: str = "auto", progress: Callable[[str], Report] | None = None, only: Sequence[str] = ()) -> Results:
    """Peaks in MiB, and how much more the most steps take than the fewest. `only` names ways."""
    check_names(only, WAYS, "ways")
    ways = {name: way for name, way in WAYS.items() if name in only} or WAYS
    where = choose_device(device)
    bar = progress or (lambda label: silent)
    found: list[Row] = []
    for rows in ROWS:
        report = bar(f"{rows} rows a task")
        for i, (name, way) in enumerate(ways.items()):
            setting = {"rows": rows, "device": where.type}
            peaks, noise = zip(*(peak(way, steps, rows, where) for steps in STEPS), strict=True)
            for metric, sizes in ((PEAK, peaks), (NOISE, noise)):
                found += [
                    make_row(name, setting | {"inner_steps": steps}, metric, {0: most / 2**20}, "MiB")
                    for steps, most in zip(STEPS, sizes, strict=True)
                    if metric == PEAK or most
                ]
            for first in (0, 1):
                against = setting | {"against": STEPS[first]}
                found.append(make_row(name, against, GROWTH, {0: peaks[-1] / peaks[first]}, "x"))
            report(i + 1, len(ways), name)
    return make_results("memory", "full", describe(where), called(), found)


def sections(results: Results) -> list[Section]:
    """A table for each number of rows."""
    found = []
    for rows in dict.fromkeys(row.setting["rows"] for row in results.rows):
        columns = [Column(f"{k} steps (MiB)", PEAK, {"rows": rows, "inner_steps": k}, 2) for k in STEPS]
        for first in STEPS[:2]:
            columns.append(Column(f"{STEPS[-1]} against {first}", GROWTH, {"rows": rows, "against": first}, 2))
        columns.append(Column(f"noise, {STEPS[-1]} steps", NOISE, {"rows": rows, "inner_steps": STEPS[-1]}, 2))
        found.append(Section(f"{rows} rows a task", table=table(results, columns=columns)))
    return found
