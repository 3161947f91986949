"""The curvature of a task's negative log likelihood, and the Gaussian whose precision it is.

    H = prior I + sum_i w_i J_i' A_i J_i = prior (I + C' C)

J_i is the Jacobian of row i's outputs in the d parameters and A_i the second derivative of its negative
log likelihood in the outputs. This is the generalised Gauss-Newton matrix: the Hessian where outputs are
linear in the parameters, and never below the prior's precision where they are not, so it always has an
inverse. C has a line for each row and output. A task has few rows, so H itself is not formed: its log
determinant comes from the smaller of C C' and C' C, and draws come from the singular vectors of C.
`maths.kronecker` is for tasks with many rows and outputs, where C is large.

For one task; callers vmap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp, vmap

from warmstart.core import Batch, Likelihood, Model, Params, Tree
from warmstart.core.trees import flatten, leaves, unflatten

LEAST = 1e-12  # of what a root is taken of: below, its derivative would not be finite

Root = Callable[[Params, Params, Batch], Tensor]


class Precision(NamedTuple):
    """A form of H / prior: what is kept of it, and what is made of that."""

    of: Callable[[Params, Params, Batch], Tree]  # slow, phi, rows -> what is kept
    log_det: Callable[[Tree], Tensor]  # log det (H / prior): 0 without rows
    factor: Callable[[Tree], Tree]  # what draws need; of one size however many rows there are
    draw: Callable[[Params, Tree, Tree], Params]  # phi, factor, noise [s, ...] -> phi + H^-1/2 noise


def full(root: Root, prior: float, rank: int) -> Precision:
    """All of C. Draws know its `rank` strongest directions and have the prior's spread along the others."""

    def of(slow: Params, phi: Params, batch: Batch) -> Tensor:
        return root(slow, phi, batch) / math.sqrt(prior)

    def log_det(c: Tensor) -> Tensor:
        lines, d = c.shape
        gram = c @ c.mT if lines < d else c.mT @ c
        eye = torch.eye(len(gram), dtype=c.dtype, device=c.device)
        chol = torch.linalg.cholesky_ex(eye + gram).L
        return 2 * torch.log(torch.diagonal(chol, dim1=-2, dim2=-1)).sum(-1)

    def factor(c: Tensor) -> tuple[Tensor, Tensor]:
        """Directions v [k, d] and how much the rows narrow each, 1 - 1 / sqrt(1 + s^2)."""
        _, s, v = torch.linalg.svd(torch.nan_to_num(c, 0.0, 0.0, 0.0), full_matrices=False)
        kept = min(rank, c.shape[-1])
        more = max(kept - len(s), 0)
        narrowed = 1 - torch.rsqrt(1 + s[:kept] ** 2)
        return torch.cat([v[:kept], v.new_zeros(more, v.shape[-1])]), torch.cat([narrowed, s.new_zeros(more)])

    def draw(phi: Params, factor: tuple[Tensor, Tensor], noise: Tree) -> Params:
        v, narrowed = factor
        e = _flat(noise, 1)
        return _beside(phi, (e - ((e @ v.mT) * narrowed) @ v) / math.sqrt(prior))

    return Precision(of, log_det, factor, draw)


def diagonal(root: Root, prior: float) -> Precision:
    """The diagonal of I + C' C alone: parameters are independent."""

    def of(slow: Params, phi: Params, batch: Batch) -> Tensor:
        return 1 + (root(slow, phi, batch) ** 2).sum(0) / prior

    def draw(phi: Params, factor: Tensor, noise: Tree) -> Params:
        return _beside(phi, _flat(noise, 1) * factor)

    return Precision(of, lambda h: torch.log(h).sum(-1), lambda h: torch.rsqrt(prior * h), draw)


def gauss_newton_root(model: Model, likelihood: Likelihood, noise: float = 0.5**0.5) -> Root:
    """(slow, phi, rows) -> R [rows x outputs, d] with R' R = sum_i w_i J_i' A_i J_i in the fast parameters phi.

    `noise` is the standard deviation of a squared likelihood's rows. A task without rows has one line of zeros.
    """

    def root(slow: Params, phi: Params, batch: Batch) -> Tensor:
        if batch.y.shape[-1] == 0:
            return torch.zeros_like(_flat(phi, 0)).unsqueeze(0)
        out, lines = jacobian(model, slow, phi, batch.x)
        half = outputs_root(likelihood, out, batch.w * batch.mask, noise)
        return (half.mT @ lines).flatten(0, 1)

    return root


def gauss_newton_product(model: Model, likelihood: Likelihood) -> Callable[[Params, Params, Batch, Params], Params]:
    """(slow, phi, rows, v) -> G v, of the weighted mean loss of the rows in phi; no Jacobian is formed.

    Only reverse derivatives are taken: J v is the derivative of u -> J' u along v.
    """

    def product(slow: Params, phi: Params, rows: Batch, v: Params) -> Params:
        found: Any = vjp(lambda own: model.apply({**slow, **own}, rows.x), phi)
        out, pull = found
        (moved,) = vjp(lambda u: pull(u)[0], torch.zeros_like(out))[1](v)
        weight = rows.w * rows.mask
        share = weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
        bent = (likelihood.curvature(out) @ moved.unsqueeze(-1)).squeeze(-1) * share[:, None]
        image: Params = pull(bent)[0]
        return image

    return product


def jacobian(model: Model, slow: Params, phi: Params, x: Tree) -> tuple[Tensor, Tensor]:
    """Outputs [n, out] and their derivatives [n, out, d] in the fast parameters; rows may see each other."""
    found: Any = vjp(lambda own: model.apply({**slow, **own}, x), phi)
    out, pull = found
    each = torch.eye(out.numel(), dtype=out.dtype, device=out.device).reshape(-1, *out.shape)
    return out, _flat(vmap(pull)(each)[0], 1).reshape(*out.shape, -1)


def outputs_root(likelihood: Likelihood, out: Tensor, weight: Tensor, noise: float) -> Tensor:
    """r [n, out, out] with r r' = the curvature of a row's weighted negative log likelihood in its outputs."""
    scale = weight.sqrt() / (math.sqrt(2) * noise if likelihood.name == "squared" else 1.0)
    return _half(likelihood, out) * scale[:, None, None]


def _half(likelihood: Likelihood, out: Tensor) -> Tensor:
    """The same of a row's loss, for a softmax or a single output."""
    if likelihood.name != "multiclass":
        return likelihood.curvature(out).clamp(min=LEAST).sqrt()
    p = likelihood.mean(out)
    s = p.clamp(min=LEAST).sqrt()
    # (diag s - p s')(diag s - s p') = diag p - p p', since s' s = 1
    return torch.diag_embed(s) - p.unsqueeze(-1) * s.unsqueeze(-2)


def _flat(tree: Tree, lead: int) -> Tensor:
    """The leaves as one vector, behind `lead` leading axes."""
    return torch.cat([leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves(tree)], -1)


def _beside(phi: Params, moved: Tensor) -> Params:
    """phi + moved [s, d], as parameters with a sample axis."""
    parts, structure = flatten(phi)
    pieces = torch.split_with_sizes(moved, [part.numel() for part in parts], -1)
    beside = [part + piece.reshape(-1, *part.shape) for part, piece in zip(parts, pieces, strict=True)]
    drawn: Params = unflatten(beside, structure)
    return drawn
