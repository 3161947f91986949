"""Linear systems known only by their products with a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core.trees import Tree, dot, tree_map, zeros_like

Product = Callable[[Tree], Tree]


class Solving(NamedTuple):
    """How far conjugate gradient has come."""

    x: Tree
    residual: Tree
    direction: Tree
    size: Tensor  # of the residual, squared, as the preconditioner measures it


def _itself(v: Tree) -> Tree:
    return v


def begin(target: Tree, precondition: Product = _itself) -> Solving:
    first = precondition(target)
    return Solving(zeros_like(target), target, first, dot(target, first))


def advance(product: Product, at: Solving, precondition: Product = _itself) -> Solving:
    """One step of conjugate gradient. A system already solved is left alone.

    Preconditioned by what is near the inverse of the product and, as that is, symmetric and positive definite.
    """

    def along(a: Tree, b: Tree, factor: Tensor) -> Tree:
        return tree_map(lambda left, right: left + factor * right, a, b)

    def ratio(top: Tensor, bottom: Tensor) -> Tensor:
        return torch.where(bottom > 0, top / torch.where(bottom > 0, bottom, torch.ones_like(bottom)), 0.0 * top)

    image = product(at.direction)
    reach = ratio(at.size, dot(at.direction, image))
    residual = along(at.residual, image, -reach)
    towards = precondition(residual)
    size = dot(residual, towards)
    direction = along(towards, at.direction, ratio(size, at.size))
    return Solving(along(at.x, at.direction, reach), residual, direction, size)


def conjugate_gradient(product: Product, target: Tree, steps: int, precondition: Product = _itself) -> Tree:
    """x with product(x) = target, for a positive definite product; exact after as many steps as
    there are distinct eigenvalues, of the preconditioned one where it is."""
    at = begin(target, precondition)
    for _ in range(steps):
        at = advance(product, at, precondition)
    return at.x


class Inverse(NamedTuple):
    """M^-1 = shift I + sign lines' lines, of M = pull I + sum_i weight_i r_i r_i'."""

    lines: Tensor  # [k, d], as few as there are rows or numbers in one
    shift: Tensor
    sign: Tensor


ROUNDING = 100  # times that of a number: beside very long rows the pull counts as no less, so that M can be factorised


def inverse_of_rows(rows: Tensor, weight: Tensor, pull: float) -> Inverse:
    """For rows [n, d], each with a one behind it."""
    beside = torch.cat([rows, torch.ones_like(rows[:, :1])], 1) * weight.sqrt()[:, None]
    few = len(beside) < beside.shape[1]
    gram = beside @ beside.mT if few else beside.mT @ beside
    eye = torch.eye(len(gram), dtype=rows.dtype, device=rows.device)
    least = (ROUNDING * torch.finfo(rows.dtype).eps * torch.trace(gram)).clamp(min=pull)
    lower = torch.linalg.cholesky_ex(least * eye + gram).L
    one = torch.ones_like(least)
    if few:  # Woodbury
        lines = torch.linalg.solve_triangular(lower, beside, upper=False)
        return Inverse(lines * torch.rsqrt(least), 1 / least, -one)
    return Inverse(torch.linalg.solve_triangular(lower, eye, upper=False), 0 * one, one)


def times_inverse(inverse: Inverse, v: Tensor) -> Tensor:
    """On every line of v [k, d + 1]."""
    return inverse.shift * v + inverse.sign * ((v @ inverse.lines.mT) @ inverse.lines)
