"""Task modelling: which sources help a target, from a linear surrogate of many small trainings.

    f_t(S_i)   validation loss of the target after training on target and S_i,   i = 1 .. n
    theta      regression of centred f on centred indicators of S_i            (surrogate.py)
    S*         {j : theta_j < gamma},   gamma = 0 unless validation is sure of another threshold

Anonymous submission, `Task Modeling: Approximating Multitask Predictions for Cross-Task Transfer`, Algorithm 1. Differs
from the paper: see docs/methods/task_model.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.engine.loop import Report, silent
from warmstart.metrics.ranking import spearman
from warmstart.selection import final, linearise, surrogate
from warmstart.selection.measures import Measure, cross_entropy
from warmstart.selection.subsets import indicators, sample_subsets
from warmstart.selection.training import Config as Training
from warmstart.selection.training import outputs, shares, train_models
from warmstart.tasks.transfer import Transfer

SAMPLE = 20  # subsets that are trained in any case, to tell the error of linearised estimates


@dataclass(frozen=True)
class Config:
    size: int = 5  # sources in a subset
    subsets: int = 400  # whose f is found
    held_out: int = 100  # more of them, to judge the surrogate
    starts: int = 2  # initialisations that f is averaged over
    linear: bool = False  # estimate f by linearisation instead of training
    training: Training = Training(hidden=(32,), steps=300, balance=0.0)  # every task alike, so that small ones show
    surrogate: surrogate.Config = field(default_factory=surrogate.Config)
    linearise: linearise.Config = field(default_factory=linearise.Config)


class Estimate(NamedTuple):
    """What was learned of the sources."""

    surrogate: surrogate.Surrogate
    quality: surrogate.Quality
    ceiling: (
        float  # Spearman of f between two initialisations, on the held-out subsets; nan with one, or without training
    )
    comparison: linearise.Comparison | None  # of linearised estimates with real trainings
    f: Tensor  # [n + held out]
    indicators: Tensor


Evaluate = Callable[[Tensor, int], Tensor]  # indicators [n, k], seed -> f [n]


def evaluator(transfer: Transfer, measure: Measure, cfg: Config, progress: Report = silent) -> Evaluate:
    """f by training, hundreds of subsets as one program."""

    def evaluate(members: Tensor, seed: int) -> Tensor:
        share = shares(transfer, members.to(transfer.pool.y.device), cfg.training.balance)
        phi = train_models(transfer, share, cfg.training, seed, progress=progress)
        return measure(outputs(transfer, cfg.training, phi, transfer.validation.x), transfer.validation).cpu()

    return evaluate


def estimate(
    transfer: Transfer,
    cfg: Config = Config(),
    measure: Measure = cross_entropy,
    seed: int = 0,
    evaluate: Evaluate | None = None,
    progress: Report = silent,
) -> Estimate:
    """Steps 1 and 2 of the algorithm. `evaluate` finds f elsewhere, in jobs for instance."""
    if cfg.starts < 1 or cfg.held_out < 2:
        raise InputError("a start and two held-out subsets", f"{cfg.starts} and {cfg.held_out}", "raise them")
    find = evaluate or evaluator(transfer, measure, cfg, progress)
    members = indicators(sample_subsets(transfer.sources, cfg.size, cfg.subsets + cfg.held_out, seed), transfer.sources)
    places = [1000 * seed + start for start in range(cfg.starts)]
    if cfg.linear:
        device = transfer.pool.y.device
        share = shares(transfer, members.to(device), cfg.training.balance)
        each = linearise.estimates(transfer, share, measure, cfg.training, cfg.linearise, places[0] + 500).cpu()
        real = find(members[-SAMPLE:], places[0])
        comparison = linearise.compare(each.mean(0)[-SAMPLE:], real.double())
    else:
        each, comparison = torch.stack([find(members, place) for place in places]), None
    f = each.mean(0)
    model = surrogate.fit(members[: cfg.subsets], f[: cfg.subsets], cfg.surrogate, seed)
    quality = surrogate.judge(model, members[cfg.subsets :], f[cfg.subsets :])
    held = each[:, cfg.subsets :]
    ceiling = spearman(held[0], held[1]) if comparison is None and len(held) > 1 else float("nan")
    return Estimate(model, quality, ceiling, comparison, f, members)


def candidates(theta: Tensor, trials: int) -> Tensor:
    """Sets [m, k]: first that of gamma = 0, then the sources with the lowest coefficients, in several numbers."""
    rest = final.top_sets(theta, trials - 1) if trials > 1 else torch.zeros(0, len(theta))
    return torch.cat([(theta < 0).float()[None].cpu(), rest])


def select(
    transfer: Transfer,
    found: Estimate,
    measure: Measure = cross_entropy,
    cfg: final.Config = final.Config(),
    trials: int = 10,
    seed: int = 0,
    progress: Report = silent,
) -> final.Fitted:
    """Step 3 and the final training: gamma = 0, unless validation is sure that another set is better."""
    sets = candidates(found.surrogate.theta, trials)
    return final.choose(transfer, sets, measure, cfg, seed, preferred=0, progress=progress)
