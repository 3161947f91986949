"""Cold-start clicks: users unseen in training, judged on their last impressions after 0, 1, 2, 5, 10, 20 and 80 %.

KuaiRand-Pure stands in for the private click data of Yu et al. (2021): users of at least 10 impressions, split by time
within a user, exact duplicates dropped. Every method has its paired differences to boosted trees that see the context.
Learners of tasks know items as such or, as in the paper, by content alone and with its weights of clicks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.baselines import click_means, click_trees
from warmstart.core import Prediction, check_names
from warmstart.engine.device import choose_device
from warmstart.engine.files import read_tensors, write_tensors
from warmstart.engine.loop import Report, silent
from warmstart.learners import click_bayes
from warmstart.maths.trees import booster
from warmstart.metrics.errors import log_loss
from warmstart.metrics.ranking import auc, pooled_auc, weighted_entropy
from warmstart.report import Column, Results, Row, called, differences, make_results, make_row, plain, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.report.svg import looks
from warmstart.studies.cold_learners import BARE, CONTENT, FAMILIES, Learnt, learnt
from warmstart.tasks.cold_start import CLICKS, SIZES, Parts, Users, everything, first, save_parts, split_users
from warmstart.tasks.data_folder import given
from warmstart.tasks.kuairand import read_kuairand
from warmstart.tasks.ratings import Ratings, to_batch, to_stack
from warmstart.training.preferences import CLICK, Network
from warmstart.training.search import search

Predictor: TypeAlias = Callable[[Users], Prediction]
Scores: TypeAlias = dict[str, Tensor]  # "metric, support" -> one number per test user, or one for all
LOSS, ENTROPY, AUC, POOLED, POOLED_LOSS = "log loss", "weighted entropy", "AUC per user", "AUC", "log loss, pooled"
HIGHER = {AUC, POOLED}
METRICS = (POOLED, AUC, LOSS, POOLED_LOSS, ENTROPY)
PAIRED = (POOLED, AUC, LOSS)
ALL = "80 %"  # of the impressions, after the sizes
TREES = "boosted trees"


class Entry(NamedTuple):
    fit: Callable[[Ratings, Any, int], Predictor]
    config: Any
    space: Mapping[str, Sequence[Any]] = {}
    learns: bool = False  # takes validation users and a device, and gives more than predictions


WEIGHTED = replace(BARE, weights=CLICK)
ENTRIES: dict[str, Entry | Learnt] = {
    "click rate": Entry(click_means.fit, click_means.CLICK_RATE),
    "bias": Entry(click_means.fit, click_means.Config(), click_means.SPACE),
    "boosted trees, no context": Entry(click_trees.fit, click_trees.NO_CONTEXT, click_trees.SPACE),
    TREES: Entry(click_trees.fit, click_trees.Config(), click_trees.SPACE),
    "click_bayes": Entry(click_bayes.fit, click_bayes.Config(), click_bayes.SPACE),
    "click_bayes, level alone": Entry(click_bayes.fit, click_bayes.LEVEL),
    **{name: learnt(*family, Network()) for name, family in FAMILIES.items()},
    **{f"{name}, {CONTENT}": learnt(*family, WEIGHTED) for name, family in FAMILIES.items()},
}
BASELINES = tuple(ENTRIES)[:4]


class Preset(NamedTuple):
    methods: tuple[str, ...]
    trials: int  # for each method, on validation users


PRESETS = {"quick": Preset(("click rate", "bias", TREES, "click_bayes"), 1), "full": Preset(tuple(ENTRIES), 2)}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """Networks on the device, the rest on the CPU. With a folder, an interrupted run goes on."""
    check_names(only, ENTRIES)
    where = choose_device(device)
    data = given(data, "KuaiRand-Pure")
    began, chosen = time.perf_counter(), PRESETS[preset]
    methods = [name for name in ENTRIES if name in (only or chosen.methods)]
    ratings = read_kuairand(data)
    judged: dict[str, dict[int, Scores]] = {name: {} for name in methods}
    for seed in seeds:
        protocol = replace(CLICKS, seed=seed)
        parts = split_users(ratings, protocol)
        place = None if folder is None else folder / f"seed {seed}"
        if place is not None:
            save_parts(place / "split.json", parts, protocol)
        for name in methods:
            report = (progress or (lambda label: silent))(f"{name}, seed {seed}")
            judged[name][seed] = run_method(name, parts, chosen.trials, seed, place, where, report)
    rows = rows_of(judged)
    used = where.type if any(ENTRIES[name].learns for name in methods) else "cpu"
    results = make_results("cold_clicks", preset, used, called(), rows)
    results = replace(results, versions=results.versions | {"boosted trees": booster()})
    return Outcome(results, sections(results, methods), verdict(rows, time.perf_counter() - began))


def run_method(
    name: str, parts: Parts, trials: int, seed: int, folder: Path | None, device: torch.device, report: Report
) -> Scores:
    """Tuned by the log loss of validation users, fitted on training users, judged on test users."""
    kept = None if folder is None else folder / f"{name}.safetensors"
    if kept is not None and kept.exists():
        return read_tensors(kept)[0]
    entry, train = ENTRIES[name], everything(parts.train)

    @cache
    def fitted(config: Any) -> Predictor:
        """Kept: networks take long."""
        fit: Callable[..., Any] = entry.fit
        found = fit(train, config, seed, parts.validation, device).predict if entry.learns else fit(train, config, seed)
        predict: Predictor = found
        return predict

    def validate(config: Any) -> float:
        predict = fitted(config)
        losses = [_loss(predict, shown).nanmean() for shown in at_sizes(parts.validation).values()]
        return float(torch.stack(losses).mean())

    config = entry.config
    if trials > 1 and entry.space:
        store = None if folder is None else folder / f"{name}.trials.json"
        config = search(validate, config, entry.space, trials, seed, store, report)[0].config
    scores = judge(fitted(config), parts.test)
    report(trials, trials, f"AUC {float(scores[f'{POOLED}, {ALL}']):.4f}")
    if kept is not None:
        write_tensors(kept, scores)
    return scores


def at_sizes(users: Users) -> dict[int | str, Users]:
    return {size: first(users, size) for size in SIZES} | {ALL: users}


def judge(predict: Predictor, users: Users) -> Scores:
    """Every metric at every size, one number per user, NaN where there is nothing to judge."""
    batch = to_batch(users.asked)
    pooled = batch._replace(**{name: getattr(batch, name)[batch.mask > 0][None] for name in ("y", "w", "mask")})
    scores: Scores = {}
    for size, shown in at_sizes(users).items():
        said = predict(shown).mean.double()
        mean = to_stack(users.asked, said)
        scores[f"{AUC}, {size}"] = auc(mean, batch)
        scores[f"{LOSS}, {size}"] = log_loss(mean, batch)
        scores[f"{ENTROPY}, {size}"] = weighted_entropy(mean, batch)
        scores[f"{POOLED}, {size}"] = torch.tensor([pooled_auc(mean, batch)], dtype=torch.float64)
        scores[f"{POOLED_LOSS}, {size}"] = log_loss(mean[batch.mask > 0][None], pooled)
    return scores


def _loss(predict: Predictor, users: Users) -> Tensor:
    return log_loss(to_stack(users.asked, predict(users).mean.double()), to_batch(users.asked))


def rows_of(judged: Mapping[str, Mapping[int, Scores]]) -> list[Row]:
    rows: list[Row] = []
    for name, by_seed in judged.items():
        for size in (*SIZES, ALL):
            setting = {"data": "kuairand", "support": size}
            for metric in METRICS:
                values = {s: _judged(found[f"{metric}, {size}"]) for s, found in by_seed.items()}
                rows.append(make_row(name, setting, metric, values, fresh_tasks=metric not in (POOLED, POOLED_LOSS)))
                if metric in PAIRED and TREES in judged and name != TREES:
                    theirs = {s: _judged(found[f"{metric}, {size}"]) for s, found in judged[TREES].items()}
                    apart, told = differences(values, theirs), f"{metric} minus {TREES}"
                    rows.append(make_row(name, setting, told, apart, fresh_tasks=metric != POOLED))
    return rows


def _judged(values: Tensor) -> Tensor:
    return values[~values.isnan()]


def sections(results: Results, methods: Sequence[str]) -> list[Section]:
    baselines = [name for name in methods if name in BASELINES]
    counted = [row for row in results.rows if row.metric == LOSS and row.setting["support"] != ALL]
    picture = error_curves(curves(counted, LOSS), looks(methods, baselines), x_label="impressions", y_label=LOSS)
    found = [Section("Log loss by number of impressions", svg=picture)]
    for metric in (*METRICS, *(f"{metric} minus {TREES}" for metric in PAIRED)):
        better = "higher" if metric.removesuffix(f" minus {TREES}") in HIGHER else "lower"
        columns = [Column(f"{size}", metric, {"support": size}, 4, better) for size in (*SIZES, ALL)]
        shown = [name for name in methods if any(r.method == name and r.metric == metric for r in results.rows)]
        if shown:
            caption = f"{metric} by impressions in the support"
            found.append(Section(metric, table=table(results, shown, columns, baselines, caption=caption)))
    grown = [["all", results.versions["boosted trees"]]]
    found.append(Section("Trees", table=plain(["boosted trees", "grown by"], grown)))
    return found


def verdict(rows: Sequence[Row], seconds: float) -> str:
    at = {row.method: row.mean for row in rows if row.metric == POOLED and row.setting["support"] == ALL}
    best = max(at, key=lambda name: at[name])
    against = f", boosted trees that see the context {at[TREES]:.3f}" if TREES in at else ""
    told = "With 80 % of an unseen user's impressions"
    return f"{told} {best} has a pooled AUC of {at[best]:.3f}{against} ({seconds:.0f} s)."
