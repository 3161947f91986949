"""Stein variational gradient descent: particles that climb a log density and keep apart.

    phi(x_i) = 1/m sum_j [ k(x_j, x_i) grad log p(x_j) + grad_{x_j} k(x_j, x_i) ]
    k(x, z) = exp(-||x - z||^2 / h),    grad_x k(x, z) = -2 (x - z) / h k(x, z)

The bandwidth h is given, or the median over pairs of ||x_i - x_j||^2, divided by log(m + 1). The
median is held constant in the derivative: it is a choice of kernel, not a part of the density.

Liu and Wang, 2016.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from warmstart.core.trees import Tree, flatten, unflatten

LEAST = 1e-8  # bandwidth: particles that coincide must not divide by zero


def stein(particles: Tree, scores: Tree, bandwidth: float = 0.0) -> Tree:
    """phi for every particle, a direction of ascent. Trees lead with a particle axis; scores are grad log p at each.

    A bandwidth of 0 stands for the median's.
    """
    parts, structure = flatten(particles)
    count = len(parts[0])
    x, slopes = _rows(parts), _rows(flatten(scores)[0])
    x = x - x.mean(0)  # only differences count, and these lose fewer digits near zero
    apart = squared_distances(x)
    h = bandwidth or median_bandwidth(apart)
    near = torch.exp(-apart / h)
    phi = (near @ slopes + repulsion(x, near, h)) / count
    pieces = torch.split_with_sizes(phi, [part[0].numel() for part in parts], 1)
    return unflatten([piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=True)], structure)


def squared_distances(x: Tensor) -> Tensor:
    """[m, m] of rows [m, d], by inner products: nothing of size m m d is made."""
    square = (x * x).sum(1)
    return square.unsqueeze(1) + square.unsqueeze(0) - 2 * (x @ x.mT)


def median_bandwidth(apart: Tensor) -> Tensor:
    """median over pairs of ||x_i - x_j||^2 / log(m + 1), constant to derivatives; 1 for a particle alone."""
    count = len(apart)
    if count == 1:
        return torch.ones_like(apart[0, 0])
    first, second = torch.triu_indices(count, count, 1, device=apart.device)
    pairs = apart.detach()[first, second].sort().values
    middle = (pairs[(len(pairs) - 1) // 2] + pairs[len(pairs) // 2]) / 2
    return (middle / math.log(count + 1)).clamp(min=LEAST)


def repulsion(x: Tensor, near: Tensor, h: float | Tensor) -> Tensor:
    """sum_j grad_{x_j} k(x_j, x_i) = 2 / h sum_j (x_i - x_j) k(x_j, x_i), of rows [m, d] and kernel values [m, m]."""
    return 2 / h * (x * near.sum(1, keepdim=True) - near @ x)


def _rows(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(len(part), -1) for part in parts], 1)
