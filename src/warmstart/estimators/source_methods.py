"""Every way to use sources, by one call: nothing, all, chosen ones, weighted ones, in networks and in boosted trees.

Each takes a `Session` and gives a `Fitted`, chosen on the validation rows among the same number of trials; those that
take the mean of a network and trees have the trials of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.baselines import pooled_trees
from warmstart.selection import affinity, attittud, contrast, exhaustive, fixed_sets, hoa, reweighting, task_model, tawt
from warmstart.selection.final import Config as Final
from warmstart.selection.final import Fitted, Kept
from warmstart.selection.measures import Measure, named
from warmstart.tasks.transfer import Transfer
from warmstart.training.search import draw_configs

ALL, TUNED, ALONE, RANDOM = "all sources", "all sources, then fine-tuned", "target only", "random order"
OURS, LINEARISED, CHOSEN_TREES = "task_model", "task_model, linearised", "task_model, boosted trees"
BOTH, ALL_BOTH = "task_model, network and trees", "all sources, network and trees"
PAIRS = "exhaustive, two at most"
FOREST, MEAN = "trees", "mean of network and trees"
MARGIN, ERRORS = "task_model, margin", "task_model, zero-one"
TREES, TREES_ALONE, TREES_BLIND = "boosted trees, pooled", "boosted trees, target only", "boosted trees, no state"
SPEARMAN, CEILING, LINEAR = "Spearman on held-out subsets", "Spearman of two starts", "Spearman of estimates"


class Plan(NamedTuple):
    """How much is spent; the same trials for every method."""

    final: Final
    model: task_model.Config
    trials: int
    threads: int = 1  # of boosted trees
    tree_rows: int | None = 100_000  # of their trials


class Session(NamedTuple):
    """One transfer, and what several methods share."""

    transfer: Transfer
    measure: Measure  # what validation chooses by, and f unless a method has its own
    plan: Plan
    seed: int
    estimates: dict[tuple[str | None, bool], task_model.Estimate]  # found so far, by f's name and linearisation
    fits: dict[str, tuple[Fitted, dict[str, float]]]  # found so far, by the method's name
    evaluate: task_model.Evaluate | None = None  # where f by the session's measure comes from, if not from here


Method: TypeAlias = Callable[[Session], tuple[Fitted, dict[str, float]]]


def estimated(session: Session, kind: str | None = None, linear: bool = False) -> task_model.Estimate:
    """What task modelling learns of the sources, found once; f is the session's measure, or that of the name."""
    if (kind, linear) not in session.estimates:
        cfg = replace(session.plan.model, linear=linear or session.plan.model.linear)
        measure, evaluate = (session.measure, session.evaluate) if kind is None else (named(kind), None)
        found = task_model.estimate(session.transfer, cfg, measure, session.seed, evaluate)
        session.estimates[kind, linear] = found
    return session.estimates[kind, linear]


def fit_method(session: Session, name: str) -> tuple[Fitted, dict[str, float]]:
    """What a method ends in, run once for the transfer, and what it tells of itself."""
    if name not in session.fits:
        session.fits[name] = METHODS[name](session)
    return session.fits[name]


def _ours(kind: str | None, linear: bool) -> Method:
    def fit(session: Session) -> tuple[Fitted, dict[str, float]]:
        transfer, measure, plan, seed, *_ = session
        found = estimated(session, kind, linear)
        fitted = task_model.select(transfer, found, measure, plan.final, plan.trials, seed)
        told = {SPEARMAN: found.quality.spearman, CEILING: found.ceiling}
        if found.comparison is not None:
            told = {LINEAR: found.comparison.spearman}
        return fitted, {metric: value for metric, value in told.items() if math.isfinite(value)}

    return fit


def _rival(fit: Callable[..., Fitted], tuned: bool = True, training: bool = False) -> Method:
    def call(session: Session) -> tuple[Fitted, dict[str, float]]:
        transfer, measure, plan, seed, *_ = session
        final = plan.final if tuned else replace(plan.final, tuning=0)
        more = {"training": plan.model.training} if training else {}
        return fit(transfer, measure, final, plan.trials, seed, **more), {}

    return call


def _trees(sources: float | None, with_task: bool) -> Method:
    """On all sources, on none, or on those that task modelling chooses."""

    def call(session: Session) -> tuple[Fitted, dict[str, float]]:
        transfer, measure, plan, seed, *_ = session
        members = _negative(session) if sources is None else torch.full((transfer.sources,), sources)
        default = pooled_trees.Config(with_task=with_task)
        validation = transfer.validation

        def value(outputs: Any) -> float:
            said = outputs(validation.x).to(validation.y.device)
            return float(measure(said[None], validation))

        def trial(config: pooled_trees.Config) -> float:
            return value(pooled_trees.fit(transfer, members, replace(config, rows=plan.tree_rows), seed, plan.threads))

        configs = draw_configs(default, pooled_trees.SPACE, plan.trials, seed)
        best = min(configs, key=trial) if len(configs) > 1 else default
        fitted = pooled_trees.fit(transfer, members, best, seed, plan.threads)
        device = validation.y.device
        text = torch.frombuffer(bytearray(fitted.text().encode()), dtype=torch.uint8)
        kept = Kept({"model": FOREST, "with_task": fitted.with_task}, {"trees": text})
        return Fitted(lambda x: fitted(x).to(device), members.bool(), value(fitted), plan.trials, kept), {}

    return call


def _both(network: str, trees: str) -> Method:
    """The mean of the scores of two methods, whose errors differ."""

    def call(session: Session) -> tuple[Fitted, dict[str, float]]:
        parts = [fit_method(session, name)[0] for name in (network, trees)]
        (first, second), validation = parts, session.transfer.validation

        def outputs(x: Any) -> Tensor:
            return torch.stack([part.outputs(x).float() for part in parts]).mean(0)

        value = float(session.measure(outputs(validation.x)[None], validation))
        form = {**first.kept.form, **second.kept.form, "model": MEAN}
        kept = Kept(form, {**first.kept.tensors, **second.kept.tensors})
        trials = first.trials + second.trials
        return Fitted(outputs, first.members | second.members, value, trials, kept), {}

    return call


def _negative(session: Session) -> Tensor:
    return (estimated(session).surrogate.theta < 0).float()


METHODS: dict[str, Method] = {
    ALONE: _rival(fixed_sets.target_only, tuned=False),
    ALL: _rival(fixed_sets.all_sources, tuned=False),
    TUNED: _rival(fixed_sets.all_sources),
    RANDOM: _rival(fixed_sets.random_order),
    "hoa": _rival(hoa.fit, training=True),
    PAIRS: _rival(exhaustive.fit, training=True),
    "gradient cosine": _rival(affinity.fit_cosine, training=True),
    "tag": _rival(affinity.fit_tag, training=True),
    "tawt": _rival(tawt.fit),
    "attittud": _rival(attittud.fit),
    "importance weighting": _rival(reweighting.fit_importance),
    "group DRO": _rival(reweighting.fit_dro),
    "correct-n-contrast": _rival(contrast.fit),
    TREES_ALONE: _trees(0.0, False),
    TREES: _trees(1.0, True),
    TREES_BLIND: _trees(1.0, False),
    ALL_BOTH: _both(TUNED, TREES),
    MARGIN: _ours("margin", False),
    ERRORS: _ours("zero-one", False),
    LINEARISED: _ours(None, True),
    CHOSEN_TREES: _trees(None, True),
    BOTH: _both(OURS, CHOSEN_TREES),
    OURS: _ours(None, False),
}
BASELINES = tuple(name for name in METHODS if not name.startswith(OURS))
RANKED = (RANDOM, "hoa", PAIRS, "gradient cosine", "tag", *(n for n in METHODS if n not in BASELINES))  # choose sources
