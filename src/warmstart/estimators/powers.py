"""Probabilities of classes to a power, settled on validation tasks by how many rows a task has shown.

    p_c <- p_c^b / sum_k p_k^b,    b > 1 surer, b < 1 less sure

A power is kept where it lowers the log loss of tasks that it was not settled on by more than a standard error, and is
1 elsewhere: a few dozen tasks always settle on some power, and often on one that is worse than none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.baselines.centroids import sharpness
from warmstart.core import Batch, Prediction, Task
from warmstart.core.trees import take
from warmstart.estimators.judging import Predictor, reached
from warmstart.metrics.errors import log_loss
from warmstart.tasks.pool import limit_support

FOLDS = 5


class Powers(NamedTuple):
    """One for each number of rows shown."""

    sizes: Tensor  # [s] rising
    powers: Tensor  # [s]


def sharpen(chances: Tensor, factor: float | Tensor) -> Tensor:
    """p^factor, normalised: below 1 less sure, above 1 surer; the order of the classes stays."""
    return (factor * log_of(chances)).softmax(-1)


def log_of(chances: Tensor) -> Tensor:
    """Finite where a probability was rounded to zero."""
    return chances.clamp(min=torch.finfo(chances.dtype).tiny).log()


def fit_powers(predict: Predictor, task: Task, sizes: Sequence[int]) -> Powers:
    """At the sizes that some task reaches, by the tasks that reach them."""
    found = {}
    for size, there in reached(task, sizes).items():
        own = take(task, there.nonzero().squeeze(-1))
        found[size] = _settle(_every(predict(limit_support(own, size)).mean, own.query), own.query)
    return Powers(torch.tensor(list(found)), torch.tensor(list(found.values()), dtype=torch.double))


def raised(said: Prediction, powers: Powers, shown: Tensor) -> Prediction:
    """Predictions [*t, n] or [*t, n, classes] of tasks that have shown so many rows [*t], by the power of the largest
    size that does not exceed them."""
    place = (powers.sizes <= shown.unsqueeze(-1)).sum(-1).clamp(min=1) - 1
    power = powers.powers.to(said.mean)[place.to(said.mean.device)]
    binary = said.mean.dim() == shown.dim() + 1
    before, power = _both(said.mean) if binary else said.mean, power[..., None, None]
    chances = torch.where(power == 1, before, sharpen(before, power))
    return said._replace(mean=chances[..., 1] if binary else chances)


def _settle(chances: Tensor, query: Batch) -> float:
    """Of [t, n, classes]: the power of all tasks, where each of five folds is better off by that of the others."""
    fold = torch.arange(len(chances)) % FOLDS
    gains = []
    for held in range(min(FOLDS, len(chances))):
        power, own = _power(chances[fold != held], take(query, fold != held)), take(query, fold == held)
        before = chances[fold == held]
        gains.append(log_loss(before, own) - log_loss(sharpen(before, power), own))
    gain = torch.cat(gains)
    better = len(gain) > 1 and float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5
    return _power(chances, query) if better else 1.0


def _power(chances: Tensor, query: Batch) -> float:
    real = query.mask > 0
    return sharpness(log_of(chances[real]), query.y[real])


def _every(mean: Tensor, query: Batch) -> Tensor:
    return (_both(mean) if mean.dim() == query.y.dim() else mean).cpu()


def _both(chance: Tensor) -> Tensor:
    """Of the first class too."""
    return torch.stack([1 - chance, chance], -1)
