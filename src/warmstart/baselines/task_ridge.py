"""One ridge (or logistic) regression per task on its support rows alone, shrunk towards the global mean.

    f_t = mu + a_t + b_t . x,   minimising  sum_i w_i l(f_t(x_i), y_i) + penalty (a_t^2 / offset + |b_t|^2)

with l = (f - y)^2, or twice the logistic loss with mu in log-odds, one class against the rest. Solved
in its dual form, so all tasks are one stacked solve of size [support, support].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warmstart.baselines.design import dense, fit_design
from warmstart.baselines.support import by_chunks, regress, targets, task_sums
from warmstart.core import Columns, Likelihood, Prediction, Task
from warmstart.tasks.pool import Pool


@dataclass(frozen=True)
class Config:
    penalty: float = 3.0  # on the slopes of the standardised columns
    offset: float = 1.0  # how much freer the intercept is than a slope
    newton: int = 8  # steps of the logistic regression


SPACE: dict[str, list[Any]] = {"penalty": [0.3, 1.0, 3.0, 10.0, 30.0], "offset": [0.3, 1.0, 3.0, 10.0]}


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
    design = fit_design(train.x, columns)
    sums, counts = task_sums(train, targets(train.y, likelihood, classes))
    mu = (sums / counts.clamp(min=1)[:, None]).mean(0)

    def chunk(task: Task) -> Tensor:
        shown, asked = dense(design, task.support.x), dense(design, task.query.x)
        own, cross = shown @ shown.mT + cfg.offset, asked @ shown.mT + cfg.offset
        values, weight = targets(task.support.y, likelihood, classes), task.support.w
        if likelihood.name == "squared":
            return mu + regress(own, cross, values - mu, weight, cfg.penalty)
        log_odds = torch.logit(mu, eps=1e-4)
        channels = [
            log_odds[c] + logistic(own, cross, values[..., c], weight, log_odds[c], cfg)
            for c in range(values.shape[-1])
        ]
        chance = torch.stack(channels, -1).sigmoid()
        return chance if likelihood.name == "binary" else chance / chance.sum(-1, keepdim=True)

    return lambda task: by_chunks(chunk, task, likelihood)


def logistic(own: Tensor, cross: Tensor, y: Tensor, weight: Tensor, centre: Tensor, cfg: Config) -> Tensor:
    """Log-odds over `centre` at the query rows: Newton's method, each step a weighted `regress`."""
    f = torch.zeros_like(y)
    for step in range(cfg.newton):
        p = torch.sigmoid(f + centre)
        curvature = (p * (1 - p)).clamp(min=1e-6)
        working = (f + (y - p) / curvature).unsqueeze(-1)
        last = step == cfg.newton - 1
        f = regress(own, cross if last else own, working, weight * curvature, cfg.penalty).squeeze(-1)
    return f
