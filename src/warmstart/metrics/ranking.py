"""Whether what is liked comes first: scores of a stack of tasks, predictions [t, n] against a batch, [t].

A task that cannot be judged scores NaN, which `metrics.intervals` leaves out: one item alone is in the right
order whatever is said of it, and without a click or without a miss there is nothing to order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from warmstart.core import Batch, InputError
from warmstart.metrics.errors import SMALLEST, average


def ndcg(score: Tensor, batch: Batch, k: int) -> Tensor:
    """sum over the first k places of (2^y - 1) / log2(1 + place), relative to the best order, averaged over ties.

    Items of equal score share the places they take: each place is given the mean gain of its tie.
    """
    if k < 1:
        raise InputError("at least one place", f"{k}", "raise k")
    real = batch.mask > 0
    gain = torch.where(real, 2.0**batch.y - 1, torch.zeros_like(batch.y)).double()
    score = torch.where(real, score, torch.full_like(score, -torch.inf))
    found = _discounted(score, gain, k)
    best = _discounted(torch.where(real, batch.y, torch.full_like(batch.y, -torch.inf)), gain, k)
    judged = (real.sum(-1) > 1) & (best > 0)
    return torch.where(judged, found / best, torch.nan).to(score)


def _discounted(score: Tensor, gain: Tensor, k: int) -> Tensor:
    ordered, order = score.sort(-1, descending=True)
    gain = gain.gather(-1, order)
    tie = torch.cat([torch.zeros_like(order[:, :1]), (ordered[:, 1:] != ordered[:, :-1]).long()], -1).cumsum(-1)
    total = torch.zeros_like(gain).scatter_add_(-1, tie, gain)
    count = torch.zeros_like(gain).scatter_add_(-1, tie, torch.ones_like(gain))
    shared = (total / count.clamp(min=1)).gather(-1, tie)[:, :k]
    place = torch.arange(1, shared.shape[-1] + 1, device=gain.device, dtype=gain.dtype)
    return (shared / torch.log2(1 + place)).sum(-1)


def pooled_auc(probability: Tensor, batch: Batch) -> float:
    """The chance that a clicked row of any task scores above one that was not, ties counting half; NaN without both."""
    real = batch.mask > 0
    return _auc(probability[real], batch.y[real])


def auc(probability: Tensor, batch: Batch) -> Tensor:
    """The same within each task."""
    real = batch.mask > 0
    found = [_auc(p[m], y[m]) for p, y, m in zip(probability, batch.y, real, strict=True)]
    return torch.tensor(found, dtype=probability.dtype, device=probability.device)


def _auc(score: Tensor, y: Tensor) -> float:
    from scipy.stats import rankdata  # imported here: loading it takes seconds

    clicked = (y > 0.5).cpu().numpy()
    ones, zeros = int(clicked.sum()), int((~clicked).sum())
    if not ones or not zeros:
        return float("nan")
    ranks = rankdata(score.cpu().numpy())
    return float((ranks[clicked].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def weighted_entropy(probability: Tensor, batch: Batch, weights: tuple[float, float] = (0.1, 0.9)) -> Tensor:
    """-w_y log p(y), the mean over a task's rows, with the weights of y = 0 and y = 1 (Yu et al., 2021)."""
    came = torch.where(batch.y > 0.5, probability, 1 - probability).clamp(min=SMALLEST)
    return average(-torch.where(batch.y > 0.5, weights[1], weights[0]) * came.log(), batch)


def spearman(first: Tensor, second: Tensor) -> float:
    """The correlation of ranks, ties averaged; NaN where one of the two is constant.

    >>> round(spearman(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.1, 0.2, 0.3])), 6)
    1.0
    """

    def ranks(values: Tensor) -> Tensor:
        below = (values[:, None] > values).sum(1) + (values[:, None] >= values).sum(1)
        return below.double() - below.double().mean()

    a, b = ranks(first.detach().cpu()), ranks(second.detach().cpu())
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale > 0 else float("nan")
