"""Sources that hurt: census states as sources of a state, a third of them corrupted; who finds them?

For each seed a random third of the sources is corrupted: a third of those have labels flipped with probability 0.6, a
third have every feature column permuted over rows, a third have the codes of occupation, class of worker
and schooling renamed by a random bijection. Every method gets the same number of trials on validation rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from warmstart.core import check_names
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.estimators.source_methods import ALL, BASELINES, METHODS, OURS, RANDOM, TREES, TUNED, Plan, Session
from warmstart.report import Column, Results, Row, called, make_results, plain, table
from warmstart.report.page import Outcome, Section
from warmstart.selection import final, task_model, training
from warmstart.selection.measures import cross_entropy
from warmstart.studies.select_rows import (
    ACCURACY,
    BEST,
    EXCLUDED,
    KEPT,
    MEAN,
    WORST,
    Score,
    preferred,
    rows_of,
    run_method,
)
from warmstart.tasks.acs_income import CODES, INCOME, NUMBERS, ROLES, STATE, read_acs_income
from warmstart.tasks.data_folder import given
from warmstart.tasks.transfer import Transfer, read_transfer

FLIPPED, PERMUTED, RENAMED = range(3)
FLIP = 0.6
BIJECTED = ("OCCP", "COW", "SCHL")
TARGETS = ("HI", "KS", "LA", "NJ", "NV", "SC")


class Preset(NamedTuple):
    targets: tuple[str, ...]
    methods: tuple[str, ...]
    plan: Plan
    most: int | None = None  # rows of a source


QUICK = Plan(
    final.Config(training.Config(steps=300, batch=256), tuning=50),
    task_model.Config(
        subsets=100, held_out=20, starts=1, training=training.Config(hidden=(32,), steps=150, balance=0.0)
    ),
    trials=5,
    tree_rows=20_000,
)
FULL = Plan(final.Config(), task_model.Config(), trials=10, threads=max(1, (os.cpu_count() or 1) - 1))
PRESETS = {
    "quick": Preset(("HI",), ("target only", ALL, TUNED, RANDOM, TREES, OURS), QUICK, 3000),
    "full": Preset(TARGETS, tuple(METHODS), FULL),
}


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
    check_names(only, METHODS)
    data = given(data, "ACSIncome")
    began, chosen, place = time.perf_counter(), PRESETS[preset], choose_device(device)
    names = [name for name in METHODS if name in (only or chosen.methods)]
    people = read_acs_income(data)
    judged: dict[str, dict[tuple[int, str], Score]] = {name: {} for name in names}
    for seed in seeds:
        for target in chosen.targets:
            transfer, corrupted = corrupted_transfer(people, target, seed, chosen.most)
            transfer = transfer.to(place)
            session = Session(transfer, cross_entropy, chosen.plan, seed, {}, {})
            report = (progress or (lambda label: silent))(f"{target}, seed {seed}")
            for i, name in enumerate(names):
                kept = None if folder is None else folder / f"seed {seed}" / target / f"{name}.json"
                judged[name][seed, target] = run_method(name, session, corrupted >= 0, kept)
                report(i + 1, len(names), name)
    if len(names) > 1:
        judged[BEST] = preferred(judged)
        names.append(BEST)
    results = make_results("select_harm", preset, str(place), called(), rows_of(judged))
    return Outcome(results, sections(results, names), verdict(results.rows, time.perf_counter() - began))


def corrupted_transfer(
    people: pd.DataFrame, target: str, seed: int, most: int | None = None
) -> tuple[Transfer, Tensor]:
    """The transfer, and of each source how it was corrupted, or -1."""
    states = [state for state in people[STATE].unique() if state != target]
    kinds = corruptions(states, seed)
    table = corrupt(people, {state: kind for state, kind in kinds.items() if kind >= 0}, seed)
    transfer = read_transfer(table, ROLES, target, seed=seed, most=most)
    return transfer, torch.tensor([kinds[state] for state in transfer.names[:-1]])


def corruptions(states: Sequence[str], seed: int) -> dict[str, int]:
    """State -> kind of corruption, or -1: a random third, a third of those of each kind."""
    draw = np.random.default_rng([seed, 1])
    chosen = draw.permutation(len(states))[: round(len(states) / 3)]
    kinds = dict.fromkeys(states, -1)
    return kinds | {states[index]: place % 3 for place, index in enumerate(chosen)}


def corrupt(people: pd.DataFrame, kinds: dict[str, int], seed: int) -> pd.DataFrame:
    """The table with the rows of these states corrupted, each by draws of its own."""
    parts: list[Any] = []
    values = {name: np.sort(people[name].unique()) for name in BIJECTED}
    for place, (state, rows) in enumerate(people.groupby(STATE, sort=False)):
        kind, draw = kinds.get(str(state), -1), np.random.default_rng([seed, 2, place])
        rows = rows.copy()
        if kind == FLIPPED:
            rows[INCOME] = rows[INCOME].to_numpy() ^ (draw.random(len(rows)) < FLIP)
        elif kind == PERMUTED:
            for name in (*NUMBERS, *CODES):
                rows[name] = rows[name].to_numpy()[draw.permutation(len(rows))]
        elif kind == RENAMED:
            for name, codes in values.items():
                rows[name] = draw.permutation(codes)[np.searchsorted(codes, rows[name].to_numpy())]
        parts.append(rows)
    whole: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return whole


def sections(results: Results, names: Sequence[str]) -> list[Section]:
    found = []
    pairs = [f"{ACCURACY} minus {other}" for other in (ALL, RANDOM, TREES)]
    columns = [Column(metric, metric, {"target": MEAN}, 2, "higher") for metric in (ACCURACY, WORST)]
    columns += [Column(metric, metric, {"target": MEAN}, 2) for metric in pairs]
    caption = "Percent of the target's test rows, mean over targets; differences are paired by seed and target"
    baselines = [name for name in names if name in BASELINES]
    found.append(Section("Accuracy", table=table(results, names, columns, baselines, caption=caption)))
    told = [name for name in names if any(row.method == name and row.metric == EXCLUDED for row in results.rows)]
    shares = [Column(metric, metric, {"target": MEAN}, 1, "higher") for metric in (EXCLUDED, KEPT)]
    found.append(Section("Which sources were found out", table=table(results, told, shares, baselines)))
    other = [row for row in results.rows if "Spearman" in row.metric and row.setting["target"] == MEAN]
    lines = [[row.method, row.metric, f"{row.mean:.3f}"] for row in other]
    if lines:
        found.append(Section("The surrogate", table=plain(["method", "quality", "mean"], lines)))
    return found


def verdict(rows: Sequence[Row], seconds: float) -> str:
    at = {(row.method, row.metric): row for row in rows if row.setting["target"] == MEAN}
    if (OURS, EXCLUDED) not in at:
        return f"Rows of {len({row.method for row in rows})} methods ({seconds:.0f} s)."
    parts = [f"excludes {at[OURS, EXCLUDED].mean:.0f} % of the corrupted sources"]
    parts.append(f"keeps {at[OURS, KEPT].mean:.0f} % of the clean ones")
    for other in (ALL, RANDOM):
        apart = at.get((OURS, f"{ACCURACY} minus {other}"))
        if apart is not None:
            parts.append(f"{apart.mean:+.2f} points of accuracy against {other}")
    return f"{OURS} {', '.join(parts)} ({seconds:.0f} s)."
