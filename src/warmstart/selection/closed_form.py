"""f_t(S) without a training loop: linear models of every set of sources, each one solve.

    of each source   H_j = sum x x^T,   b_j = sum x y^T        over its rows, y one-hot
    of a set         w_S = (lambda I + sum_{j in S} H_j + c H_t)^-1 (sum_{j in S} b_j + c b_t)

H_t and b_t are the target's labelled rows, of which there are few, so they are trained on and judged on in turns: f
of a set is measured on each fold with w_S from the others. The last column of x is 1 and is not penalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.engine.meta import chunks
from warmstart.engine.noise import generator

CHUNK = 20  # sets at once


@dataclass(frozen=True)
class Config:
    weight: float = 10.0  # c, of a labelled row of the target relative to a row of a source
    penalty: float = 1.0  # lambda


SPACE: dict[str, list[Any]] = {"weight": [1.0, 3.0, 10.0, 30.0], "penalty": [0.1, 0.3, 1.0, 3.0, 10.0]}


class Moments(NamedTuple):
    """What a linear model needs of rows; of several tasks, with an axis in front."""

    gram: Tensor  # H [*k, d, d]
    cross: Tensor  # b [*k, d, classes]


class Labelled(NamedTuple):
    """The target's labelled rows, and the fold of each."""

    x: Tensor  # [n, d]
    y: Tensor  # [n, classes] one-hot
    fold: Tensor  # [n]
    others: Moments  # [folds, ...] of the rows outside each fold


def moments(x: Tensor, y: Tensor) -> Moments:
    return Moments(x.T @ x, x.T @ y)


def of_votes(x: Tensor, votes: Tensor, classes: int) -> Moments:
    """[k, ...]: a source is a labelling function, its rows are those it votes on; -1 abstains."""
    found = []
    for column in votes.T:
        own = column >= 0
        found.append(moments(x[own], one_hot(column[own], classes).to(x)))
    return Moments(*(torch.stack(parts) for parts in zip(*found, strict=True)))


def one_hot(labels: Tensor, classes: int) -> Tensor:
    return torch.eye(classes, device=labels.device)[labels]


def label(x: Tensor, labels: Tensor, classes: int, folds: int = 5, seed: int = 0) -> Labelled:
    """Folds with nearly the same share of every class."""
    if not 2 <= folds <= len(labels):
        raise InputError(f"2 to {len(labels)} folds", f"{folds}", "pass another number")
    order = torch.randperm(len(labels), generator=generator(seed, 43))
    order = order[labels[order].argsort(stable=True)]
    fold = torch.empty(len(labels), dtype=torch.long)
    fold[order] = torch.arange(len(labels)) % folds
    y = one_hot(labels, classes).to(x)
    others = [moments(x[fold != i], y[fold != i]) for i in range(folds)]
    return Labelled(x, y, fold, Moments(*(torch.stack(parts) for parts in zip(*others, strict=True))))


def total(sources: Moments, members: Tensor) -> Moments:
    """Of sets [m, k]: [m, ...]."""
    gram, cross = (torch.einsum("mk,kf->mf", members.to(part), part.flatten(1)) for part in sources)
    return Moments(gram.reshape(-1, *sources.gram.shape[1:]), cross.reshape(-1, *sources.cross.shape[1:]))


def solve(both: Moments, penalty: float) -> Tensor:
    """w [*m, d, classes]."""
    ridge = torch.full(both.gram.shape[-1:], penalty).to(both.gram)
    ridge[-1] = 1e-6 * max(1.0, penalty)
    gram = both.gram.clone()
    gram.diagonal(dim1=-2, dim2=-1).add_(ridge)
    factor = torch.linalg.cholesky(gram)
    found: Tensor = torch.cholesky_solve(both.cross, factor)
    return found


def held_out(sets: Moments, labelled: Labelled, cfg: Config = Config()) -> Tensor:
    """What models of sets [m, ...] and of the other folds say of each labelled row: [m, n, classes]."""
    out = torch.zeros(len(sets.gram), *labelled.y.shape).to(labelled.y)
    for fold, own in enumerate(map(Moments, *labelled.others)):
        there = labelled.fold == fold
        out[:, there] = labelled.x[there] @ solve(_with(sets, own, cfg.weight), cfg.penalty)
    return out


def fit(sets: Moments, labelled: Labelled, cfg: Config = Config()) -> Tensor:
    """w [*m, d, classes] of sets and all labelled rows."""
    return solve(_with(sets, moments(labelled.x, labelled.y), cfg.weight), cfg.penalty)


def outputs(sources: Moments, members: Tensor, labelled: Labelled, cfg: Config = Config()) -> Tensor:
    """`held_out` of any number of sets of sources [m, k], a few at a time."""
    parts = [held_out(total(sources, members[part]), labelled, cfg) for part in chunks(len(members), CHUNK)]
    return torch.cat(parts)


def squared_error(out: Tensor, y: Tensor) -> Tensor:
    """f of outputs [*m, n, classes] against one-hot labels: the models' own loss, averaged over rows."""
    return (out - y).square().sum(-1).mean(-1)


def _with(sets: Moments, own: Moments, weight: float) -> Moments:
    return Moments(*(part + weight * more for part, more in zip(sets, own, strict=True)))
