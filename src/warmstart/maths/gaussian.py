"""Bayesian linear regression in closed form, for one task or a stack of them.

    v ~ N(0, I),    r_j = g v_j + e,    e ~ N(0, noise)    for each column j of residuals r

What the rows say of v adds up, so it is kept as sums: a precision and a pull. The precision is at
least the identity, so its Cholesky factor exists without jitter. A row of weight c counts c times;
weight 0 is padding.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Evidence(NamedTuple):
    """What some rows say of v."""

    precision: Tensor  # [..., q, q], I before any row
    pull: Tensor  # [..., q, j]: sum of g r / noise
    fit: Tensor  # [..., j]: log likelihood of the rows at v = 0


class Posterior(NamedTuple):
    mean: Tensor  # [..., q, j]
    root: Tensor  # [..., q, q], lower: root' root is the covariance, which all columns share
    evidence: Tensor  # [..., j]: log density of all rows seen, v integrated out


def in_units(f: Tensor, log_sd: Tensor, factor: Tensor) -> Tensor:
    """R' f [..., d + k] for R = [diag sd, U]: if w ~ N(m, R R') then w . f = m . f + v . R' f with v ~ N(0, I)."""
    return torch.cat([f * log_sd.exp(), f @ factor], -1)


def nothing(q: int, j: int, like: Tensor) -> Evidence:
    """No row seen yet."""
    return Evidence(_eye(q, like), like.new_zeros(q, j), like.new_zeros(j))


def observe(seen: Evidence, g: Tensor, r: Tensor, weight: Tensor, noise: Tensor) -> Evidence:
    """Add rows g [..., n, q] with residuals r [..., n, j]: in any order, one by one or all at once."""
    scaled = g.mT * (weight / noise).unsqueeze(-2)
    return Evidence(seen.precision + scaled @ g, seen.pull + scaled @ r, seen.fit + _fit(r, weight, noise))


def posterior(seen: Evidence) -> Posterior:
    chol = torch.linalg.cholesky_ex(seen.precision).L
    white = torch.linalg.solve_triangular(chol, seen.pull, upper=False)
    root = torch.linalg.solve_triangular(chol, _eye(chol.shape[-1], chol), upper=False)
    gain = 0.5 * (white**2).sum(-2) - _half_log_det(chol).unsqueeze(-1)
    return Posterior(root.mT @ white, root, seen.fit + gain)


def log_evidence(g: Tensor, r: Tensor, weight: Tensor, noise: Tensor) -> Tensor:
    """Log density of the rows, [..., j]: log N(r_j; 0, g g' + noise), in the smaller of the two spaces."""
    if g.shape[-2] > g.shape[-1]:
        empty = nothing(g.shape[-1], r.shape[-1], r)
        return posterior(observe(empty, g, r, weight, noise)).evidence
    # log det (I_q + g' g / noise) = log det (I_n + g g' / noise), and likewise for the quadratic form
    scale = (weight.sqrt() / noise.sqrt()).unsqueeze(-1)  # apart: the root of 0 / noise has no derivative
    scaled = g * scale
    chol = torch.linalg.cholesky_ex(_eye(g.shape[-2], g) + scaled @ scaled.mT).L
    white = torch.linalg.solve_triangular(chol, r * scale, upper=False)
    constant = _fit(torch.zeros_like(r), weight, noise) - _half_log_det(chol).unsqueeze(-1)
    found: Tensor = constant - 0.5 * (white**2).sum(-2)
    return found


def _fit(r: Tensor, weight: Tensor, noise: Tensor) -> Tensor:
    return -0.5 * (weight.unsqueeze(-1) * (r**2 / noise + torch.log(2 * math.pi * noise))).sum(-2)


def _half_log_det(chol: Tensor) -> Tensor:
    return torch.log(torch.diagonal(chol, dim1=-2, dim2=-1)).sum(-1)


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
