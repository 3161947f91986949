"""The mean of all training tasks, for every row: what any method must beat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warmstart.baselines.support import by_chunks, targets, task_sums
from warmstart.core import Columns, Likelihood, Prediction, Task
from warmstart.tasks.pool import Pool


@dataclass(frozen=True)
class Config:
    by_task: bool = True  # every task counts the same, however many rows it has


SPACE: dict[str, list[Any]] = {"by_task": [True, False]}


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
    sums, counts = task_sums(train, targets(train.y, likelihood, classes))
    known = counts > 0
    mean = (sums[known] / counts[known, None]).mean(0) if cfg.by_task else sums.sum(0) / counts.sum()

    return lambda task: by_chunks(lambda part: mean.expand(*part.query.y.shape, -1), task, likelihood)
