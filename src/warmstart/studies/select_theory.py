"""Related and unrelated sources of a linear model: how many subsets until coefficients tell them apart?

The setting of Theorem 2.2: rows are standard normal, source i has parameters theta_t + z_i with z_i ~ N(0, a^2) when it
is related and N(0, b^2) when not; a subset's model is the least-squares fit of its rows together. First-order
scores (one training per source) are beside it, and the n needed is measured against the number of sources. And planted
harm: a third of the sources corrupted as in `select_harm`, labels flipped with probability 0.6, columns permuted over
rows or renamed; who is excluded by a coefficient above zero?
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import comb
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import check_names
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.selection import surrogate
from warmstart.selection.subsets import indicators, sample_subsets
from warmstart.studies.select_rows import EXCLUDED, KEPT

OURS, FIRST = "task_model", "hoa"
METHODS = (OURS, FIRST)
SIZE, FEATURES, ROWS, VALIDATION, NOISE = 5, 20, 100, 200, 1.0
NEAR, FAR = 0.2, 0.6  # a and b
SEPARATED, ORDER = "all related before all unrelated", "pairs in the right order"
PLANTED = "a third corrupted"
FLIP = 0.6
ENOUGH = 0.9  # share of runs that separate all sources


class Preset(NamedTuple):
    sources: tuple[int, ...]
    times: tuple[int, ...]  # n / k
    runs: int


PRESETS = {"quick": Preset((20,), (1, 2, 4, 8), 10), "full": Preset((10, 20, 40, 80), (1, 2, 4, 8, 16, 32), 50)}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """In double precision on the CPU."""
    check_names(only, METHODS)
    began, chosen, names = time.perf_counter(), PRESETS[preset], list(only) or list(METHODS)
    rows: list[Row] = []
    for sources in chosen.sources:
        report = (progress or (lambda label: silent))(f"{sources} sources")
        counts = [times * sources for times in chosen.times if times * sources <= comb(sources, SIZE)]
        found = {}
        for seed in seeds:
            found[seed] = [scores(sources, counts, seed, i, report, chosen.runs) for i in range(chosen.runs)]
        for name in names:
            for place, count in enumerate(counts if name == OURS else [sources]):
                setting = {"sources": sources, "n": count, "n / sources": count // sources}
                for metric in (SEPARATED, ORDER, EXCLUDED, KEPT):
                    values = {seed: [one[name][place][metric] for one in runs] for seed, runs in found.items()}
                    more = {"sources that hurt": PLANTED} if metric in (EXCLUDED, KEPT) else {}
                    rows.append(make_row(name, setting | more, metric, values, fresh_tasks=True))
    results = make_results("select_theory", preset, "cpu", called(), rows)
    return Outcome(results, sections(results, names), verdict(rows, time.perf_counter() - began))


def scores(
    sources: int, counts: Sequence[int], seed: int, place: int, report: Report = silent, of: int = 1
) -> dict[str, list[dict[str, float]]]:
    """For each method and number of subsets: whether all sources are separated, the share of ordered pairs, and with
    planted harm the percent of corrupted sources excluded and of clean ones kept."""
    problem, harm = make_problem(sources, seed, place), plant_harm(sources, seed, place)
    subsets = indicators(sample_subsets(sources, SIZE, max(counts), 1000 * seed + place), sources)
    cfg = surrogate.Config("ridge", penalty=0.01, draws=2)

    def judge(theta: Tensor, hurt: Tensor) -> dict[str, float]:
        apart, ordered = separation(theta, problem.related)
        excluded, kept = cut(hurt, harm.related)
        return {SEPARATED: apart, ORDER: ordered, EXCLUDED: excluded, KEPT: kept}

    f, g = losses(problem, subsets), losses(harm, subsets)
    ours = []
    for count in counts:
        theta, hurt = (surrogate.fit(subsets[:count], values[:count], cfg).theta for values in (f, g))
        ours.append(judge(theta, hurt))
    first, second = (losses(each, torch.eye(sources)) for each in (problem, harm))
    report(place + 1, of, "")
    return {OURS: ours, FIRST: [judge(first, second - second.mean())]}


class Problem(NamedTuple):
    gram: Tensor  # X_i' X_i [k, p, p]
    moment: Tensor  # X_i' y_i [k, p]
    x: Tensor  # validation rows of the target
    y: Tensor
    related: Tensor  # [k]


def make_problem(sources: int, seed: int, place: int) -> Problem:
    """Half of the sources are related."""
    draw = generator(seed, 41, sources, place)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    truth = normal(FEATURES)
    related = torch.arange(sources) < sources // 2
    spread = torch.where(related, NEAR, FAR).double()[:, None]
    own = truth + spread * normal(sources, FEATURES)
    x = normal(sources, ROWS, FEATURES)
    y = torch.einsum("krp,kp->kr", x, own) + NOISE * normal(sources, ROWS)
    asked = normal(VALIDATION, FEATURES)
    answer = asked @ truth + NOISE * normal(VALIDATION)
    return Problem(x.mT @ x, torch.einsum("krp,kr->kp", x, y), asked, answer, related)


def plant_harm(sources: int, seed: int, place: int) -> Problem:
    """All sources are related, but a random third is corrupted, a third of those in each way."""
    draw = generator(seed, 47, sources, place)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    truth = normal(FEATURES)
    x = normal(sources, ROWS, FEATURES)
    y = torch.einsum("krp,kp->kr", x, truth + NEAR * normal(sources, FEATURES)) + NOISE * normal(sources, ROWS)
    chosen = torch.randperm(sources, generator=draw)[: round(sources / 3)]
    for number, i in enumerate(chosen.tolist()):
        if number % 3 == 0:
            y[i] = torch.where(torch.rand(ROWS, generator=draw) < FLIP, -y[i], y[i])
        elif number % 3 == 1:
            order = torch.rand(ROWS, FEATURES, generator=draw).argsort(0)
            x[i] = x[i].gather(0, order)
        else:
            x[i] = x[i][:, torch.randperm(FEATURES, generator=draw)]
    clean = torch.ones(sources, dtype=torch.bool)
    clean[chosen] = False
    asked = normal(VALIDATION, FEATURES)
    answer = asked @ truth + NOISE * normal(VALIDATION)
    return Problem(x.mT @ x, torch.einsum("krp,kr->kp", x, y), asked, answer, clean)


def cut(theta: Tensor, clean: Tensor) -> tuple[float, float]:
    """Percent of the others excluded and of the clean ones kept when those below zero are used."""
    used = theta < 0
    return 100 * float((~used)[~clean].double().mean()), 100 * float(used[clean].double().mean())


def losses(problem: Problem, members: Tensor) -> Tensor:
    """f of sets [n, k]: the target's validation error of the joint least-squares fit."""
    weight = members.double()
    gram = torch.einsum("nk,kpq->npq", weight, problem.gram)
    moment = weight @ problem.moment
    fitted = torch.linalg.solve(gram, moment)
    left: Tensor = problem.y - fitted @ problem.x.T
    return left.square().mean(1)


def separation(theta: Tensor, related: Tensor) -> tuple[float, float]:
    inside, outside = theta[related], theta[~related]
    ordered = (inside[:, None] < outside).double().mean()
    return float(inside.max() < outside.min()), float(ordered)


def sections(results: Results, names: Sequence[str]) -> list[Section]:
    found = []
    own = [row for row in results.rows if row.method == OURS and row.metric == ORDER]
    lines = {}
    for sources in dict.fromkeys(row.setting["sources"] for row in own):
        part = curves([row for row in own if row.setting["sources"] == sources], ORDER, "n / sources")
        lines[f"{sources} sources"] = part[OURS]
    if lines:
        figure = error_curves(lines, x_label="subsets per source", y_label=ORDER)
        found.append(Section("Order by number of subsets", svg=figure))
    for sources in dict.fromkeys(row.setting["sources"] for row in results.rows):
        counts = dict.fromkeys(row.setting["n"] for row in results.rows if row.setting["sources"] == sources)
        for metric in (SEPARATED, ORDER, EXCLUDED, KEPT):
            columns = [Column(f"n {n}", metric, {"sources": sources, "n": n}, 2) for n in counts]
            told = f"{PLANTED}, percent" if metric in (EXCLUDED, KEPT) else "share of runs or pairs"
            caption = f"{sources} sources: {metric}, {told}"
            found.append(Section("", table=table(results, names, columns, [FIRST], caption=caption)))
    return found


def needed(rows: Sequence[Row]) -> dict[int, int | None]:
    """Sources -> the fewest subsets with which most runs separate all of them; None when none did."""
    found: dict[int, int | None] = {}
    for row in sorted(rows, key=lambda row: int(row.setting["n"])):
        if row.method == OURS and row.metric == SEPARATED:
            sources = int(row.setting["sources"])
            if row.mean >= ENOUGH and found.get(sources) is None:
                found[sources] = int(row.setting["n"])
            found.setdefault(sources, None)
    return found


def verdict(rows: Sequence[Row], seconds: float) -> str:
    parts = [f"{n or 'more'} with {k} sources" for k, n in needed(rows).items()]
    words = f"Subsets after which nine of ten runs separate all sources: {', '.join(parts)}"
    words = f"{words} (the paper's practice is 8 per source)"
    hurt = [row for row in rows if row.method == OURS and row.metric in (EXCLUDED, KEPT)]
    most = [row for row in hurt if row.setting["n / sources"] == max(int(r.setting["n / sources"]) for r in hurt)]
    if most:
        worst = [min(row.mean for row in most if row.metric == metric) for metric in (EXCLUDED, KEPT)]
        times = most[0].setting["n / sources"]
        words += f"; with {times} it excludes {worst[0]:.0f} % of corrupted sources and keeps {worst[1]:.0f} % of clean"
    return f"{words} ({seconds:.0f} s)."
