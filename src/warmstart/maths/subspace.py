"""Rows of many numbers as a mean and coordinates along their principal directions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Subspace(NamedTuple):
    mean: Tensor  # [D]
    directions: Tensor  # [r, D] orthonormal


def subspace(rows: Tensor, rank: int) -> tuple[Subspace, Tensor]:
    """The directions along which rows [n, D] vary most, at most `rank`, and the rows' coordinates [n, r].

    With r = min(n - 1, D) nothing is lost.
    """
    mean = rows.mean(0)
    _, size, directions = torch.linalg.svd(rows - mean, full_matrices=False)
    kept = max(1, min(rank, int((size > 1e-9 * size[0].clamp(min=1e-30)).sum())))
    space = Subspace(mean, directions[:kept].contiguous())
    return space, (rows - mean) @ space.directions.mT


def project(space: Subspace, coordinates: Tensor) -> Tensor:
    """The rows [q, D] that have these coordinates."""
    return space.mean + coordinates @ space.directions
