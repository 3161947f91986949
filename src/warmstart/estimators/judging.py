"""Judging any predictor on held-out tasks: error, intervals and coverage against the support size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.core import Batch, Likelihood, Prediction, Task
from warmstart.core.trees import expand, take
from warmstart.engine.noise import generator
from warmstart.metrics.errors import log_loss, squared_error
from warmstart.metrics.intervals import conformal_quantile
from warmstart.models.tabular import join
from warmstart.tasks.pool import Pool, episodes, limit_support

SIZES = (0, 1, 2, 5, 10, 20)  # support rows at which everything is judged
Predictor: TypeAlias = Callable[[Task], Prediction]


def held_out(pool: Pool, support: int, query: int, seed: int) -> Task:
    """The fixed episodes of a pool of held-out tasks: `support` rows to show from, `query` to judge."""
    ids = torch.arange(pool.count, device=pool.y.device)
    return episodes(pool, ids, support, query, None if pool.ordered else generator(seed, 7, device=pool.y.device))


def sizes_up_to(support: int) -> list[int]:
    return sorted({*(size for size in SIZES if size < support), support})


def error(likelihood: Likelihood, prediction: Prediction, batch: Batch) -> Tensor:
    """One number per task: squared error, or log loss."""
    score = squared_error if likelihood.name == "squared" else log_loss
    return score(prediction.mean, batch)


def errors(predict: Predictor, task: Task, likelihood: Likelihood, sizes: Sequence[int]) -> dict[int, Tensor]:
    """Error of every task when it shows 0, 1, 2 ... rows; the rows judged are always the same."""
    return {size: error(likelihood, predict(limit_support(task, size)), task.query) for size in sizes}


def mean_error(predict: Predictor, task: Task, likelihood: Likelihood, sizes: Sequence[int]) -> float:
    """What is tuned and stopped by: the mean over tasks and support sizes."""
    found = errors(predict, task, likelihood, sizes)
    return float(torch.stack([values.nanmean() for values in found.values()]).mean())


class Calibration(NamedTuple):
    """Conformal scores of validation tasks at several support sizes, kept to make intervals of any level."""

    sizes: Tensor  # [s]
    scores: Tensor  # [s, t, n] |y - mean| / scale
    mask: Tensor  # [t, n]


def scale(prediction: Prediction) -> Tensor:
    """What a prediction's error is measured in: its own standard deviation, or 1 for a point method."""
    if isinstance(prediction.variance, Tensor):
        return prediction.variance.clamp(min=1e-12).sqrt()
    return torch.ones_like(prediction.mean)


def calibrate(predict: Predictor, task: Task, sizes: Sequence[int]) -> Calibration:
    scores = []
    for size in sizes:
        said = predict(limit_support(task, size))
        scores.append((task.query.y - said.mean).abs() / scale(said))
    return Calibration(torch.tensor(list(sizes)), torch.stack(scores).cpu(), task.query.mask.cpu())


def interval(calibration: Calibration, prediction: Prediction, shown: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """low and high [t, n], by the scores of the largest calibrated size that does not exceed the rows shown [t]."""
    place = torch.searchsorted(calibration.sizes, shown.cpu().long(), right=True).clamp(min=1) - 1
    reach = torch.tensor(
        [conformal_quantile(scores, calibration.mask, level) for scores in calibration.scores],
        dtype=prediction.mean.dtype,
    )
    half = reach[place].to(prediction.mean.device).unsqueeze(-1) * scale(prediction)
    return prediction.mean - half, prediction.mean + half


def join_pool(pool: Pool) -> Pool:
    """Every row with its task's descriptor as further columns, for methods that take no descriptor."""
    owner = torch.repeat_interleave(torch.arange(pool.count, device=pool.y.device), pool.lengths)
    return pool._replace(x=join(pool.x, take(pool.descriptor, owner)))


def join_task(task: Task) -> Task:
    """The same for a stack of tasks."""

    def joined(batch: Batch) -> Batch:
        wide = expand(task.descriptor, batch.y.shape[-1])  # [n, t, ...]
        return batch._replace(x=join(batch.x, {name: leaf.transpose(0, 1) for name, leaf in wide.items()}))

    return task._replace(support=joined(task.support), query=joined(task.query))
