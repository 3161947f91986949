"""Class means and how near rows are to them: what the picture baselines and prototypical networks share.

Functions take the rows of one task [n, d] or of a stack [*t, n, d].
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Batch, mean_loss
from warmstart.maths.classes import of_class
from warmstart.models.likelihoods import multiclass

WIDEST = 1e4  # a sharpness between 1 / WIDEST and WIDEST, in units of the scores' spread


class Sums(NamedTuple):
    """Rows seen so far, by class: sums add up, so that later rows can be added."""

    total: Tensor  # [*t, classes, d]
    weight: Tensor  # [*t, classes]


def nothing(classes: int, like: Tensor) -> Sums:
    """Before any row. One column, which broadcasts to as many as the first rows have."""
    return Sums(like.new_zeros(classes, 1), like.new_zeros(classes))


def observe(sums: Sums, rows: Tensor, batch: Batch) -> Sums:
    """With these rows [*t, n, d], each counted by its weight."""
    member = of_class(batch.y, sums.weight.shape[-1]).to(rows.dtype) * (batch.w * batch.mask).unsqueeze(-1)
    return Sums(sums.total + member.mT @ rows, sums.weight + member.sum(-2))


def means(sums: Sums) -> Tensor:
    """[*t, classes, d]; zero for a class without a row."""
    return sums.total / torch.where(sums.weight > 0, sums.weight, 1.0).unsqueeze(-1)


def nearness(rows: Tensor, centres: Tensor) -> Tensor:
    """[*t, n, classes]: -|row - centre|^2 + |row|^2. What all classes share is left out: no softmax sees it."""
    centres = centres.expand(*centres.shape[:-1], rows.shape[-1])
    return 2 * rows @ centres.mT - (centres**2).sum(-1).unsqueeze(-2)


def among_seen(scores: Tensor, seen: Tensor) -> Tensor:
    """-inf for a class that showed no row: its probability is 0. As they were where no class showed one."""
    allowed = seen | ~seen.any(-1, keepdim=True)
    return torch.where(allowed.unsqueeze(-2), scores, -torch.inf)


def cross_entropy(scores: Tensor, batch: Batch) -> Tensor:
    """The mean over a task's rows; those of a class with probability 0 are left out, for they teach nothing."""
    rows = multiclass.loss(scores, batch.y)
    known = rows != torch.inf  # NaN stays, to be seen
    return mean_loss(torch.where(known, rows, 0.0), batch._replace(mask=batch.mask * known))


def sharpness(scores: Tensor, y: Tensor) -> float:
    """The factor b, 1 / temperature, under which softmax(b scores) [*t, n, classes] makes y [*t, n] likeliest.

    The loss is convex in b with slope mean(E_p[score] - score of y), so its zero is found by bisection. One row more
    is supposed, of an average kind and of any class, so that rows without a mistake do not make it infinitely sure.
    """
    own = scores.gather(-1, y.long().unsqueeze(-1)).squeeze(-1).double()
    known = own.isfinite()
    scores, own = scores[known].double(), own[known]
    seen = scores.isfinite()
    values = torch.where(seen, scores, 0.0)
    own = (len(own) * own + values.sum(-1) / seen.sum(-1)) / (len(own) + 1)
    spread = float(scores[seen].std()) if len(own) else 0.0
    if not spread > 0:
        return 1.0

    def slope(factor: float) -> float:
        chance = (factor * scores).softmax(-1)
        return float(((chance * values).sum(-1) - own).mean())

    low, high = -math.log(WIDEST), math.log(WIDEST)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(math.exp(middle) / spread) > 0 else (middle, high)
    return math.exp((low + high) / 2) / spread
