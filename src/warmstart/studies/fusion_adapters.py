"""Fusion of adapters: a low-rank adapter of a frozen transformer for an unseen user, from those of 150 others.

Beyond *Model fusion for personalized learning*, which fuses whole networks. Users are simulated (`session_zoo`); their
adapters are trained apart, each on 500 rows from a start of its own. An unseen user is known by a descriptor alone.
Beside it: what the user's own rows are worth, the frozen network, the nearest user's adapter and the average. Errors
are against the noiseless ratings. All choices are made on the pool's own users, each left out in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import check_names
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator
from warmstart.estimators.model_fusion import ADAPTER_WAYS, ModelFusion, Way
from warmstart.fusion.network import run_models
from warmstart.fusion.zoo import encode_descriptor
from warmstart.report import Column, Results, Row, called, differences, make_results, make_row, table
from warmstart.report.page import Outcome, Section
from warmstart.studies import session_zoo as sessions

ERROR, COVERED, RATIO = "RMSE / standard deviation", "coverage", "error relative to 500 own rows"
PAIRED = "RMSE / standard deviation minus that of 500 own rows"
AUTO, FROZEN, OWN, FEW = "auto", "frozen network", "own adapter, 500 rows", "own adapter, 10 rows"
SHOTS, FEW_STEPS, FEW_RATE = 10, 100, 3e-3
INPUTS, TESTS = 256, 400  # sessions to compare functions on, and to judge on
Scores = dict[tuple[str, str], Tensor]  # method, metric -> one number per unseen user


class Preset(NamedTuple):
    seen: int
    unseen: int
    first: int  # steps of the network's training
    steps: int  # of each adapter's
    making: int  # of the ways that train a network


PRESETS = {"quick": Preset(100, 20, 300, 50, 60), "full": Preset(150, 30, 800, 200, 800)}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """On the CPU. With a folder, trained pools are kept in it."""
    check_names(only, ADAPTER_WAYS)
    began, size = time.perf_counter(), PRESETS[preset]
    found: dict[int, Scores] = {}
    for seed in seeds:
        report = (progress or (lambda label: silent))(f"seed {seed}")
        report(0, 1, "training adapters")
        place = None if folder is None else folder / f"{preset}-{seed}.safetensors"
        pool = sessions.train_pool(seed, size.seen, size.unseen, size.first, size.steps, place)
        found[seed] = judge(pool, seed, ways_of(size, only), bool(only), partial(report, 0, 1))
    rows = rows_of(found)
    results = make_results("fusion_adapters", preset, "cpu", called(), rows)
    return Outcome(results, sections(results), verdict(rows, time.perf_counter() - began))


def ways_of(size: Preset, only: Sequence[str]) -> dict[str, Way]:
    return {
        name: way._replace(config=replace(way.config, steps=size.making)) if hasattr(way.config, "steps") else way
        for name, way in ADAPTER_WAYS.items()
        if not only or name in only
    }


def judge(
    pool: sessions.SessionPool, seed: int, ways: dict[str, Way], some: bool, say: Callable[[str], None]
) -> Scores:
    """Every way on the unseen users; the choice among them too, unless only some are run."""
    zoo, draw = sessions.as_zoo(pool), generator(seed, 40)
    inputs = torch.randn(INPUTS, sessions.ITEMS, sessions.FEATURES, generator=draw)
    x = torch.randn(TESTS, sessions.ITEMS, sessions.FEATURES, generator=draw)
    truth = sessions.rating(
        pool.world, pool.unseen[:, : sessions.TRAITS], x.expand(len(pool.unseen), *x.shape)
    ).double()
    at = encode_descriptor(zoo.columns, sessions.describe(pool.unseen))
    process = {"adapter_gp": ADAPTER_WAYS["adapter_gp"]}
    model = ModelFusion(ways={**process, **ways}).fit(zoo, pool.network, inputs, say)

    def error(said: Tensor) -> Tensor:
        return (said.squeeze(-1) - truth).square().mean(-1).sqrt() / truth.std(-1)

    scores: Scores = {}
    for name, way in ways.items():
        made = way.build(model.network_, way.config).zero_shot(model.states_[name], at)
        scores[name, ERROR] = error(run_models(model.network_, made, x))
    scores[OWN, ERROR] = error(run_models(model.network_, pool.own, x))
    if some:
        return scores
    with torch.no_grad():
        scores[FROZEN, ERROR] = error(pool.network(x).double().expand(len(truth), -1, -1))
    say(FEW)
    asked, told = sessions.draw_rows(pool.world, pool.unseen, SHOTS, generator(seed, 41))
    begin = sessions.starts(pool.network, len(asked), seed + 50)
    few = sessions.fit_adapters(model.network_, begin, asked, told, FEW_STEPS, FEW_RATE)
    scores[FEW, ERROR] = error(run_models(model.network_, few, x))
    answers = [model.generate(known).predict(x) for known in at]
    said, low, high = (torch.stack(part) for part in zip(*answers, strict=True))
    scores[AUTO, ERROR] = error(said)
    nets = run_models(model.network_, pool.own, x)
    scores[AUTO, COVERED] = ((low <= nets) & (nets <= high)).double().mean((1, 2))
    return scores


def rows_of(found: dict[int, Scores]) -> list[Row]:
    rows: list[Row] = []
    own = {seed: scores[OWN, ERROR] for seed, scores in found.items()}
    for name, metric in next(iter(found.values())):
        values = {seed: scores[name, metric] for seed, scores in found.items()}
        rows.append(make_row(name, {}, metric, values, fresh_tasks=True))
        if metric == ERROR and name != OWN:
            ratio = {seed: float(value.mean() / own[seed].mean()) for seed, value in values.items()}
            rows.append(make_row(name, {}, RATIO, ratio))
            rows.append(make_row(name, {}, PAIRED, differences(values, own), fresh_tasks=True))
    return rows


def sections(results: Results) -> list[Section]:
    methods = list(dict.fromkeys(row.method for row in results.rows))
    shown = [Column(metric, metric, {}, 4, "lower") for metric in (ERROR, RATIO, PAIRED)]
    columns = [*shown, Column(f"{COVERED} of 90 % intervals", COVERED, {}, 3)]
    baselines = [name for name in methods if name in (FROZEN, FEW, "nearest", "average")]
    caption = "Unseen users, no rows of theirs unless it says so; errors against noiseless ratings"
    return [Section("Adapters", table=table(results, methods, columns, baselines, [OWN], caption=caption))]


def verdict(rows: Sequence[Row], seconds: float) -> str:
    at = {(row.method, row.metric): row.mean for row in rows}
    if (AUTO, RATIO) not in at:
        return "The automatic choice was not run."
    return (
        f"An adapter generated without a row of the user errs {at[AUTO, RATIO]:.2f} times as much as one of 500 rows; "
        f"one trained on 10 errs {at[FEW, RATIO]:.2f} times, the nearest user's {at['nearest', RATIO]:.2f} "
        f"({seconds:.0f} s)."
    )
