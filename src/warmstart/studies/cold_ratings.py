"""Cold-start ratings: users unseen in training, judged after 0, 1, 2, 5, 10, 20 and 80 % of their ratings.

The protocol of Yu et al. (2021), Tables 2 to 5 (tasks/cold_start.py), on MovieLens-1M and on BookCrossing, there by
their filter and with users of at least 10 ratings. Splits differ by more than methods do, so every method also has
its paired differences to the shrunk item and user effects and to a boosted stack of all baselines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from warmstart.core import Prediction, check_names
from warmstart.engine.device import choose_device
from warmstart.engine.files import read_tensors, write_tensors
from warmstart.engine.loop import Report, silent
from warmstart.estimators import preference_rivals, stacking
from warmstart.estimators.judging import interval
from warmstart.estimators.preference_judging import conformal
from warmstart.learners import preference_bayes
from warmstart.maths.trees import booster
from warmstart.metrics.errors import absolute_error, squared_error
from warmstart.metrics.intervals import coverage, gaussian
from warmstart.metrics.minority import gap, is_major
from warmstart.metrics.ranking import ndcg
from warmstart.report import Column, Results, Row, called, differences, make_results, make_row, plain, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.report.svg import looks
from warmstart.studies import cold_learners
from warmstart.tasks.book_crossing import read_book_crossing
from warmstart.tasks.cold_start import (
    BOOKS,
    PAPER,
    PAPER_BOOKS,
    SIZES,
    Parts,
    Protocol,
    Users,
    everything,
    first,
    save_parts,
    split_users,
)
from warmstart.tasks.data_folder import given
from warmstart.tasks.movielens import read_movielens_1m
from warmstart.tasks.ratings import Ratings, to_batch, to_stack
from warmstart.training.preferences import Fitted
from warmstart.training.search import search

Predictor: TypeAlias = Callable[[Users], Prediction]
Scores: TypeAlias = dict[str, Tensor]  # "metric, support" -> one number per test user
MSE, MAE, COVERED, MINOR = "MSE", "MAE", "coverage", "coverage, minor users"
OWN = "coverage, own"  # of intervals by a method's own variance, which validation users have not put right
NDCG = {"nDCG@3": 3, "nDCG@5": 5}
METRICS = (MSE, MAE, *NDCG, COVERED, OWN)
BIAS, STACK = "bias", "stack of baselines"
GAP, STUDENT, WELCH = "minor minus major MSE", "p, Student", "p, Welch"
PAIRED = f"{MSE} minus {BIAS}"
AGAINST = [(MSE, BIAS), (MSE, STACK), *((name, STACK) for name in NDCG)]  # what is paired, and with whom
MAJOR, SINGLE = "share of major users", "share of single-item queries"
ALL = "80 %"  # of the ratings, after the sizes
LEVEL = 0.9


class Entry(NamedTuple):
    fit: Callable[[Ratings, Any, int], Predictor]
    config: Any
    space: Mapping[str, Sequence[Any]] = {}
    learns: bool = False  # takes validation users and a device, and gives more than predictions


PLAIN = preference_bayes.Config(profile=False, choices=0, content=1.0)
ENTRIES: dict[str, Entry | cold_learners.Learnt] = {
    **{name: Entry(*rival) for name, rival in preference_rivals.BASELINES["squared"].items()},
    "preference_bayes": Entry(preference_bayes.fit, preference_bayes.Config(), preference_bayes.SPACE),
    "preference_bayes, ratings alone": Entry(preference_bayes.fit, PLAIN),
    "preference_bayes, without choices": Entry(preference_bayes.fit, preference_bayes.Config(choices=0)),
    **cold_learners.ENTRIES,
}
BASELINES = tuple(preference_rivals.BASELINES["squared"])
MEMBERS = BASELINES[3:]  # the means are what the effects say with an extreme shrinkage
STACKS = {STACK: MEMBERS, "stack with learners": (*MEMBERS, "preference_bayes")}


class Source(NamedTuple):
    read: Callable[[Path], Ratings]
    protocol: Protocol
    profile: tuple[str, ...]  # what makes a user common or unusual
    published: Mapping[tuple[str, int | str], str]
    defaults: Mapping[str, Any] = {}  # first trials, where validation users prefer others


SPARSE = preference_bayes.Config(factors=4, choices=8, least=3, user_ridge=300.0, item_ridge=5.0, noise_events=60.0)
READER = ("city", "state", "country", "age")
SOURCES = {
    "ml-1m": Source(
        lambda path: read_movielens_1m(path),
        PAPER,
        ("gender", "age", "occupation", "zip"),
        {
            (MSE, ALL): "paper 1.210",
            ("nDCG@3", ALL): "paper 0.779",
            ("nDCG@5", ALL): "paper 0.803",
            (MAJOR, ALL): "paper 0.65",
        },
    ),
    "books": Source(lambda path: read_book_crossing(path), BOOKS, READER, {}, {"preference_bayes": SPARSE}),
    "books, light users": Source(
        lambda path: read_book_crossing(path),
        PAPER_BOOKS,
        READER,
        {(MSE, ALL): "paper 3.93"},
        {"preference_bayes": SPARSE},
    ),
}


class Preset(NamedTuple):
    methods: tuple[str, ...]
    trials: int  # for each method, on validation users
    lightest: float = PAPER.lightest  # share of the users of MovieLens-1M
    sources: tuple[str, ...] = ("ml-1m",)


PRESETS = {
    "quick": Preset(("global mean", "item mean", BIAS, "als", "item kNN", "preference_bayes"), 1, 0.3),
    "full": Preset((*ENTRIES, *STACKS), 4, sources=tuple(SOURCES)),
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
    """Networks on the device, the rest on the CPU. With a folder, an interrupted run goes on.

    `only` may name data as well.
    """
    check_names(only, (*ENTRIES, *STACKS, *SOURCES))
    where = choose_device(device)
    data = given(data, "MovieLens-1M")
    began, chosen = time.perf_counter(), PRESETS[preset]
    every = (*ENTRIES, *STACKS)
    methods = [name for name in every if name in only] or [name for name in every if name in chosen.methods]
    sources = [name for name in SOURCES if name in only] or list(chosen.sources)
    rows: list[Row] = []
    drawn: list[Section] = []
    for source in sources:
        ratings = SOURCES[source].read(data)
        judged: dict[str, dict[int, Scores]] = {name: {} for name in methods}
        facts: dict[int, Tensor] = {}
        for seed in seeds:
            protocol = replace(SOURCES[source].protocol, seed=seed)
            if source == "ml-1m":
                protocol = replace(protocol, lightest=chosen.lightest)
            parts = split_users(ratings, protocol)
            place = None if folder is None else folder / f"{source}, seed {seed}"
            if place is not None:
                save_parts(place / "split.json", parts, protocol)
            facts[seed] = torch.from_numpy(major_users(parts, SOURCES[source].profile))
            split = Split(source, parts, chosen.trials, seed, place, where, {}, {}, {})
            for name in methods:
                report = (progress or (lambda label: silent))(f"{name}, {source}, seed {seed}")
                judged[name][seed] = run_method(name, split, report)
        rows += rows_of(judged, facts, source)
        rows += cold_learners.rows(judged, facts, {"data": source, "support": ALL})
        drawn += cold_learners.sections(judged, facts, [name for name in ("bias",) if name in methods])
    used = where.type if any(ENTRIES[name].learns for name in methods if name in ENTRIES) else "cpu"
    results = make_results("cold_ratings", preset, used, called(), rows)
    results = replace(results, versions=results.versions | {"boosted trees": booster()})
    return Outcome(results, sections(results, methods, sources) + drawn, verdict(rows, time.perf_counter() - began))


class Split(NamedTuple):
    """One draw of users, and what has been settled on it so far."""

    source: str
    parts: Parts
    trials: int
    seed: int
    folder: Path | None
    device: torch.device  # of networks
    configs: dict[str, Any]
    networks: dict[tuple[str, Any], Any]  # what was trained, by method and configuration
    levels: dict[str, stacking.Level]  # by the names of the members, which stacks share


def run_method(name: str, split: Split, report: Report) -> Scores:
    """Tuned on validation users, fitted on training users, judged on test users."""
    kept = None if split.folder is None else split.folder / f"{name}.safetensors"
    if kept is not None and kept.exists():
        return read_tensors(kept)[0]
    if name in STACKS:
        scores = judge(fit_stack(STACKS[name], split, everything(split.parts.train), report), split.parts.test)
    else:
        found = fitted(name, settled(name, split, report), split)
        scores = judge(_predictor(found), split.parts.test, split.parts.validation)
        if isinstance(found, Fitted):
            embedding, rate = found.about(split.parts.test)
            told = {cold_learners.EMBEDDING: embedding, cold_learners.RATE: rate}
            scores |= {key: value.contiguous() for key, value in told.items() if value.numel()}
    report(split.trials, split.trials, f"MSE {float(scores[f'{MSE}, {ALL}'].nanmean()):.4f}")
    if kept is not None:
        write_tensors(kept, scores)
    return scores


def settled(name: str, split: Split, report: Report) -> Any:
    """The configuration that validation users prefer, searched once for each split."""
    if name not in split.configs:
        entry = ENTRIES[name]

        def validate(config: Any) -> float:
            predict = _predictor(fitted(name, config, split))
            errors = [_mse(predict, shown).nanmean() for shown in at_sizes(split.parts.validation).values()]
            return float(torch.stack(errors).mean())

        config = SOURCES[split.source].defaults.get(name, entry.config)
        if split.trials > 1 and entry.space:
            store = None if split.folder is None else split.folder / f"{name}.trials.json"
            config = search(validate, config, entry.space, split.trials, split.seed, store, report)[0].config
        split.configs[name] = config
    return split.configs[name]


def fitted(name: str, config: Any, split: Split) -> Any:
    """What a configuration makes of the training users; networks, which take long, are kept."""
    fit: Callable[..., Any] = ENTRIES[name].fit
    train = everything(split.parts.train)
    if not ENTRIES[name].learns:
        return fit(train, config, split.seed)
    if (name, config) not in split.networks:
        split.networks[name, config] = fit(train, config, split.seed, split.parts.validation, split.device)
    return split.networks[name, config]


def _predictor(found: Any) -> Predictor:
    chosen: Predictor = found.predict if isinstance(found, Fitted) else found
    return chosen


def fit_stack(members: Sequence[str], split: Split, train: Ratings, report: Report) -> Predictor:
    """The stack of some members as they were tuned; what one stack asked of held-out users serves the next."""
    cfg = stacking.Config(protocol=SOURCES[split.source].protocol)
    for name in members:
        config = settled(name, split, report)
        if name not in split.levels:
            fit = partial(_fit, name, config, split.seed)
            split.levels[name] = stacking.level_one(train, {name: fit}, cfg, split.seed)
    whole = split.levels[members[0]]
    level = whole._replace(said={name: split.levels[name].said[name] for name in members})
    whole_fits = {name: _fit(name, split.configs[name], split.seed, train) for name in members}
    return stacking.assemble(train, whole_fits, level, cfg, split.seed)


def _fit(name: str, config: Any, seed: int, train: Ratings) -> Predictor:
    return _predictor(ENTRIES[name].fit(train, config, seed))


def at_sizes(users: Users) -> dict[int | str, Users]:
    return {size: first(users, size) for size in SIZES} | {ALL: users}


def judge(predict: Predictor, users: Users, validation: Users | None = None) -> Scores:
    """Every metric at every size, one number per user, NaN where there is nothing to judge; intervals as they are
    served, calibrated on validation users who had shown as many ratings."""
    batch, calibration = to_batch(users.asked), None
    scores: Scores = {SINGLE: (batch.mask.sum(-1) == 1).double()}
    for size, shown in at_sizes(users).items():
        said = predict(shown)
        mean = to_stack(users.asked, said.mean.double())
        scores[f"{MSE}, {size}"] = squared_error(mean, batch)
        scores[f"{MAE}, {size}"] = absolute_error(mean, batch)
        for name, k in NDCG.items():
            scores[f"{name}, {size}"] = ndcg(mean, batch, k)
        if isinstance(said.variance, Tensor):
            whole = Prediction(mean, to_stack(users.asked, said.variance.double()).clamp(min=1e-9))
            scores[f"{OWN}, {size}"] = coverage(*gaussian(*whole[:2], LEVEL), batch)
            if validation is not None:
                calibration = calibration or conformal(predict, validation)
                count = torch.from_numpy(np.bincount(shown.shown.user, minlength=len(mean)))
                scores[f"{COVERED}, {size}"] = coverage(*interval(calibration, whole, count, LEVEL), batch)
    return scores


def major_users(parts: Parts, columns: Sequence[str]) -> Any:
    """Which test users are major, by frequent values among all users that the protocol keeps."""
    profiles = pd.concat([part.shown.users for part in parts])
    return is_major(profiles, columns)[-len(parts.test.shown.users) :]


def _mse(predict: Predictor, users: Users) -> Tensor:
    return squared_error(to_stack(users.asked, predict(users).mean.double()), to_batch(users.asked))


def rows_of(judged: Mapping[str, Mapping[int, Scores]], facts: Mapping[int, Tensor], source: str) -> list[Row]:
    rows: list[Row] = []
    published = SOURCES[source].published
    for name, by_seed in judged.items():
        for size in (*SIZES, ALL):
            setting = {"data": source, "support": size}
            for metric in METRICS:
                values = {s: kept for s, found in by_seed.items() if (kept := _scored(found, metric, size)) is not None}
                if values:
                    learnt = cold_learners.paper(name, metric) if size == ALL and source == "ml-1m" else ""
                    peer = learnt or published.get((metric, size), "")
                    rows.append(make_row(name, setting, metric, values, peer=peer, fresh_tasks=True))
            for told, metric in ((MINOR, COVERED), (f"{MINOR}, own", OWN)):
                covered = {s: found.get(f"{metric}, {size}") for s, found in by_seed.items()}
                minor = {s: kept[~facts[s] & ~kept.isnan()] for s, kept in covered.items() if kept is not None}
                if minor:
                    rows.append(make_row(name, setting, told, minor, fresh_tasks=True))
            for metric, other in AGAINST:
                if other in judged and name != other:
                    ours, theirs = (
                        {s: kept for s, f in judged[n].items() if (kept := _scored(f, metric, size)) is not None}
                        for n in (name, other)
                    )
                    if ours:
                        told = f"{metric} minus {other}"
                        rows.append(make_row(name, setting, told, differences(ours, theirs), fresh_tasks=True))
        setting = {"data": source, "support": ALL}
        gaps = {s: gap(found[f"{MSE}, {ALL}"], facts[s].numpy()) for s, found in by_seed.items()}
        for metric, field in ((GAP, "difference"), (STUDENT, "student"), (WELCH, "welch")):
            rows.append(make_row(name, setting, metric, {s: getattr(found, field) for s, found in gaps.items()}))
    shared = {"data": source}
    peer = published.get((MAJOR, ALL), "")
    rows.append(make_row("protocol", shared, MAJOR, {s: major.double() for s, major in facts.items()}, peer=peer))
    first_method = next(iter(judged.values()))
    rows.append(make_row("protocol", shared, SINGLE, {s: found[SINGLE] for s, found in first_method.items()}))
    return rows


def _scored(scores: Scores, metric: str, size: int | str) -> Tensor | None:
    """Of the users who can be judged, if there are any: nobody with one item to order can be."""
    values = scores.get(f"{metric}, {size}")
    kept = None if values is None else values[~values.isnan()]
    return kept if kept is not None and len(kept) else None


def sections(results: Results, methods: Sequence[str], sources: Sequence[str]) -> list[Section]:
    baselines = [name for name in methods if name in (*BASELINES, *STACKS)]
    found = []
    better = dict.fromkeys(NDCG, "higher") | {MSE: "lower"}
    better |= {f"{metric} minus {other}": better[metric] for metric, other in AGAINST}
    for source in sources:
        own = replace(results, rows=tuple(row for row in results.rows if row.setting["data"] == source))
        counted = [row for row in own.rows if row.metric == MSE and row.setting["support"] != ALL]
        picture = error_curves(curves(counted, MSE), looks(methods, baselines), x_label="ratings", y_label="MSE")
        found.append(Section(f"Error by number of ratings, {source}", svg=picture))
        for metric in (*better, COVERED):
            columns = [
                Column(f"{size}", metric, {"data": source, "support": size}, 3, better.get(metric, ""))
                for size in (*SIZES, ALL)
            ]
            shown = [name for name in methods if any(r.method == name and r.metric == metric for r in own.rows)]
            if shown:
                caption = f"{metric} by ratings in the support, mean over users, {source}"
                found.append(Section(metric, table=table(own, shown, columns, baselines, caption=caption)))
        groups = [Column(metric, metric, {"data": source, "support": ALL}, 3) for metric in (GAP, STUDENT, WELCH)]
        caption = "Gap between unusual and common users at 80 %; a high p-value is no evidence of equality"
        found.append(Section("Minor users", table=table(own, methods, groups, baselines, caption=caption)))
        facts = [[row.metric, f"{row.mean:.3f}", row.peer] for row in own.rows if row.method == "protocol"]
        found.append(Section("The protocol", table=plain(["of test users", "share", "published"], facts)))
    trees = results.versions["boosted trees"]
    found.append(Section("Trees", table=plain(["boosted trees and stacks", "grown by"], [["all", trees]])))
    return found


def verdict(rows: Sequence[Row], seconds: float) -> str:
    """Of the first data that was read."""
    source = rows[0].setting["data"]
    at = {
        row.method: row.mean
        for row in rows
        if row.metric == MSE and row.setting["support"] == ALL and row.setting["data"] == source
    }
    best = min((name for name in at if name not in STACKS), key=lambda name: at[name], default=next(iter(at)))
    others = {"the shrunk effects": BIAS, "a stack of the baselines": STACK}
    against = "".join(f", {told} {at[name]:.3f}" for told, name in others.items() if name in at and name != best)
    return (
        f"With 80 % of an unseen user's ratings ({source}) {best} has an MSE of {at[best]:.3f}{against} "
        f"({seconds:.0f} s)."
    )
