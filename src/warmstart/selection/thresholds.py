"""Thresholds by group: equal opportunity between two groups, for the least accuracy.

    min over guesses   P(wrong) + price (TPR_second - TPR_first)
    so a row is 1      in the first group where p > 1 / (2 + price / m_1), in the second where p > 1 / (2 - price / m_2)

p is a row's chance to be 1, m_g the share of rows that belong to group g and are 1, TPR_g the share of these that are
guessed. Accuracy against gap is thus a front with one number, the price; the lowest that closes the gap on the rows at
hand is kept, or where groups are so small that it jumps over zero the one that leaves least. Other groups keep 1/2,
and nothing is drawn at random. Menon and Williamson, 2018; rival: fairlearn, which brings every group to the same rate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.metrics.groups import equal_opportunity
from warmstart.tasks.transfer import Rows

NEAR = 1e-9


def fit(out: Tensor, rows: Rows, pair: tuple[int, int], most: float = 0.0) -> Tensor:
    """Log-odds [groups] above which a row is guessed to be 1, from those of labelled rows [n, 1]; `most` is the gap
    that may stay."""
    if out.shape[-1] != 1:
        raise InputError("scores of two classes", f"{out.shape[-1]} outputs", "use thresholds where labels are 0 and 1")
    score, group = out.squeeze(-1).double(), rows.group
    said, found = score > 0, torch.zeros(int(group.max()) + 1, dtype=torch.double, device=out.device)
    equal_opportunity(said, rows.y, group, pair)  # refuses a group without positives
    positive = {g: score[(group == g) & (rows.y == 1)] for g in pair}
    first, second = sorted(pair, key=lambda g: float((positive[g] > 0).double().mean()))
    gap = float((positive[second] > 0).double().mean() - (positive[first] > 0).double().mean())
    if gap <= most:
        return found
    share = {g: len(positive[g]) / len(score) for g in pair}
    prices = [  # at which each row's guess turns
        share[first] * (1 / positive[first][positive[first] <= 0].sigmoid() - 2),
        share[second] * (2 - 1 / positive[second][positive[second] > 0].sigmoid()),
    ]
    steps = [torch.full_like(turn, 1 / len(positive[g])) for turn, g in zip(prices, (first, second), strict=True)]
    ordered, place = torch.cat(prices).sort()
    left = (gap - torch.cat(steps)[place].cumsum(0)).abs()
    turned = torch.cat([ordered.diff() > NEAR, ordered.new_ones(1) > 0]).nonzero().squeeze(1)  # all rows of a price
    closes = (left[turned] <= most + NEAR).nonzero().flatten()
    at = int(turned[closes[0] if len(closes) else left[turned].argmin()])
    if left[at] >= gap:
        return found
    price = ordered[at : at + 2].mean()  # half-way to the next turn
    found[first] = torch.logit(1 / (2 + price / share[first]))
    found[second] = torch.logit(1 / (2 - price / share[second]).clamp(min=1.0))
    return found


def guess(out: Tensor, group: Tensor, thresholds: Tensor) -> Tensor:
    """0 or 1 [n] for scores [n, 1]; a group that was not there keeps 1/2."""
    known = torch.where(group < len(thresholds), thresholds[group.clamp(max=len(thresholds) - 1)], 0.0)
    return (out.squeeze(-1).double() > known).to(out.dtype)
