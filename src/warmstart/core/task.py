"""Batch and Task: what every method sees, for one task or a stack of tasks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core.errors import InputError
from warmstart.core.trees import Tree, leaves


class Batch(NamedTuple):
    """The rows of one task, or of a stack of tasks."""

    x: Tree  # tensor or dict of tensors: [*t, n, ...]
    y: Tensor  # [*t, n]; class indices for classification
    w: Tensor  # [*t, n] weight of a row in the loss
    mask: Tensor  # [*t, n] 1 = a row, 0 = padding


class Task(NamedTuple):
    """What a task shows us and what we are judged on."""

    support: Batch
    query: Batch
    descriptor: Tree  # what is known about the task itself: [*t, p], p = 0 when nothing
    key: Tensor  # [*t] integer identity


def make_batch(x: Tree, y: Tensor, w: Tensor | None = None, mask: Tensor | None = None) -> Batch:
    """A batch whose rows all count, unless told otherwise.

    >>> make_batch(torch.zeros(3, 2), torch.zeros(3)).mask
    tensor([1., 1., 1.])
    """
    for leaf in leaves(x):
        if leaf.shape[: y.dim()] != y.shape:
            raise InputError(
                f"x with the leading axes {list(y.shape)} of y", f"{list(leaf.shape)}", "pass one label per row"
            )
    for part in (w, mask):
        if part is not None and part.shape != y.shape:
            raise InputError(f"w and mask of shape {list(y.shape)}, as y", f"{list(part.shape)}", "pass one per row")
    ones = torch.ones(y.shape, device=y.device, dtype=y.dtype if y.is_floating_point() else torch.get_default_dtype())
    return Batch(x, y, ones if w is None else w, ones if mask is None else mask)


def make_task(support: Batch, query: Batch, descriptor: Tree | None = None, key: Tensor | None = None) -> Task:
    """A task, or a stack of them when the batches carry a task axis."""
    stacked = support.y.shape[:-1]
    device = support.y.device
    nothing = torch.zeros(*stacked, 0, device=device)
    identity = torch.zeros(stacked, dtype=torch.long, device=device)
    return Task(support, query, nothing if descriptor is None else descriptor, identity if key is None else key)
