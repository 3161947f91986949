"""Hundreds of subset trainings as one stack against one after another: what it costs to learn which sources help.

Sources of 5,000 rows with 20 features, networks 32-32-1, Adam on batches of 256: the case of 50 sources, 400
subsets and 1,500 steps, whose steps all cost the same, so that some of them tell the whole. One after another is a
plain training loop with torch's own modules and optimiser. Two processes, on a CPU, have a half of the stack each; what
it takes to start them once is not counted.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from warmstart.benches.timing import Contender, Plan, describe, interleave, one_thread
from warmstart.core import check_names
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.models.mlp import MLP, seeded
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.page import Section
from warmstart.selection.subsets import indicators, sample_subsets
from warmstart.selection.training import Config, shares, train_models
from warmstart.tasks.transfer import Rows, Transfer, make_transfer, task_rows

SOURCES, ROWS, FEATURES, SIZE = 50, 5000, 20, 5
CONFIG = Config(hidden=(32, 32), batch=256, weight_decay=0.0)
LOOP, STACKED, SHARED = "one after another", "stacked", "stacked, two processes"
WAYS = (LOOP, STACKED, SHARED)
TIME, SPEED = "a step of one model", "times as fast"


def bench_case(device: torch.device) -> Transfer:
    """Rows of noise with labels of a linear rule: what they are does not change how long they take."""
    source = torch.Generator().manual_seed(0)
    rule = torch.randn(FEATURES, generator=source)

    def sample() -> Rows:
        x = torch.randn(ROWS, FEATURES, generator=source)
        return Rows(x, (x @ rule > 0).float(), torch.zeros(ROWS, dtype=torch.long))

    return make_transfer([sample() for _ in range(SOURCES)], sample(), sample(), sample()).to(device)


def one_by_one(transfer: Transfer, tasks: Sequence[int], steps: int) -> None:
    """One model on the rows of these tasks, as a user of torch trains it."""
    parts = [task_rows(transfer, task) for task in tasks]
    x, y = torch.cat([part.x["numeric"] for part in parts]), torch.cat([part.y for part in parts])
    with seeded(0):
        module = MLP(FEATURES, CONFIG.hidden).to(y.device)
    optimiser = torch.optim.Adam(module.parameters(), lr=CONFIG.lr)
    for _ in range(steps):
        index = torch.randint(len(y), (CONFIG.batch,), device=y.device)
        optimiser.zero_grad()
        loss: Any = binary_cross_entropy_with_logits(module(x[index]).squeeze(-1), y[index])
        loss.backward()
        optimiser.step()


_HALF: list[tuple[Transfer, Tensor, Config]] = []  # in a worker process: its own, made before it is timed


def _prepare(models: int, steps: int) -> None:
    torch.set_num_threads(1)
    transfer = bench_case(torch.device("cpu"))
    members = indicators(sample_subsets(SOURCES, SIZE, models), SOURCES)
    _HALF[:] = [(transfer, shares(transfer, members), replace(CONFIG, steps=steps))]


def _train_half(which: int) -> int:
    transfer, share, config = _HALF[0]
    return len(train_models(transfer, share[which::2], config))


def contenders(device: torch.device, models: int, steps: int, pool: Executor) -> dict[str, tuple[Contender, int]]:
    """Each with the number of model steps that one call takes."""
    transfer = bench_case(device)
    subsets = sample_subsets(SOURCES, SIZE, models)
    share = shares(transfer, indicators(subsets, SOURCES).to(device))
    config = replace(CONFIG, steps=steps)

    def stacked() -> object:
        return train_models(transfer, share, config)

    def shared() -> object:
        return list(pool.map(_train_half, (0, 1)))

    alone = partial(one_by_one, transfer, [*subsets[0].tolist(), SOURCES], steps)
    found = {
        LOOP: (Contender(LOOP, device, lambda: alone), steps),
        STACKED: (Contender(STACKED, device, lambda: stacked), steps * models),
    }
    if device.type == "cpu":
        found[SHARED] = Contender(SHARED, device, lambda: shared), steps * models
    return found


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    only: Sequence[str] = (),
    plan: Plan = Plan(rounds=3, repeats=1),
    models: int | None = None,
    steps: int | None = None,
) -> Results:
    """On a CPU 100 subsets of 300 steps stand for the case, on a GPU it is all 400 of 1,500; on one thread each."""
    check_names(only, WAYS, "ways")
    place = choose_device(device)
    gpu = place.type == "cuda"
    models, steps = models or (400 if gpu else 100), steps or (1500 if gpu else 300)
    spawn = multiprocessing.get_context("spawn")
    with one_thread(), ProcessPoolExecutor(2, spawn, initializer=_prepare, initargs=(models, steps)) as pool:
        every = contenders(place, models, steps, pool)
        found = {name: pair for name, pair in every.items() if name in (only or WAYS)}
        report = (progress or (lambda label: silent))(f"{models} subsets on {place.type}")
        times = interleave([contender for contender, _ in found.values()], plan, report)
    each = {name: [s / count for s in spent] for (name, (_, count)), spent in zip(found.items(), times, strict=True)}
    setting = {"device": place.type, "models": models, "steps": steps}
    rows: list[Row] = []
    for name, seconds in each.items():
        rows.append(make_row(name, setting, TIME, {i: 1e6 * s for i, s in enumerate(seconds)}, unit="us"))
        if name != LOOP and LOOP in each:
            ratio = {i: a / b for i, (a, b) in enumerate(zip(each[LOOP], seconds, strict=True))}
            rows.append(make_row(name, setting, SPEED, ratio, peer=f"torch {torch.__version__}, {LOOP}"))
    command = called()
    return make_results("subset_training", "full", describe(place), command, rows)


def sections(results: Results) -> list[Section]:
    columns = [Column("microseconds", TIME, {}, 1, "lower"), Column("times as fast", SPEED, {}, 1)]
    whole = [row for row in results.rows if row.metric == TIME]
    cost = {row.method: statistics.mean(row.values) * 400 * 1500 / 1e6 for row in whole}
    prose = "400 trainings of 1,500 steps: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in cost.items())
    caption = "A step of one model, in turns on the same device"
    return [Section("Subset trainings", prose=prose, table=table(results, None, columns, [LOOP], caption=caption))]
