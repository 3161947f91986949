"""Rows of any form as one matrix of numbers: numbers standardised, categories one-hot, bags multi-hot.

Index 0 of a category is missing and gets no column. A column keeps its `LEVELS` most frequent
training values; all others, and unseen ones, share one column.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Columns, Tree

LEVELS = 100
OTHER = 1  # place of unseen and rare values; 0 is nothing


class Design(NamedTuple):
    """How rows become numbers, as fitted on training rows."""

    centre: Tensor  # [numeric]
    scale: Tensor  # [numeric]
    categorical: tuple[Tensor, ...]  # per column: index -> its place among the kept values
    bag: tuple[Tensor, ...]
    spread: float = 1.0  # root mean squared distance between two rows


def fit_design(x: Tree, columns: Columns) -> Design:
    """From training rows [N, ...]: a dict as models.tabular has it, or a plain tensor of numbers."""
    numeric, categorical, bag = _parts(x)
    _, levels, tags = columns if isinstance(x, dict) else Columns()
    design = Design(
        numeric.mean(0),
        scales(numeric),
        tuple(_places(categorical[:, i], size) for i, size in enumerate(levels)),
        tuple(_places(bag[:, i], size) for i, size in enumerate(tags)),
    )
    rows = dense(design, x)
    spread = float(((rows - rows.mean(0)) ** 2).sum(-1).mean() * 2) ** 0.5
    return design._replace(spread=spread or 1.0)


def scales(x: Tensor) -> Tensor:
    """Standard deviations of columns; 1 for a column that does not vary."""
    deviation = ((x - x.mean(0)) ** 2).mean(0).sqrt()  # unlike std, silent when there are no columns
    return torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation))


def dense(design: Design, x: Tree) -> Tensor:
    """[..., D]: numbers, one-hot categories, multi-hot bags."""
    numeric, categorical, bag = _parts(x)
    return torch.cat(
        [
            (numeric - design.centre) / design.scale,
            *(_counts(places, categorical[..., i, None]) for i, places in enumerate(design.categorical)),
            *(_counts(places, bag[..., i, :]) for i, places in enumerate(design.bag)),
        ],
        -1,
    )


def coded(design: Design, x: Tree) -> Tensor:
    """[..., F]: like `dense`, but a category stays one column of codes, as trees split it best."""
    numeric, categorical, bag = _parts(x)
    return torch.cat(
        [
            (numeric - design.centre) / design.scale,
            *(places[categorical[..., i, None]].to(numeric) for i, places in enumerate(design.categorical)),
            *(_counts(places, bag[..., i, :]) for i, places in enumerate(design.bag)),
        ],
        -1,
    )


def code_columns(design: Design) -> list[bool]:
    """Which columns of `coded` are codes."""
    tags = sum(_width(places) for places in design.bag)
    return [False] * len(design.centre) + [True] * len(design.categorical) + [False] * tags


def _parts(x: Tree) -> tuple[Tensor, Tensor, Tensor]:
    if isinstance(x, dict):
        return x["numeric"], x["categorical"], x["bag"]
    return x, x[..., :0].long(), x[..., :0, None].long()


def _places(index: Tensor, size: int) -> Tensor:
    """[size]: 0 for missing, OTHER for rare and unseen, the kept values from OTHER + 1 on."""
    seen = torch.bincount(index.flatten(), minlength=size)
    seen[:2] = 0
    kept = seen.argsort(descending=True, stable=True)[: min(LEVELS, int((seen > 0).sum()))].sort().values
    places = torch.full_like(seen, OTHER)
    places[0] = 0
    places[kept] = torch.arange(len(kept), device=seen.device) + OTHER + 1
    return places


def _counts(places: Tensor, index: Tensor) -> Tensor:
    """[..., l] indices -> [..., kept] how often each kept value is there."""
    counts = torch.zeros(*index.shape[:-1], 1 + _width(places), device=index.device)
    there = places[index]
    return counts.scatter_add_(-1, there, torch.ones(there.shape, device=index.device))[..., 1:]


def _width(places: Tensor) -> int:
    return int(places.max())
