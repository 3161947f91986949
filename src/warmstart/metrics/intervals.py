"""How sure: intervals of a mean over tasks, and intervals of single predictions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.special import ndtri
from torch import Tensor

from warmstart.core import Batch, InputError
from warmstart.metrics.errors import average


class Interval(NamedTuple):
    """A mean over `n` tasks and where it may lie."""

    mean: float
    low: float
    high: float
    n: int


def over_tasks(values: Tensor, level: float = 0.95) -> Interval:
    """mean +- z s / sqrt(n) of one number per task; tasks that scored NaN are left out."""
    kept = _scored(values)
    mean, half = float(kept.mean()), z_score(level) * float(kept.std()) / len(kept) ** 0.5
    return Interval(mean, mean - half, mean + half, len(kept))


def bootstrap(values: Tensor, level: float = 0.95, draws: int = 2000, seed: int = 0) -> Interval:
    """Percentiles of the mean of tasks drawn again with replacement: for skewed scores."""
    kept = _scored(values).cpu()
    index = torch.randint(len(kept), (draws, len(kept)), generator=torch.Generator().manual_seed(seed))
    edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=kept.dtype)
    low, high = torch.quantile(kept[index].mean(1), edges).tolist()
    return Interval(float(kept.mean()), low, high, len(kept))


def paired(first: Tensor, second: Tensor, level: float = 0.95) -> Interval:
    """`first` minus `second` on the same tasks: below zero, `first` has the smaller error."""
    if first.shape != second.shape:
        raise InputError(f"{len(second)} scores, one per task", f"{len(first)}", "score both methods on the same tasks")
    return over_tasks(first - second, level)


def z_score(level: float) -> float:
    """How many standard deviations hold `level` of a normal.

    >>> round(z_score(0.95), 3)
    1.96
    """
    return float(ndtri((1 + level) / 2))


def gaussian(mean: Tensor, variance: Tensor, level: float = 0.9) -> tuple[Tensor, Tensor]:
    """The central interval of a normal prediction: low and high, [t, n] each."""
    half = z_score(level) * variance.sqrt()
    return mean - half, mean + half


def coverage(low: Tensor, high: Tensor, batch: Batch) -> Tensor:
    """The share of each task's rows that fall inside."""
    return average(((low <= batch.y) & (batch.y <= high)).to(low.dtype), batch)


def width(low: Tensor, high: Tensor, batch: Batch) -> Tensor:
    """The mean width of each task's intervals: at equal coverage, narrower is better."""
    return average(high - low, batch)


def conformal_quantile(scores: Tensor, mask: Tensor, level: float = 0.9) -> float:
    """The score that a row of a new task stays below with probability `level`, whatever the model.

    scores [t, n] of calibration tasks, for instance |y - mean| or |y - mean| / sd. Each task has
    mass 1 / (t + 1), shared by its rows; the new task's own share lies at infinity (Lee, Barber and
    Willett, 2023). With one row per task this is split conformal prediction: the
    ceil((t + 1) level)-th smallest score. Too few tasks for the level give infinity.
    """
    used = mask.sum(-1) > 0
    real = mask[used].double()
    mass = real / real.sum(-1, keepdim=True) / (int(used.sum()) + 1)
    kept = real > 0
    ordered, order = scores[used][kept].double().sort()
    enough = mass[kept][order].cumsum(0) >= level - 1e-12  # rounding must not push the quantile one score up
    return float(ordered[enough][0]) if bool(enough.any()) else float("inf")


def _scored(values: Tensor) -> Tensor:
    kept = values[~values.isnan()].double()
    if len(kept) < 2:
        raise InputError("at least two scored tasks", f"{len(kept)}", "judge more tasks")
    return kept
