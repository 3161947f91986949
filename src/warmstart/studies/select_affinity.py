"""Does a set of sources help? Task modelling against averaging what each source does alone.

Figures 1 and 2 of the paper on census states, with Hawaii as target: whether the sign of f(S) - f(nothing) is right and
how well f is ranked, for sets of one to four sources, as they are and with a third of them corrupted as in
`select_harm`. Where nearly all sets help or nearly none does, the sign is no feat: what knowing only the more frequent
one is worth stands beside.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from warmstart.core import check_names
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.metrics.ranking import spearman
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.selection import surrogate, task_model, training
from warmstart.selection.measures import cross_entropy
from warmstart.selection.subsets import indicators, sample_subsets
from warmstart.studies.select_harm import corrupted_transfer
from warmstart.tasks.acs_income import ROLES, STATE, read_acs_income
from warmstart.tasks.data_folder import given
from warmstart.tasks.transfer import Transfer, read_transfer

TARGET, LEFT_OUT = "HI", "CA"
OURS, AVERAGE, MAJORITY = "task_model", "average of single sources", "the more frequent sign"
METHODS = (OURS, AVERAGE, MAJORITY)
SIZES = (1, 2, 3, 4)
SIGN, RANK = "sign right", "Spearman"
CLEAN, HARMED = "as they are", "a third corrupted"


class Preset(NamedTuple):
    subsets: int  # of every size, for the surrogate
    held_out: int  # of every size, to judge it
    cfg: task_model.Config
    most: int | None = None


SHORT = training.Config(hidden=(32,), steps=100, balance=0.0)
PRESETS = {
    "quick": Preset(30, 10, task_model.Config(starts=1, held_out=20, training=SHORT), 2000),
    "full": Preset(100, 50, task_model.Config()),
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
    check_names(only, (*METHODS, CLEAN, HARMED), "methods or sources")
    data = given(data, "ACSIncome")
    began, chosen, place = time.perf_counter(), PRESETS[preset], choose_device(device)
    names, kinds = (([name for name in all_of if name in only] or all_of) for all_of in (METHODS, (CLEAN, HARMED)))
    people = read_acs_income(data)
    people = people[people[STATE] != LEFT_OUT].reset_index(drop=True)
    rows: list[Row] = []
    for kind in kinds:
        found: dict[int, dict[tuple[str, str, int], float]] = {}
        report = (progress or (lambda label: silent))(f"sources {kind}")
        for i, seed in enumerate(seeds):
            found[seed] = helps(transfer_of(people, kind, seed, chosen.most).to(place), chosen, seed)
            report(i + 1, len(seeds), f"seed {seed}")
        for method, metric, number in next(iter(found.values())):
            if method in names:
                values = {seed: one[method, metric, number] for seed, one in found.items()}
                setting = {"target": TARGET, "sources": kind, "size": number}
                rows.append(make_row(method, setting, metric, values))
    results = make_results("select_affinity", preset, str(place), called(), rows)
    return Outcome(results, sections(results, names), verdict(rows, time.perf_counter() - began))


def transfer_of(people: pd.DataFrame, kind: str, seed: int, most: int | None) -> Transfer:
    if kind == HARMED:
        return corrupted_transfer(people, TARGET, seed, most)[0]
    return read_transfer(people, ROLES, TARGET, seed=seed, most=most)


def helps(transfer: Transfer, chosen: Preset, seed: int) -> dict[tuple[str, str, int], float]:
    """For sets of each size: is it known whether they help, and in which order they do?"""
    sources = transfer.sources
    evaluate = task_model.evaluator(transfer, cross_entropy, chosen.cfg)

    def mean(members: Tensor, first: int = 0) -> Tensor:
        starts = [evaluate(members, 1000 * seed + first + start) for start in range(chosen.cfg.starts)]
        return torch.stack(starts).mean(0)

    alone = mean(torch.eye(sources))
    nothing = float(mean(torch.zeros(1, sources)))
    shown, held = [], {}
    for size in SIZES[1:]:
        count = min(chosen.subsets + chosen.held_out, comb(sources, size))
        drawn = indicators(sample_subsets(sources, size, count, seed), sources)
        shown.append(drawn[: -chosen.held_out])
        held[size] = drawn[-chosen.held_out :]
    known, values = torch.cat([torch.eye(sources), *shown]), torch.cat([alone, *(mean(part) for part in shown)])
    model = surrogate.fit(known, values, replace(chosen.cfg.surrogate, draws=2), seed)
    found: dict[tuple[str, str, int], float] = {}
    for size in SIZES:
        members = torch.eye(sources) if size == 1 else held[size]
        # single sources are all fitted on, so they are judged by trainings from other starts
        first = chosen.cfg.starts if size == 1 else 0
        f, base = mean(members, first), float(mean(torch.zeros(1, sources), first)) if first else nothing
        share = float((f < base).double().mean())
        found[MAJORITY, SIGN, size] = max(share, 1 - share)
        for name, said in ((OURS, model.predict(members.double())), (AVERAGE, members @ alone / size)):
            right = ((said < nothing) == (f < base)).double().mean()
            found[name, SIGN, size], found[name, RANK, size] = float(right), spearman(said, f)
    return found


def sections(results: Results, names: Sequence[str]) -> list[Section]:
    found = []
    for kind in dict.fromkeys(str(row.setting["sources"]) for row in results.rows):
        for metric in (SIGN, RANK):
            columns = [Column(f"|S| = {size}", metric, {"size": size, "sources": kind}, 2, "higher") for size in SIZES]
            told = [name for name in names if any(row.method == name and row.metric == metric for row in results.rows)]
            made = table(results, told, columns, [AVERAGE, MAJORITY], caption=f"{metric}, sources {kind}")
            found.append(Section(f"{metric}, sources {kind}", table=made, svg=_picture(results, metric, kind)))
    return found


def _picture(results: Results, metric: str, kind: str) -> str:
    own = [row for row in results.rows if row.setting["sources"] == kind]
    return error_curves(curves(own, metric, "size"), x_label="sources in a set", y_label=metric)


def verdict(rows: Sequence[Row], seconds: float) -> str:
    said = []
    for kind in dict.fromkeys(str(row.setting["sources"]) for row in rows):
        parts = []
        for metric, name in itertools.product((SIGN, RANK), METHODS):
            asked = (name, metric, kind)
            values = [row.mean for row in rows if (row.method, row.metric, row.setting["sources"]) == asked]
            if values:
                parts.append(f"{metric} {sum(values) / len(values):.2f} by {name}")
        said.append(f"sources {kind}: {', '.join(parts)}")
    return f"Mean over sets of one to four sources; {'; '.join(said)} ({seconds:.0f} s)."
