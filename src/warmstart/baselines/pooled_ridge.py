"""One linear model for all tasks: row, descriptor, and what the support says of the row.

Ridge regression, or logistic regression for classes. Every training task is seen with several random
supports of 0 to `support` rows, so that the model meets at test what it met in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from warmstart.baselines.design import dense, fit_design, scales
from warmstart.baselines.pooled import answers, fit_model, training_rows
from warmstart.baselines.support import by_chunks, statistics, targets
from warmstart.core import Columns, Likelihood, Prediction, Task
from warmstart.tasks.pool import Pool


@dataclass(frozen=True)
class Config:
    penalty: float = 10.0  # on the standardised coefficients, against a sum over rows
    bandwidth: float = 1.0  # of the similarity, relative to the distance of two random rows
    ridge: float = 0.3  # noise of the kernel regression on the support, relative to its signal
    draws: int = 5  # supports drawn for every training task
    support: int = 20  # largest of them
    query: int = 10  # rows predicted from each


SPACE: dict[str, list[Any]] = {
    "penalty": [1.0, 10.0, 100.0, 1000.0],
    "bandwidth": [0.3, 0.6, 1.0, 1.5],
    "ridge": [0.1, 0.3, 1.0],
}


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
    row, about = fit_design(train.x, columns), fit_design(train.descriptor, descriptor_columns)
    centre = targets(train.y, likelihood, classes).mean(0)

    def features(task: Task) -> Tensor:
        shown, asked = dense(row, task.support.x), dense(row, task.query.x)
        told = dense(about, task.descriptor).unsqueeze(-2).expand(*asked.shape[:-1], -1)
        values = targets(task.support.y, likelihood, classes) - centre
        said = statistics(shown, asked, values, task.support.w, cfg.bandwidth * row.spread, cfg.ridge)
        return torch.cat([asked, told, said], -1)

    x, y, w = training_rows(train, features, cfg.draws, cfg.support, cfg.query, seed)
    mean, scale = x.mean(0), scales(x)
    logistic = LogisticRegression(C=1 / cfg.penalty, max_iter=2000)
    kind = Ridge(alpha=cfg.penalty) if likelihood.name == "squared" else logistic
    model = fit_model(kind, ((x - mean) / scale).double(), y, w, likelihood)

    def chunk(task: Task) -> Tensor:
        return answers(model, ((features(task) - mean) / scale).double(), likelihood, classes)

    return lambda task: by_chunks(chunk, task, likelihood)
