"""Linear systems known only by their products with a tree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from warmstart.core.trees import Tree, dot, tree_map, zeros_like


def conjugate_gradient(product: Callable[[Tree], Tree], target: Tree, steps: int) -> Tree:
    """x with product(x) = target, for a positive definite product; exact after as many steps as
    there are distinct eigenvalues. A system already solved is left alone."""

    def along(a: Tree, b: Tree, factor: Tensor) -> Tree:
        return tree_map(lambda left, right: left + factor * right, a, b)

    def ratio(top: Tensor, bottom: Tensor) -> Tensor:
        return torch.where(bottom > 0, top / torch.where(bottom > 0, bottom, torch.ones_like(bottom)), 0.0 * top)

    x, residual, direction = zeros_like(target), target, target
    size = dot(residual, residual)
    for _ in range(steps):
        image = product(direction)
        reach = ratio(size, dot(direction, image))
        x, residual = along(x, direction, reach), along(residual, image, -reach)
        new = dot(residual, residual)
        direction, size = along(residual, direction, ratio(new, size)), new
    return x
