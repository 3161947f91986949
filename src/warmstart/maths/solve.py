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
    size: Tensor  # of the residual, squared


def begin(target: Tree) -> Solving:
    return Solving(zeros_like(target), target, target, dot(target, target))


def advance(product: Product, at: Solving) -> Solving:
    """One step of conjugate gradient. A system already solved is left alone."""

    def along(a: Tree, b: Tree, factor: Tensor) -> Tree:
        return tree_map(lambda left, right: left + factor * right, a, b)

    def ratio(top: Tensor, bottom: Tensor) -> Tensor:
        return torch.where(bottom > 0, top / torch.where(bottom > 0, bottom, torch.ones_like(bottom)), 0.0 * top)

    image = product(at.direction)
    reach = ratio(at.size, dot(at.direction, image))
    residual = along(at.residual, image, -reach)
    size = dot(residual, residual)
    direction = along(residual, at.direction, ratio(size, at.size))
    return Solving(along(at.x, at.direction, reach), residual, direction, size)


def conjugate_gradient(product: Product, target: Tree, steps: int) -> Tree:
    """x with product(x) = target, for a positive definite product; exact after as many steps as
    there are distinct eigenvalues."""
    at = begin(target)
    for _ in range(steps):
        at = advance(product, at)
    return at.x
