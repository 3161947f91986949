"""Cold-start ratings: users unseen in training, judged after 0, 1, 2, 5, 10, 20 and 80 % of their ratings.

The protocol of Yu et al. (2021), Tables 2 and 4, on MovieLens-1M (tasks/cold_start.py). Splits differ by more than
methods do, so every method also has its paired difference to the shrunk item and user effects.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from warmstart.baselines import autorec, rating_als, rating_items, rating_means, rating_trees
from warmstart.core import InputError, Prediction, check_names
from warmstart.engine.device import choose_device
from warmstart.engine.files import read_tensors, write_tensors
from warmstart.engine.loop import Report, silent
from warmstart.learners import preference_bayes
from warmstart.metrics.errors import absolute_error, squared_error
from warmstart.metrics.intervals import coverage, gaussian
from warmstart.metrics.minority import gap, is_major
from warmstart.metrics.ranking import ndcg
from warmstart.report import Column, Results, Row, differences, make_results, make_row, plain, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.report.svg import looks
from warmstart.studies import cold_learners
from warmstart.tasks.cold_start import PAPER, SIZES, Parts, Users, everything, first, save_parts, split_users
from warmstart.tasks.movielens import read_movielens_1m
from warmstart.tasks.ratings import Ratings, to_batch, to_stack
from warmstart.training.preferences import Fitted
from warmstart.training.search import search

Predictor: TypeAlias = Callable[[Users], Prediction]
Scores: TypeAlias = dict[str, Tensor]  # "metric, support" -> one number per test user
MSE, MAE, COVERED, MINOR = "MSE", "MAE", "coverage", "coverage, minor users"
NDCG = {"nDCG@3": 3, "nDCG@5": 5}
METRICS = (MSE, MAE, *NDCG, COVERED)
PAIRED, GAP, STUDENT, WELCH = "MSE minus bias", "minor minus major MSE", "p, Student", "p, Welch"
MAJOR, SINGLE = "share of major users", "share of single-item queries"
ALL = "80 %"  # of the ratings, after the sizes
PROFILE = ("gender", "age", "occupation", "zip")
LEVEL = 0.9


class Entry(NamedTuple):
    fit: Callable[[Ratings, Any, int], Predictor]
    config: Any
    space: Mapping[str, Sequence[Any]] = {}
    learns: bool = False  # takes validation users and a device, and gives more than predictions


PLAIN = preference_bayes.Config(profile=False, choices=0, content=1.0)
ENTRIES: dict[str, Entry | cold_learners.Learnt] = {
    "global mean": Entry(rating_means.fit, rating_means.GLOBAL_MEAN),
    "user mean": Entry(rating_means.fit, rating_means.USER_MEAN),
    "item mean": Entry(rating_means.fit, rating_means.ITEM_MEAN),
    "bias": Entry(rating_means.fit, rating_means.Config(), rating_means.SPACE),
    "als": Entry(rating_als.fit, rating_als.Config(), rating_als.SPACE),
    "item kNN": Entry(rating_items.fit_neighbours, rating_items.Neighbours(), rating_items.NEIGHBOURS_SPACE),
    "ease": Entry(rating_items.fit_ease, rating_items.Ease(), rating_items.EASE_SPACE),
    "autorec": Entry(autorec.fit, autorec.Config(), autorec.SPACE),
    "boosted trees": Entry(rating_trees.fit, rating_trees.Config(), rating_trees.SPACE),
    "preference_bayes": Entry(preference_bayes.fit, preference_bayes.Config(), preference_bayes.SPACE),
    "preference_bayes, ratings alone": Entry(preference_bayes.fit, PLAIN),
    "preference_bayes, without choices": Entry(preference_bayes.fit, preference_bayes.Config(choices=0)),
    **cold_learners.ENTRIES,
}
BASELINES = tuple(ENTRIES)[:9]
PUBLISHED: dict[tuple[str, int | str], str] = {
    (MSE, ALL): "paper 1.210",
    ("nDCG@3", ALL): "paper 0.779",
    ("nDCG@5", ALL): "paper 0.803",
}


class Preset(NamedTuple):
    methods: tuple[str, ...]
    trials: int  # for each method, on validation users
    lightest: float = PAPER.lightest


PRESETS = {
    "quick": Preset(("global mean", "item mean", "bias", "als", "item kNN", "preference_bayes"), 1, 0.3),
    "full": Preset(tuple(ENTRIES), 4),
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
    """Learners of tasks on the device, the rest on the CPU. With a folder, an interrupted run goes on."""
    check_names(only, ENTRIES)
    where = choose_device(device)
    if data is None:
        raise InputError("a folder with MovieLens-1M", "none", "name it with --data DIR or in WARMSTART_DATA")
    began, chosen = time.perf_counter(), PRESETS[preset]
    methods = [name for name in ENTRIES if name in (only or chosen.methods)]
    ratings = read_movielens_1m(data)
    judged: dict[str, dict[int, Scores]] = {name: {} for name in methods}
    facts: dict[int, Tensor] = {}
    for seed in seeds:
        protocol = replace(PAPER, lightest=chosen.lightest, seed=seed)
        parts = split_users(ratings, protocol)
        place = None if folder is None else folder / f"seed {seed}"
        if place is not None:
            save_parts(place / "split.json", parts, protocol)
        facts[seed] = torch.from_numpy(major_users(parts))
        for name in methods:
            report = (progress or (lambda label: silent))(f"{name}, seed {seed}")
            judged[name][seed] = run_method(name, parts, facts[seed], chosen.trials, seed, place, report, where)
    rows = rows_of(judged, facts) + cold_learners.rows(judged, facts, {"data": "ml-1m", "support": ALL})
    used = where.type if any(ENTRIES[name].learns for name in methods) else "cpu"
    results = make_results("cold_ratings", preset, used, " ".join(["warmstart", *sys.argv[1:]]), rows)
    drawn = cold_learners.sections(judged, facts, [name for name in ("bias",) if name in methods])
    return Outcome(results, sections(results, methods) + drawn, verdict(rows, time.perf_counter() - began))


def run_method(
    name: str,
    parts: Parts,
    major: Tensor,
    trials: int,
    seed: int,
    folder: Path | None,
    report: Report,
    device: torch.device = torch.device("cpu"),
) -> Scores:
    """Tuned on validation users, fitted on training users, judged on test users."""
    kept = None if folder is None else folder / f"{name}.safetensors"
    if kept is not None and kept.exists():
        return read_tensors(kept)[0]
    entry, train = ENTRIES[name], everything(parts.train)
    fitted: dict[Any, Any] = {}

    def fit(config: Any) -> Any:
        if config not in fitted:
            more = (parts.validation, device) if entry.learns else ()
            fitted[config] = entry.fit(train, config, seed, *more)
        return fitted[config]

    def validate(config: Any) -> float:
        predict = _predictor(fit(config))
        errors = [_mse(predict, shown).nanmean() for shown in at_sizes(parts.validation).values()]
        return float(torch.stack(errors).mean())

    config = entry.config
    if trials > 1 and entry.space:
        store = None if folder is None else folder / f"{name}.trials.json"
        config = search(validate, config, entry.space, trials, seed, store, report)[0].config
    scores = judge(_predictor(fit(config)), parts.test, major)
    if isinstance(fit(config), Fitted):
        embedding, rate = fit(config).about(parts.test)
        told = {cold_learners.EMBEDDING: embedding, cold_learners.RATE: rate}
        scores |= {key: value.contiguous() for key, value in told.items() if value.numel()}
    report(trials, trials, f"MSE {float(scores[f'{MSE}, {ALL}'].nanmean()):.4f}")
    if kept is not None:
        write_tensors(kept, scores)
    return scores


def _predictor(found: Any) -> Predictor:
    chosen: Predictor = found.predict if isinstance(found, Fitted) else found
    return chosen


def at_sizes(users: Users) -> dict[int | str, Users]:
    return {size: first(users, size) for size in SIZES} | {ALL: users}


def judge(predict: Predictor, users: Users, major: Tensor) -> Scores:
    """Every metric at every size, one number per user, NaN where there is nothing to judge."""
    batch = to_batch(users.asked)
    scores: Scores = {SINGLE: (batch.mask.sum(-1) == 1).double()}
    for size, shown in at_sizes(users).items():
        said = predict(shown)
        mean = to_stack(users.asked, said.mean.double())
        scores[f"{MSE}, {size}"] = squared_error(mean, batch)
        scores[f"{MAE}, {size}"] = absolute_error(mean, batch)
        for name, k in NDCG.items():
            scores[f"{name}, {size}"] = ndcg(mean, batch, k)
        if isinstance(said.variance, Tensor):
            low, high = gaussian(mean, to_stack(users.asked, said.variance.double()).clamp(min=1e-9), LEVEL)
            scores[f"{COVERED}, {size}"] = coverage(low, high, batch)
    return scores


def major_users(parts: Parts) -> Any:
    """Which test users are major, by frequent values among all users that the protocol keeps."""
    profiles = pd.concat([part.shown.users for part in parts])
    return is_major(profiles, PROFILE)[-len(parts.test.shown.users) :]


def _mse(predict: Predictor, users: Users) -> Tensor:
    return squared_error(to_stack(users.asked, predict(users).mean.double()), to_batch(users.asked))


def rows_of(judged: Mapping[str, Mapping[int, Scores]], facts: Mapping[int, Tensor]) -> list[Row]:
    rows: list[Row] = []
    for name, by_seed in judged.items():
        for size in (*SIZES, ALL):
            setting = {"data": "ml-1m", "support": size}
            for metric in METRICS:
                values = {s: kept for s, found in by_seed.items() if (kept := _scored(found, metric, size)) is not None}
                if values:
                    learnt = cold_learners.paper(name, metric) if size == ALL else ""
                    peer = learnt or PUBLISHED.get((metric, size), "")
                    rows.append(make_row(name, setting, metric, values, peer=peer, fresh_tasks=True))
            covered = {s: found.get(f"{COVERED}, {size}") for s, found in by_seed.items()}
            minor = {s: share[~facts[s]] for s, share in covered.items() if share is not None}
            if minor:
                rows.append(make_row(name, setting, MINOR, minor, fresh_tasks=True))
            if "bias" in judged and name != "bias":
                ours, theirs = ({s: found[f"{MSE}, {size}"] for s, found in judged[n].items()} for n in (name, "bias"))
                rows.append(make_row(name, setting, PAIRED, differences(ours, theirs), fresh_tasks=True))
        setting = {"data": "ml-1m", "support": ALL}
        gaps = {s: gap(found[f"{MSE}, {ALL}"], facts[s].numpy()) for s, found in by_seed.items()}
        for metric, field in ((GAP, "difference"), (STUDENT, "student"), (WELCH, "welch")):
            rows.append(make_row(name, setting, metric, {s: getattr(found, field) for s, found in gaps.items()}))
    shared = {"data": "ml-1m"}
    rows.append(
        make_row("protocol", shared, MAJOR, {s: major.double() for s, major in facts.items()}, peer="paper 0.65")
    )
    first_method = next(iter(judged.values()))
    rows.append(make_row("protocol", shared, SINGLE, {s: found[SINGLE] for s, found in first_method.items()}))
    return rows


def _scored(scores: Scores, metric: str, size: int | str) -> Tensor | None:
    values = scores.get(f"{metric}, {size}")
    return None if values is None else values[~values.isnan()]


def sections(results: Results, methods: Sequence[str]) -> list[Section]:
    baselines = [name for name in methods if name in BASELINES]
    found = []
    better = {MSE: "lower", PAIRED: "lower", "nDCG@3": "higher", "nDCG@5": "higher"}
    for metric in (MSE, PAIRED, *NDCG, COVERED):
        columns = [Column(f"{size}", metric, {"support": size}, 3, better.get(metric, "")) for size in (*SIZES, ALL)]
        shown = [name for name in methods if any(r.method == name and r.metric == metric for r in results.rows)]
        if shown:
            caption = f"{metric} by ratings in the support, mean over users"
            found.append(Section(metric, table=table(results, shown, columns, baselines, caption=caption)))
    counted = [row for row in results.rows if row.metric == MSE and row.setting["support"] != ALL]
    picture = error_curves(curves(counted, MSE), looks(methods, baselines), x_label="ratings", y_label="MSE")
    found.insert(0, Section("Error by number of ratings", svg=picture))
    groups = [Column(metric, metric, {"support": ALL}, 3) for metric in (GAP, STUDENT, WELCH)]
    caption = "Gap between unusual and common users at 80 %; a high p-value is no evidence of equality"
    found.append(Section("Minor users", table=table(results, methods, groups, baselines, caption=caption)))
    facts = [[row.metric, f"{row.mean:.3f}", row.peer] for row in results.rows if row.method == "protocol"]
    found.append(Section("The protocol", table=plain(["of test users", "share", "published"], facts)))
    return found


def verdict(rows: Sequence[Row], seconds: float) -> str:
    at = {row.method: row.mean for row in rows if row.metric == MSE and row.setting["support"] == ALL}
    best = min(at, key=lambda name: at[name])
    against = f", the shrunk effects {at['bias']:.3f}" if "bias" in at else ""
    return f"With 80 % of an unseen user's ratings {best} has an MSE of {at[best]:.3f}{against} ({seconds:.0f} s)."
