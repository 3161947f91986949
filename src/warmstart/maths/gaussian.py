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


class Fit(NamedTuple):
    """The log density of rows at v = 0, or with v integrated out: constant - square_j / 2."""

    square: Tensor  # [..., j]: r_j' C^-1 r_j for the covariance C of the rows
    constant: Tensor  # [...]


class Evidence(NamedTuple):
    """What some rows say of v."""

    precision: Tensor  # [..., q, q], I before any row
    pull: Tensor  # [..., q, j]: sum of g r / noise
    fit: Fit  # at v = 0


class Posterior(NamedTuple):
    mean: Tensor  # [..., q, j]
    root: Tensor  # [..., q, q], lower: root' root is the covariance, which all columns share
    fit: Fit  # of all rows seen, v integrated out


def in_units(f: Tensor, log_sd: Tensor, factor: Tensor) -> Tensor:
    """R' f [..., d + k] for R = [diag sd, U]: if w ~ N(m, R R') then w . f = m . f + v . R' f with v ~ N(0, I)."""
    return torch.cat([f * log_sd.exp(), f @ factor], -1)


def nothing(q: int, j: int, like: Tensor) -> Evidence:
    """No row seen yet."""
    return Evidence(_eye(q, like), like.new_zeros(q, j), Fit(like.new_zeros(j), like.new_zeros(())))


def observe(seen: Evidence, g: Tensor, r: Tensor, weight: Tensor, noise: Tensor) -> Evidence:
    """Add rows g [..., n, q] with residuals r [..., n, j]: in any order, one by one or all at once."""
    scaled = g.mT * (weight / noise).unsqueeze(-2)
    new = _fit(r, weight, noise)
    fit = Fit(seen.fit.square + new.square, seen.fit.constant + new.constant)
    return Evidence(seen.precision + scaled @ g, seen.pull + scaled @ r, fit)


def posterior(seen: Evidence) -> Posterior:
    chol = torch.linalg.cholesky_ex(seen.precision).L
    white = torch.linalg.solve_triangular(chol, seen.pull, upper=False)
    root = torch.linalg.solve_triangular(chol, _eye(chol.shape[-1], chol), upper=False)
    left = (seen.fit.square - (white**2).sum(-2)).clamp(min=0)  # of two large numbers, as they were rounded
    fit = Fit(left, seen.fit.constant - _half_log_det(chol))
    return Posterior(root.mT @ white, root, fit)


def fit_of(g: Tensor, r: Tensor, weight: Tensor, noise: Tensor) -> Fit:
    """Of rows together, v integrated out: N(r_j; 0, g g' + noise), in the smaller of the two spaces."""
    if g.shape[-2] > g.shape[-1]:
        found = posterior(observe(nothing(g.shape[-1], r.shape[-1], r), g, r, weight, noise))
        # less rounded than the difference of two large sums that the posterior goes by, which has no row at hand
        square = _fit(r - g @ found.mean, weight, noise).square + (found.mean**2).sum(-2)
        return Fit(square, found.fit.constant)
    # log det (I_q + g' g / noise) = log det (I_n + g g' / noise), and likewise for the quadratic form
    scale = (weight.sqrt() / noise.sqrt()).unsqueeze(-1)  # apart: the root of 0 / noise has no derivative
    scaled = g * scale
    chol = torch.linalg.cholesky_ex(_eye(g.shape[-2], g) + scaled @ scaled.mT).L
    white = torch.linalg.solve_triangular(chol, r * scale, upper=False)
    return Fit((white**2).sum(-2), _fit(r, weight, noise).constant - _half_log_det(chol))


def log_normal(fit: Fit) -> Tensor:
    """Log density of the rows, [..., j]."""
    return fit.constant.unsqueeze(-1) - 0.5 * fit.square


def log_student(fit: Fit, rows: Tensor, dof: Tensor) -> Tensor:
    """Log density [...] of all columns of so many rows where v and e are multiples of one s, dof / s^2 ~ chi2(dof)."""
    half, count = 0.5 * dof, rows * fit.square.shape[-1]
    after = half + 0.5 * count
    lost = after * torch.log1p(fit.square.sum(-1) / dof) + 0.5 * count * torch.log(half)
    return fit.constant * fit.square.shape[-1] + torch.lgamma(after) - torch.lgamma(half) - lost


def _fit(r: Tensor, weight: Tensor, noise: Tensor) -> Fit:
    square = (weight.unsqueeze(-1) * (r**2 / noise)).sum(-2)
    return Fit(square, -0.5 * (weight * torch.log(2 * math.pi * noise)).sum(-1))


def _half_log_det(chol: Tensor) -> Tensor:
    return torch.log(torch.diagonal(chol, dim1=-2, dim2=-1)).sum(-1)


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
