"""Scores of a stack of tasks: predictions [t, n] against a batch, one number per task [t].

A task without a row to judge scores NaN, which `metrics.intervals` leaves out.
"""

from __future__ import annotations

from math import log, pi

import torch
from torch import Tensor

from warmstart.core import Batch

SMALLEST = 1e-7  # probabilities are kept off zero, so that one sure mistake does not make a mean infinite


def average(rows: Tensor, batch: Batch) -> Tensor:
    """sum w r / sum w over each task's real rows."""
    weight = batch.w * batch.mask
    kept = torch.where(weight > 0, rows, torch.zeros_like(rows))  # padding may hold anything, NaN too
    return (kept * weight).sum(-1) / weight.sum(-1)


def squared_error(mean: Tensor, batch: Batch) -> Tensor:
    return average((mean - batch.y) ** 2, batch)


def absolute_error(mean: Tensor, batch: Batch) -> Tensor:
    return average((mean - batch.y).abs(), batch)


def relative_squared_error(mean: Tensor, batch: Batch, variance: float | Tensor | None = None) -> Tensor:
    """Squared error in units of the target's variance, by default that over all rows of the stack."""
    return squared_error(mean, batch) / (target_variance(batch) if variance is None else variance)


def target_variance(batch: Batch) -> Tensor:
    """The variance of y over all real rows: what a constant that knows the mean would score."""
    weight = batch.w * batch.mask
    mean = (weight * batch.y).sum() / weight.sum()
    return (weight * (batch.y - mean) ** 2).sum() / weight.sum()


def probability_of_truth(probability: Tensor, batch: Batch) -> Tensor:
    """[t, n] what was given to the class that came, from [t, n] of y = 1, or [t, n, classes]."""
    if probability.dim() > batch.y.dim():
        return probability.gather(-1, batch.y.long().unsqueeze(-1)).squeeze(-1)
    return torch.where(batch.y > 0.5, probability, 1 - probability)


def log_loss(probability: Tensor, batch: Batch) -> Tensor:
    """-log of the probability of what came: [t, n] of y = 1, or [t, n, classes]."""
    return average(-probability_of_truth(probability, batch).clamp(min=SMALLEST).log(), batch)


def accuracy(probability: Tensor, batch: Batch) -> Tensor:
    """The share of rows whose likeliest class came."""
    guess = probability.argmax(-1) if probability.dim() > batch.y.dim() else (probability > 0.5)
    return average((guess == batch.y).to(probability.dtype), batch)


def gaussian_nll(mean: Tensor, variance: Tensor, batch: Batch) -> Tensor:
    """-log N(y; mean, variance)."""
    return average(0.5 * (log(2 * pi) + variance.log() + (batch.y - mean) ** 2 / variance), batch)
