"""Whether class probabilities mean what they say: reliability, and the calibration errors read off it.

    expected error = sum_b n_b / n |accuracy_b - confidence_b|,      maximum error = max_b |accuracy_b - confidence_b|

over bins b of the probability given to the likeliest class (Guo, Pleiss, Sun and Weinberger, 2017). The rows
of all tasks are pooled: one task has too few to fill the bins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from warmstart.core import Batch, InputError


class Reliability(NamedTuple):
    """What was promised and what came, by bins of equal width; NaN in confidence and accuracy of an empty one."""

    confidence: Tensor  # [bins] mean probability of the likeliest class
    accuracy: Tensor  # [bins] share of rows whose likeliest class came
    rows: Tensor  # [bins] how many, each counted by its weight


def reliability(probability: Tensor, batch: Batch, bins: int = 15) -> Reliability:
    """Of probabilities [*t, n, classes], or [*t, n] of y = 1. Bin b holds confidences in (b / bins, (b + 1) / bins]."""
    if bins < 1:
        raise InputError("at least one bin", f"{bins}", "raise bins")
    if probability.dim() > batch.y.dim():
        confidence, guess = probability.max(-1)
    else:
        confidence, guess = torch.maximum(probability, 1 - probability), (probability > 0.5).long()
    weight = batch.w * batch.mask
    real = weight > 0  # padding may hold anything, NaN too
    sure, weight = confidence[real].double(), weight[real].double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=sure.device)[1:-1]
    place = torch.bucketize(sure, edges)  # an edge belongs to the bin below it
    came = (guess == batch.y)[real].double()
    count, promised, found = (torch.bincount(place, part, bins) for part in (weight, weight * sure, weight * came))
    return Reliability(promised / count, found / count, count)


def expected_calibration_error(found: Reliability) -> float:
    """The mean gap between confidence and accuracy, each bin counted by its rows; NaN without any."""
    return float((found.rows * _gap(found)).sum() / found.rows.sum())


def maximum_calibration_error(found: Reliability, least: float = 10.0) -> float:
    """The widest gap among bins of at least `least` rows, since a few rows are chance; NaN without such a bin."""
    gap = _gap(found)[_enough(found, least)]
    return float(gap.max()) if len(gap) else float("nan")


def maximum_error_by_chance(found: Reliability, least: float = 10.0, draws: int = 1000, seed: int = 0) -> float:
    """What the maximum error would be, in the mean, of honest probabilities: bins of as many rows of weight 1, each as
    often right as it was promised and apart from the others. More, where rows of one task are right together."""
    kept = _enough(found, least)
    rows, promised = found.rows[kept].round(), found.confidence[kept].clamp(max=1)
    if not len(rows) or promised.isnan().any():
        return float("nan")
    came = np.random.default_rng(seed).binomial(rows.long().cpu(), promised.cpu(), (draws, len(rows)))
    gap = torch.from_numpy(came).to(rows) / rows - promised
    return float(gap.abs().amax(1).mean())


def _enough(found: Reliability, least: float) -> Tensor:
    return (found.rows > 0) & (found.rows >= least)


def _gap(found: Reliability) -> Tensor:
    return torch.where(found.rows > 0, (found.accuracy - found.confidence).abs(), 0.0)
