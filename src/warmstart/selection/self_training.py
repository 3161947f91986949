"""Labelling functions as features: a linear model reads a text and the votes on it, then learns from its own labels.

    z = (scale v, x)            v: which function votes for which class; x: the text, whose last column is 1
    w_0 = ridge(z, y of the labelled rows)
    w_r = ridge(labelled rows, and share times all other rows with labels softmax(heat z w_{r-1}))

Functions vote on any text, also on one that nobody labelled, so their votes may be read when a new text comes. As in
`closed_form` labelled rows are trained on and judged on in turns; own labels come from the other folds alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warmstart.selection.closed_form import Labelled, Moments, moments, one_hot, solve


@dataclass(frozen=True)
class Config:
    votes: float = 0.3  # scale
    penalty: float = 1.0
    rounds: int = 1  # of learning from own labels
    share: float = 0.1  # of a row with an own label, relative to a labelled one
    heat: float = 5.0  # how sure own labels are


SPACE: dict[str, list[Any]] = {
    "votes": [0.1, 0.3, 1.0],
    "penalty": [0.3, 1.0, 3.0],
    "rounds": [1, 2],
    "share": [0.03, 0.1, 0.3],
    "heat": [3.0, 5.0, 10.0],
}


def cast(votes: Sequence[Tensor], classes: int) -> list[Tensor]:
    """Of each part [n, functions x classes that a function of the first part votes for], 1 where it does so."""
    told = [
        torch.cat([one_hot(column.clamp(min=0), classes) * (column >= 0)[:, None] for column in part.T], 1)
        for part in votes
    ]
    kept = told[0].any(0)
    return [part[:, kept] for part in told]


def beside(votes: Tensor, x: Tensor, cfg: Config) -> Tensor:
    """z [n, d]."""
    return torch.cat([cfg.votes * votes.to(x), x], 1)


def fit(z: Tensor, y: Tensor, others: Tensor, cfg: Config) -> Tensor:
    """w [d, classes] of labelled rows z, y and of rows that nobody labelled."""
    own = moments(z, y)
    w = solve(own, cfg.penalty)
    if not cfg.rounds:
        return w
    gram = others.T @ others
    for _ in range(cfg.rounds):
        said = (cfg.heat * others @ w).softmax(-1)
        both = Moments(own.gram + cfg.share * gram, own.cross + cfg.share * others.T @ said)
        w = solve(both, cfg.penalty)
    return w


def held_out(z: Tensor, labelled: Labelled, others: Tensor, cfg: Config) -> Tensor:
    """What models of the other folds say of each labelled row z: [n, classes]."""
    out = torch.zeros_like(labelled.y)
    for fold in range(int(labelled.fold.max()) + 1):
        there = labelled.fold == fold
        out[there] = z[there] @ fit(z[~there], labelled.y[~there], others, cfg)
    return out
