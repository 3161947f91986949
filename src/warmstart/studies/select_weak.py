"""Labelling functions as sources: which of them help to classify texts, next to a few true labels?

Table 3 of the paper on the sets of WRENCH that are at hand, with the rows that a sceptic asks for: the validation
labels alone, functions ranked by their accuracy or at random, majority vote and label models, with and without the
validation labels among the training rows, and the true labels of all training rows. Texts are TF-IDF, and with a
`model` of sentence-transformers its vectors beside that; models are linear (selection/closed_form.py). Test labels
are looked at once.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import Tensor

from warmstart.baselines import label_model
from warmstart.core import check_names
from warmstart.engine.files import read_json, write_json
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.page import Outcome, Section
from warmstart.selection import closed_form, self_training, surrogate
from warmstart.selection.closed_form import Labelled, Moments
from warmstart.selection.measures import negative_margin
from warmstart.selection.subsets import indicators, sample_subsets
from warmstart.tasks import sentences
from warmstart.tasks.data_folder import given
from warmstart.tasks.texts import embed
from warmstart.tasks.transfer import Rows
from warmstart.tasks.wrench import MAY_LACK, Wrench, at_hand, read_wrench
from warmstart.training.search import draw_configs

SETS = {  # sources of a subset, subsets
    "youtube": (3, 50),
    "trec": (10, 400),
    "semeval": (15, 800),
    "sms": (10, 400),
    "cdr": (5, 200),
    "chemprot": (5, 200),
}
F1_SETS = ("sms", "cdr")
ACCURACY, F1, SPEARMAN = "accuracy", "F1", "Spearman on held-out subsets"
ALONE, ALL, TOP, RANDOM, HOA = "validation labels only", "all sources", "top by vote accuracy", "random order", "hoa"
OURS, MARGIN = "task_model", "task_model, margin"
MAJORITY, PROGRAMMING, METAL = "majority vote", "data programming", "snorkel label model"
TOO = ", validation labels too"
FEATURES, SELF = "votes as features", "votes as features, self-trained"
SUPERVISED, BEST = "true labels of all rows", "chosen by validation"
VOTED = (MAJORITY, PROGRAMMING, METAL, ALL)  # with and without the validation labels
METHODS = (
    *(ALONE, *VOTED, *(name + TOO for name in VOTED)),
    *(RANDOM, TOP, HOA, FEATURES, SELF, MARGIN, OURS, SUPERVISED),
)
PUBLISHED = {  # of the paper's Table 3: F1 on cdr, accuracy on the others
    MAJORITY: {"youtube": 95.4, "trec": 66.6, "cdr": 58.9, "chemprot": 57.3, "semeval": 85.0},
    PROGRAMMING: {"youtube": 93.8, "trec": 68.6, "cdr": 58.5, "chemprot": 57.0, "semeval": 83.9},
    METAL: {"youtube": 92.3, "trec": 58.3, "cdr": 58.5, "chemprot": 56.2, "semeval": 71.7},
    ALL: {"youtube": 94.7, "trec": 64.1, "cdr": 58.2, "chemprot": 53.4, "semeval": 89.0},
    HOA: {"youtube": 94.9, "trec": 74.7, "cdr": 59.8, "chemprot": 45.6, "semeval": 79.9},
    OURS: {"youtube": 97.5, "trec": 81.8, "cdr": 61.2, "chemprot": 57.5, "semeval": 93.5},
}


C = TypeVar("C")


class Preset(NamedTuple):
    sets: tuple[str, ...]
    part: int  # of the subsets, one in so many
    dimensions: int
    trials: int


PRESETS = {"quick": Preset(tuple(SETS), 8, 150, 8), "full": Preset(tuple(SETS), 1, 600, 20)}


@dataclass(frozen=True)
class Trial(closed_form.Config):
    share: float | None = None  # of the sources, in the order of a method; None: those with a coefficient below zero


ALIKE = {"penalty": [float(value) for value in np.logspace(-2, 2, 20)]}  # where there is no other setting
SHARES: dict[str, list[Any]] = {**closed_form.SPACE, "share": [i / 8 for i in range(1, 9)]}


class Problem(NamedTuple):
    """A set as numbers."""

    votes: Wrench
    x: Tensor  # of the training texts
    labelled: Labelled
    asked: Tensor  # of the test texts
    sources: Moments
    f1: bool
    seed: int


class Fitted(NamedTuple):
    value: tuple[float, float]  # on validation rows: the error of the table, then the squared one for ties
    said: Tensor  # [n] the class of every test row
    told: dict[str, float]


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
    texts: str | Path | None = None,
) -> Outcome:
    """On the CPU. With a folder, a run that was interrupted goes on where it stopped. With `texts`, a
    folder or a name of sentence-transformers, they are TF-IDF and its embeddings."""
    check_names(only, METHODS)
    data = given(data, "WRENCH")
    began, chosen = time.perf_counter(), PRESETS[preset]
    ready = [name for name in METHODS if find_spec("snorkel") or not name.startswith(METAL)]
    names = [name for name in METHODS if name in (only or ready)]
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for name in chosen.sets:
        if name in MAY_LACK and not at_hand(data, name):
            continue
        wrench = read_wrench(data, name)
        vectors = cache(partial(vectors_of, wrench, texts))
        for seed in seeds:
            report = (progress or (lambda label: silent))(f"{name}, seed {seed}")
            kept = None if folder is None else folder / f"{' '.join([name, str(seed), *marked(texts)])}.json"
            before = read_json(kept) if kept is not None and kept.exists() else {}
            if set(names) <= set(before):
                found.setdefault(name, {})[seed] = before
                continue
            problem = make_problem(wrench, name in F1_SETS, chosen.dimensions, seed, vectors())
            scores = judge(problem, name, names, chosen, report)
            found.setdefault(name, {})[seed] = scores
            if kept is not None:
                write_json(kept, scores)
    rows = rows_of(found, names if only else [*names, BEST], described(texts))
    results = make_results("select_weak", preset, "cpu", called(), rows)
    return Outcome(results, sections(results, chosen), verdict(rows, time.perf_counter() - began))


def described(model: str | Path | None) -> dict[str, str]:
    """What a setting says of texts that are not TF-IDF alone."""
    return {} if model is None else {"texts": f"TF-IDF and {Path(model).absolute().name}"}


def marked(model: str | Path | None) -> list[str]:
    """Words of a file's name that no two models share: the last part of the model's, and a mark of the whole."""
    if model is None:
        return []
    whole = str(Path(model).resolve()) if Path(model).exists() else str(model)
    return [*described(model).values(), hashlib.sha256(whole.encode()).hexdigest()[:8]]


def vectors_of(wrench: Wrench, model: str | Path | None) -> Sequence[Tensor]:
    """What a model makes of the texts; nothing where there is none."""
    return () if model is None else sentences.embed(wrench[1:], model)


def make_problem(wrench: Wrench, f1: bool, dimensions: int, seed: int, vectors: Sequence[Tensor] = ()) -> Problem:
    """TF-IDF of the texts, and beside it their `vectors` of a model, [n, d] of each part."""
    parts = embed(wrench[1:], dimensions, seed)
    if vectors:
        parts = [torch.cat([own[:, :-1], more], 1) for own, more in zip(parts, vectors, strict=True)]  # ones once
    x, own, asked = parts
    classes = len(wrench.classes)
    labelled = closed_form.label(own, torch.from_numpy(wrench.validation.label), classes, seed=seed)
    sources = closed_form.of_votes(x, torch.from_numpy(wrench.train.votes), classes)
    return Problem(wrench, x, labelled, asked, sources, f1, seed)


def judge(problem: Problem, name: str, names: Sequence[str], chosen: Preset, report: Report) -> dict[str, Any]:
    """Of every method its validation value, what test rows it has right, and F1."""

    size, count = SETS[name]
    labels = cache(partial(labels_of, problem=problem))
    estimated = cache(partial(estimate, problem, size, max(20, count // chosen.part)))
    scores, truth = {}, torch.from_numpy(problem.votes.test.label)
    for place, method in enumerate(names):
        fitted = fit(method, problem, chosen.trials, estimated, labels)
        right = (fitted.said == truth).int().tolist()
        score: dict[str, Any] = {"value": list(fitted.value), "right": right, "told": fitted.told}
        if problem.f1:
            score["f1"] = float(f1_score(truth.numpy(), fitted.said.numpy(), zero_division=0))
        scores[method] = score
        report(place + 1, len(names), method)
    return scores


def estimate(problem: Problem, size: int, count: int) -> dict[str, tuple[Tensor, float]]:
    """By measure: coefficients of the sources [k], and the surrogate's rank correlation on a fifth more subsets."""
    sources = len(problem.sources.gram)
    most = math.comb(sources, size)
    held = min(max(10, count // 5), most - count)
    members = indicators(sample_subsets(sources, size, count + held, problem.seed), sources)
    found = {}
    for method, f in values(problem, members).items():
        model = surrogate.fit(members[:count], f[:count], surrogate.Config(draws=2), problem.seed)
        found[method] = model.theta, surrogate.judge(model, members[count:], f[count:]).spearman
    return found


def values(problem: Problem, members: Tensor) -> dict[str, Tensor]:
    """f of sets of functions [m, k] over the folds of the validation rows: the squared error, and the margin."""
    out = closed_form.outputs(problem.sources, members, problem.labelled)
    y = problem.labelled.y
    apart = negative_margin(out, Rows((), y.argmax(-1), torch.zeros(len(y)).long()))
    return {OURS: closed_form.squared_error(out, y).double(), MARGIN: apart.double()}


def fit(
    method: str,
    problem: Problem,
    trials: int,
    estimated: Callable[[], dict[str, tuple[Tensor, float]]],
    labels: Callable[[str], label_model.Floats],
) -> Fitted:
    """The best of the method's trials on the validation rows."""
    plain, with_labels = method.removesuffix(TOO), method.endswith(TOO) or method in (ALONE, SUPERVISED)
    count, told = len(problem.sources.gram), {}
    if method in (FEATURES, SELF):
        return self_trained(problem, trials, rounds=method == SELF)
    if method in (RANDOM, TOP, HOA, OURS, MARGIN):
        if method in (OURS, MARGIN):
            scores, told[SPEARMAN] = estimated()[method]
        else:
            scores = ranks(method, problem)
        rank = scores.argsort(stable=True).argsort()

        def pick(trial: Trial) -> Moments:
            members = scores < 0 if trial.share is None else rank < round(trial.share * count)
            return closed_form.total(problem.sources, members.float()[None])

        first = Trial() if told else Trial(share=0.5)
        return search(problem, pick, draw_configs(first, SHARES, trials, problem.seed), told)
    if method == ALONE:
        fixed = closed_form.total(problem.sources, torch.zeros(1, count))
    elif plain == ALL:
        fixed = closed_form.total(problem.sources, torch.ones(1, count))
    else:
        train = problem.votes.train
        shown = np.ones(len(train.label), dtype=bool) if method == SUPERVISED else (train.votes >= 0).any(1)
        q = torch.from_numpy(labels(plain)[shown]).float()
        fixed = Moments(*(part[None] for part in closed_form.moments(problem.x[torch.from_numpy(shown)], q)))
    first, space = (Trial(), closed_form.SPACE) if with_labels else (Trial(weight=0.0), ALIKE)
    return search(problem, lambda trial: fixed, draw_configs(first, space, trials, problem.seed), told)


def ranks(method: str, problem: Problem) -> Tensor:
    """Scores of the functions [k], lower is better: luck, share of wrong validation votes, or f of each alone."""
    count = len(problem.sources.gram)
    if method == RANDOM:
        return torch.rand(count, generator=generator(problem.seed, 29))
    if method == HOA:
        return values(problem, torch.eye(count))[OURS]
    own = problem.votes.validation
    cast = own.votes >= 0
    wrong = (cast & (own.votes != own.label[:, None])).sum(0)
    return torch.from_numpy((wrong + 1) / (cast.sum(0) + 2))  # a function that no validation row has is in the middle


def labels_of(method: str, problem: Problem) -> label_model.Floats:
    """Probabilities of the classes [n, classes] of the training rows; class shares are those of the validation rows."""
    train, own = problem.votes.train, problem.votes.validation
    classes = len(problem.votes.classes)
    balance = np.bincount(own.label, minlength=classes) / len(own.label)
    if method == SUPERVISED:
        return np.eye(classes)[train.label]
    if method == MAJORITY:
        return label_model.majority(train.votes, classes)
    if method == PROGRAMMING:
        return label_model.fit(train.votes, balance)[0]
    return label_model.metal(train.votes, balance, problem.seed)


def search(
    problem: Problem, pick: Callable[[Trial], Moments], trials: Sequence[Trial], told: dict[str, float]
) -> Fitted:
    """Of trials of closed forms."""
    found, best = preferred(problem, lambda t: closed_form.held_out(pick(t), problem.labelled, t)[0], trials)
    w = closed_form.fit(pick(best), problem.labelled, best)[0]
    return Fitted(found, (problem.asked @ w).argmax(-1), told)


def self_trained(problem: Problem, trials: int, rounds: bool) -> Fitted:
    """Of texts and votes, without or with a round of own labels."""
    classes, parts = len(problem.votes.classes), problem.votes[1:]
    votes = self_training.cast([torch.from_numpy(part.votes) for part in parts], classes)

    def rows(cfg: self_training.Config) -> list[Tensor]:
        x = problem.x, problem.labelled.x, problem.asked
        return [self_training.beside(of, text, cfg) for of, text in zip(votes, x, strict=True)]

    def held_out(cfg: self_training.Config) -> Tensor:
        others, own, _ = rows(cfg)
        return self_training.held_out(own, problem.labelled, others, cfg)

    space = self_training.SPACE if rounds else {name: self_training.SPACE[name] for name in ("votes", "penalty")}
    first = self_training.Config(rounds=int(rounds))
    value, best = preferred(problem, held_out, draw_configs(first, space, trials, problem.seed))
    others, own, asked = rows(best)
    return Fitted(value, (asked @ self_training.fit(own, problem.labelled.y, others, best)).argmax(-1), {})


def preferred(problem: Problem, held_out: Callable[[C], Tensor], trials: Sequence[C]) -> tuple[tuple[float, float], C]:
    """The value of the trial that is best on the validation rows, and that trial."""
    y = problem.labelled.y
    truth = y.argmax(-1)

    def value(trial: C) -> tuple[float, float]:
        out = held_out(trial)
        said = out.argmax(-1)
        wrong = float((said != truth).double().mean())
        if problem.f1:
            wrong = 1 - float(f1_score(truth.numpy(), said.numpy(), zero_division=0))
        return wrong, float(closed_form.squared_error(out, y))

    judged = [value(trial) for trial in trials]
    best = min(range(len(trials)), key=judged.__getitem__)
    return judged[best], trials[best]


def rows_of(
    found: dict[str, dict[int, dict[str, Any]]], names: Sequence[str], texts: dict[str, str] | None = None
) -> list[Row]:
    """Percent of test rows, with differences from the validation labels alone paired by row; F1 where that is asked."""
    rows: list[Row] = []
    for name, by_seed in found.items():
        for scores in by_seed.values():
            if BEST in names:
                scores[BEST] = min((scores[m] for m in names if m not in (BEST, SUPERVISED)), key=lambda s: s["value"])
        for method in names:
            setting, published = {"set": name, **(texts or {})}, PUBLISHED.get(method, {}).get(name)
            peer = {F1 if name in F1_SETS else ACCURACY: f"paper {published:.1f}"} if published else {}
            own = {seed: scores[method] for seed, scores in by_seed.items()}
            right = {seed: 100 * np.array(score["right"], dtype=float) for seed, score in own.items()}
            rows.append(make_row(method, setting, ACCURACY, right, "%", peer.get(ACCURACY, "")))
            if name in F1_SETS:
                found_f1 = {seed: 100 * score["f1"] for seed, score in own.items()}
                rows.append(make_row(method, setting, F1, found_f1, peer=peer.get(F1, "")))
            if ALONE in names and method != ALONE:
                alone = {seed: 100 * np.array(scores[ALONE]["right"], dtype=float) for seed, scores in by_seed.items()}
                apart = {seed: right[seed] - alone[seed] for seed in right}
                rows.append(make_row(method, setting, f"{ACCURACY} minus {ALONE}", apart, "%"))
            for metric in next(iter(own.values()))["told"] if method in (OURS, MARGIN) else ():
                rows.append(make_row(method, setting, metric, {seed: one["told"][metric] for seed, one in own.items()}))
    return rows


def sections(results: Results, chosen: Preset) -> list[Section]:
    names = list(dict.fromkeys(row.method for row in results.rows))
    baselines = [name for name in names if name not in (OURS, MARGIN, BEST)]
    sets = [name for name in chosen.sets if any(row.setting["set"] == name for row in results.rows)]
    lacking = [name for name in chosen.sets if name not in sets]

    def columns(metric: str, digits: int, best: str = "") -> list[Column]:
        return [Column(name, metric, {"set": name}, digits, best) for name in sets]

    caption = "Percent of test rows; intervals over rows and seeds"
    scores = [
        Column(f"{n}, F1" if n in F1_SETS else n, F1 if n in F1_SETS else ACCURACY, {"set": n}, 1, "higher")
        for n in sets
    ]
    prose = f"Not run, since their training texts are not at hand: {' and '.join(lacking)}." if lacking else ""
    found = [Section("Test rows", prose, table(results, names, scores, baselines, caption=caption))]
    apart = f"{ACCURACY} minus {ALONE}"
    if any(row.metric == apart for row in results.rows):
        others = [name for name in names if name != ALONE]
        caption = "Points of accuracy, paired by row"
        part = table(results, others, columns(apart, 1), baselines, caption=caption)
        found.append(Section(f"Against {ALONE}", table=part))
    if any(row.metric == SPEARMAN for row in results.rows):
        ours = [name for name in names if name in (OURS, MARGIN)]
        found.append(Section("The surrogate", table=table(results, ours, columns(SPEARMAN, 2, "higher"))))
    return found


def verdict(rows: Sequence[Row], seconds: float) -> str:
    parts = []
    for method in (OURS, ALONE, BEST):
        own = [(str(row.setting["set"]), row) for row in rows if row.method == method]
        scores = [f"{of} {row.mean:.1f}" for of, row in own if row.metric == (F1 if of in F1_SETS else ACCURACY)]
        if scores:
            parts.append(f"{method} {', '.join(scores)}")
    told = "; ".join(parts) or f"rows of {len({row.method for row in rows})} methods"
    return f"On test rows: {told} ({seconds:.0f} s)."
