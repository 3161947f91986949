"""The support's mean, shrunk towards the mean of all tasks.

    mean_t = (sum of n support targets + k mu) / (n + k),    k = variance within / variance between tasks

which is the best linear prediction of a task's mean. The two variances are the one-way analysis of
variance estimates for tasks of unequal length; mu weighs a training task by n / (n + k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from warmstart.baselines.support import by_chunks, targets, task_sums
from warmstart.core import Columns, Likelihood, Prediction, Task
from warmstart.tasks.pool import Pool

NO_DIFFERENCE = 1e9  # shrinkage when the training tasks' means differ by chance only


@dataclass(frozen=True)
class Config:
    shrinkage: float | None = None  # k, in rows; None: from the training tasks' variances


SPACE: dict[str, list[Any]] = {"shrinkage": [None, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]}


def fit(
    train: Pool,
    columns: Columns,
    descriptor_columns: Columns,
    likelihood: Likelihood,
    classes: int,
    cfg: Config,
    seed: int,
) -> Callable[[Task], Prediction]:
    train = train.to("cpu")
    values = targets(train.y, likelihood, classes)
    k = variance_ratio(train, values) if cfg.shrinkage is None else cfg.shrinkage
    sums, counts = task_sums(train, values)
    mu = (sums / (counts + k)[:, None]).sum(0) / (counts / (counts + k)).sum()

    def chunk(task: Task) -> Tensor:
        support = task.support
        total = (support.w.unsqueeze(-1) * targets(support.y, likelihood, classes)).sum(-2)
        mean = (total + k * mu) / (support.w.sum(-1, keepdim=True) + k)
        return mean.unsqueeze(-2).expand(*task.query.y.shape, -1)

    return lambda task: by_chunks(chunk, task, likelihood)


def variance_ratio(train: Pool, values: Tensor) -> float:
    """Variance of a row within its task over variance of task means, summed over the channels of `values`."""
    sums, counts = task_sums(train, values)
    known = counts > 0
    sums, counts = sums[known], counts[known]
    rows, tasks = float(counts.sum()), len(counts)
    means = sums / counts[:, None]
    total = (train.w.unsqueeze(-1) * values**2).sum()
    explained = (counts[:, None] * means**2).sum()
    between = float(explained - (sums.sum(0) ** 2).sum() / rows) / max(tasks - 1, 1)
    within = float(total - explained) / max(rows - tasks, 1)
    typical = (rows - float((counts**2).sum()) / rows) / max(tasks - 1, 1)
    difference = (between - within) / typical if tasks > 1 else 0.0
    return min(within / difference, NO_DIFFERENCE) if difference > 0 else NO_DIFFERENCE
