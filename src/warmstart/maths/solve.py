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
    there are distinct eigenvalues."""
    at = begin(target, precondition)
    for _ in range(steps):
        at = advance(product, at, precondition)
    return at.x


def inverse_of_rows(rows: Tensor, weight: Tensor, pull: float) -> Tensor:
    """(pull I + sum_i weight_i r_i r_i')^-1, with r_i the rows [n, d] and a one behind each: [d + 1, d + 1]."""
    beside = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    eye = torch.eye(beside.shape[1], dtype=rows.dtype, device=rows.device)
    lower = torch.linalg.cholesky_ex(pull * eye + (beside * weight[:, None]).mT @ beside).L
    root = torch.linalg.solve_triangular(lower, eye, upper=False)
    inverse: Tensor = root.mT @ root
    return inverse
