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
from warmstart.metrics.intervals import conformal_quantile, z_score
from warmstart.models.tabular import join
from warmstart.tasks.pool import Pool, episodes, limit_support

SIZES = (0, 1, 2, 5, 10, 20)  # support rows at which everything is judged
LEFT_OUT = -1.0  # in place of the score of a task that has fewer rows to show than the size
Predictor: TypeAlias = Callable[[Task], Prediction]


def held_out(pool: Pool, support: int, query: int, seed: int) -> Task:
    """The fixed episodes of a pool of held-out tasks: `support` rows to show from, `query` to judge."""
    ids = torch.arange(pool.count, device=pool.y.device)
    return episodes(pool, ids, support, query, None if pool.ordered else generator(seed, 7, device=pool.y.device))


def sizes_up_to(support: int) -> list[int]:
    return sorted({*(size for size in SIZES if size < support), support})


def reached(task: Task, sizes: Sequence[int]) -> dict[int, Tensor]:
    """size -> [t] whether a task has so many support rows to show; without the sizes that none has."""
    rows = task.support.mask.sum(-1)
    return {size: rows >= size for size in sizes if bool((rows >= size).any())}


def error(likelihood: Likelihood, prediction: Prediction, batch: Batch) -> Tensor:
    """One number per task: squared error, or log loss."""
    score = squared_error if likelihood.name == "squared" else log_loss
    return score(prediction.mean, batch)


def errors(predict: Predictor, task: Task, likelihood: Likelihood, sizes: Sequence[int]) -> dict[int, Tensor]:
    """Error of every task when it shows 0, 1, 2 ... rows; the rows judged are always the same.

    NaN for a task with fewer rows to show; a size that no task reaches is left out.
    """
    found = {}
    for size, there in reached(task, sizes).items():
        values = error(likelihood, predict(limit_support(task, size)), task.query)
        found[size] = torch.where(there, values, torch.nan)
    return found


def mean_error(predict: Predictor, task: Task, likelihood: Likelihood, sizes: Sequence[int]) -> float:
    """What is tuned and stopped by: the mean over tasks and support sizes."""
    found = errors(predict, task, likelihood, sizes)
    return float(torch.stack([values.nanmean() for values in found.values()]).mean())


class Calibration(NamedTuple):
    """Conformal scores of validation tasks at several support sizes, kept to make intervals of any level."""

    sizes: Tensor  # [s]
    scores: Tensor  # [s, t, n] |y - mean| / scale, or LEFT_OUT
    mask: Tensor  # [t, n]


def scale(prediction: Prediction) -> Tensor:
    """What a prediction's error is measured in: its own standard deviation, or 1 for a point method."""
    if isinstance(prediction.variance, Tensor):
        return prediction.variance.clamp(min=1e-12).sqrt()
    return torch.ones_like(prediction.mean)


def calibrate(predict: Predictor, task: Task, sizes: Sequence[int]) -> Calibration:
    """Scores at the sizes that some task reaches, of the tasks that reach them."""
    scores = {}
    for size, there in reached(task, sizes).items():
        said = predict(limit_support(task, size))
        far = (task.query.y - said.mean).abs() / scale(said)
        scores[size] = torch.where(there[:, None], far, LEFT_OUT)
    return Calibration(torch.tensor(list(scores)), torch.stack(list(scores.values())).cpu(), task.query.mask.cpu())


def interval(calibration: Calibration, prediction: Prediction, shown: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """low and high [t, n], by the scores of the largest calibrated size that does not exceed the rows shown [t].

    Where no size has enough tasks for the level, a method with a variance of its own is taken at its word, if all
    validation rows bear it out, or else as far as they go; a point method has an interval without end.
    """
    place = torch.searchsorted(calibration.sizes, shown.cpu().long(), right=True).clamp(min=1) - 1
    reach = reaches(calibration, level, isinstance(prediction.variance, Tensor))
    half = reach.to(prediction.mean)[place.to(prediction.mean.device)].unsqueeze(-1) * scale(prediction)
    return prediction.mean - half, prediction.mean + half


def reaches(calibration: Calibration, level: float, own: bool = False) -> Tensor:
    """[s] how far intervals reach, in what errors are measured in.

    A size that too few tasks reached for the level is as the next smaller one; where none has enough, without end, or
    with an `own` variance as far as that and all rows say.
    """
    found: list[float] = []
    for scores in calibration.scores:
        kept = calibration.mask * (scores != LEFT_OUT)
        reach = conformal_quantile(scores, kept, level)
        if reach == float("inf") and found:
            reach = found[-1]
        elif reach == float("inf") and own:
            reach = max(z_score(level), float(scores[kept > 0].max()))
        found.append(reach)
    return torch.tensor(found, dtype=torch.double)


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
