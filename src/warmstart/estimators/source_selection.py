"""Which sources to train with: coefficients with intervals, rivals beside, and the model that validation prefers.

Every method is chosen and compared on validation rows of the target; test rows are looked at once, for the gain over
the best way to use all sources and over the best to use none. When no set of sources is worth it, the verdict says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.baselines import pooled_trees
from warmstart.core import InputError, check_names
from warmstart.engine.loop import Report, silent
from warmstart.estimators.source_methods import (
    ALL,
    ALL_BOTH,
    ALONE,
    BASELINES,
    BOTH,
    CHOSEN_TREES,
    METHODS,
    OURS,
    RANDOM,
    TREES,
    TREES_ALONE,
    TREES_BLIND,
    TUNED,
    Plan,
    Session,
    estimated,
    fit_method,
)
from warmstart.metrics.intervals import z_score
from warmstart.report import Column, Results, Row, called, make_results, make_row, plain, table
from warmstart.report.figures import ranking
from warmstart.report.page import Outcome, Section
from warmstart.selection import task_model
from warmstart.selection.final import Fitted, standard_error
from warmstart.selection.measures import Measure, cross_entropy, zero_one
from warmstart.tasks.transfer import Rows, Transfer

NETWORKS = (ALONE, ALL, TUNED, RANDOM, OURS)
FORESTS = (TREES_ALONE, TREES, CHOSEN_TREES, ALL_BOTH, BOTH)
RIGHT = "accuracy"
WITHOUT = (ALONE, TREES_ALONE)  # which use no source
EVERY = (ALL, TUNED, TREES, TREES_BLIND, ALL_BOTH)  # which use all of them alike


class Gain(NamedTuple):
    """How much lower the measure is than another model's on test rows, and a 95 % interval."""

    mean: float
    low: float
    high: float


class Selection(NamedTuple):
    transfer: Transfer
    estimate: task_model.Estimate
    fitted: dict[str, Fitted]
    best: str  # the method that validation prefers
    level: tuple[str, ...] = ()  # those of the same validation value, where there are others


def select_sources(
    transfer: Transfer,
    measure: Measure,
    plan: Plan,
    seed: int = 0,
    methods: Sequence[str] = (),
    evaluate: task_model.Evaluate | None = None,
    progress: Callable[[str], Report] | None = None,
) -> Selection:
    """Fit the methods and keep all: those named beside using no source and all of them, or else the usual ones:
    networks, and the boosted trees that can be fitted."""
    check_names(methods, METHODS)
    if transfer.kind == "squared":
        raise InputError("a target of classes", "numbers", "cut them into classes, or predict another column")
    forests = FORESTS if find_spec("lightgbm") and not transfer.ordered else ()
    usual = (*NETWORKS, *(name for name in forests if name in WITHOUT or not transfer.apart))
    names = dict.fromkeys((ALONE, ALL, *methods) if methods else usual)
    for name in names:  # what cannot be fitted, or is undefined, is said before the work
        if name in (*FORESTS, TREES_BLIND):
            pooled_trees.check(transfer, name not in WITHOUT)
    for part, rows in (("validation", transfer.validation), ("test", transfer.test)):
        try:
            measure(torch.zeros(1, len(rows.y), transfer.outputs, device=rows.y.device), rows)
        except InputError as error:
            raise InputError(f"{error.expected} among {part} rows", error.got, error.remedy) from None
    session = Session(transfer, measure, plan, seed, {}, {}, evaluate)
    report = (progress or (lambda label: silent))("methods")
    found = estimated(session)
    fitted = {}
    for i, name in enumerate(names):
        fitted[name] = fit_method(session, name)[0]
        report(i + 1, len(names), name)
    return Selection(transfer, found, fitted, *preferred(transfer, fitted))


def preferred(transfer: Transfer, fitted: dict[str, Fitted]) -> tuple[str, tuple[str, ...]]:
    """The method of the lowest validation value, and all that are level with it where there are others; then that of
    the lowest cross-entropy."""
    least, rows = min(fit.value for fit in fitted.values()), transfer.validation
    level = tuple(name for name, fit in fitted.items() if fit.value == least)
    if len(level) == 1:
        return level[0], ()
    losses = {name: float(cross_entropy(fitted[name].outputs(rows.x)[None].to(rows.y.device), rows)) for name in level}
    return min(losses, key=lambda name: losses[name]), level


def rivals(chosen: Selection) -> list[str]:
    """What gains are over: of the methods with all sources, and of those with none, the one that validation prefers.
    A method is not held against others of its own side."""
    values = {name: fit.value for name, fit in chosen.fitted.items()}
    sides = [[name for name in side if name in values] for side in (EVERY, WITHOUT) if chosen.best not in side]
    return [min(side, key=lambda name: values[name]) for side in sides if side]


def gain(measure: Measure, rows: Rows, ours: Tensor, theirs: Tensor) -> Gain:
    """Of outputs [n, out]: their measure minus ours, by drawing rows again within groups."""
    out = torch.stack([theirs.to(ours), ours])
    first, second = measure(out, rows).tolist()
    half = z_score(0.95) * standard_error(measure, out, rows)
    return Gain(first - second, first - second - half, first - second + half)


def report_on(
    chosen: Selection, measure: Measure, metric: str, seed: int = 0, device: str = "cpu", preset: str = "select"
) -> Outcome:
    """Tables, the ranked chart and the verdict."""
    transfer, test = chosen.transfer, chosen.transfer.test
    said = {name: fit.outputs(test.x) for name, fit in chosen.fitted.items()}
    rows: list[Row] = []
    for name, out in said.items():
        on_test = out[None].to(test.y.device)
        rows.append(make_row(name, {"rows": "test"}, metric, {seed: float(measure(on_test, test))}))
        rows.append(make_row(name, {"rows": "validation"}, metric, {seed: chosen.fitted[name].value}))
        rows.append(make_row(name, {"rows": "test"}, RIGHT, {seed: 100 * (1 - float(zero_one(on_test, test)))}, "%"))
    target = transfer.names[-1]
    command = called()
    results = make_results(f"select {target}", preset, device, command, rows)
    gains = {name: gain(measure, test, said[chosen.best], said[name]) for name in rivals(chosen)}
    return Outcome(results, _sections(results, chosen, metric, gains), verdict(chosen, gains, metric))


def _sections(results: Results, chosen: Selection, metric: str, gains: dict[str, Gain]) -> list[Section]:
    found, names = chosen.estimate.surrogate, chosen.transfer.names[:-1]
    members = chosen.fitted[chosen.best].members
    order = found.theta.argsort().tolist()
    lines = [
        [
            names[i],
            f"{1000 * float(found.theta[i]):+.2f}",
            f"{1000 * float(found.low[i]):+.2f} to {1000 * float(found.high[i]):+.2f}",
            "yes" if members[i] else "no",
        ]
        for i in order
    ]
    columns = [Column(part, metric, {"rows": part}, 4, "lower") for part in ("validation", "test")]
    columns.append(Column("right on test rows (%)", RIGHT, {"rows": "test"}, 1, "higher"))
    baselines = [name for name in chosen.fitted if name in BASELINES]
    caption = f"{metric}, lower is better; the model of the lowest validation value is kept: {chosen.best}"
    scored = table(results, list(chosen.fitted), columns, baselines, caption=caption)
    wins = [[f"over {name}", f"{g.mean:+.4f}", f"{g.low:+.4f} to {g.high:+.4f}"] for name, g in gains.items()]
    svg = ranking(
        names, found.theta, found.low, found.high, members.tolist(), f"effect on {metric} (below zero: helps)"
    )
    prose = how_sure(chosen.estimate)
    ranked = plain(["source", "effect x 1000", "95 % interval", "used"], lines, "Sources, the most helpful first")
    return [
        Section("Sources", prose, ranked, svg, "Filled: used by the model that is kept."),
        Section("Methods", table=scored),
        Section("Gain on test rows", table=plain(["gain", metric, "95 % interval"], wins)),
    ]


def how_sure(found: task_model.Estimate) -> str:
    """What is known of the surrogate, in words."""
    quality, ceiling, compared, note = found.quality, found.ceiling, found.comparison, found.surrogate.note
    share = quality.error / quality.variance if quality.variance > 0 else float("nan")
    words = f"On {quality.n} subsets it has not seen the surrogate has a Spearman correlation of {quality.spearman:.2f}"
    words += f" (two trainings of the same subsets: {ceiling:.2f})" if ceiling == ceiling else ""
    words += f" and a squared error of {share:.2f} times the variance."
    if compared is not None:
        words += f" These are linearised estimates: with {compared.n} real trainings they have a Spearman correlation"
        words += f" of {compared.spearman:.2f}, and they are {100 * compared.error:.1f} % off."
    return words + (f" {note[0].upper()}{note[1:]}." if note else "")


def verdict(chosen: Selection, gains: dict[str, Gain], metric: str) -> str:
    """One sentence: what is kept, and whether choosing sources was worth it."""
    used = int(chosen.fitted[chosen.best].members.sum())
    of = chosen.transfer.sources
    kept = f"{chosen.best} with {used} of {of} sources is kept"
    if chosen.level:
        kept += f" ({len(chosen.level)} methods are level on validation rows, and it has the least cross-entropy)"
    if chosen.best in WITHOUT or not used:
        return f"No set of sources helps: {kept}."
    if chosen.best in EVERY:
        return f"Choosing among the sources is not worth it here: {kept}."
    told, rival = f"{kept[0].upper()}{kept[1:]}", next(name for name in gains if name in EVERY)
    if gains[rival].low <= 0:
        return f"{told}, but on test rows it is not surely better than {rival} in {metric}."
    return f"{told}; it lowers {metric} by {gains[rival].mean:.4f} against {rival}."


def describe(chosen: Selection) -> dict[str, Any]:
    """For JSON: the coefficients, how sure they are, the chosen sources and the method."""
    found, names = chosen.estimate.surrogate, chosen.transfer.names[:-1]
    quality, compared = chosen.estimate.quality, chosen.estimate.comparison
    surrogate = {**quality._asdict(), "ceiling": chosen.estimate.ceiling, "note": found.note}
    surrogate["estimates"] = None if compared is None else compared._asdict()
    members = chosen.fitted[chosen.best].members.tolist()
    parts = zip(names, found.theta.tolist(), found.low.tolist(), found.high.tolist(), members, strict=True)
    keys = ("source", "effect", "low", "high", "used")
    return {
        "method": chosen.best,
        "surrogate": surrogate,
        "sources": [dict(zip(keys, part, strict=True)) for part in parts],
    }
