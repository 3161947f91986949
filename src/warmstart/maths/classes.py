"""Class labels as numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def of_class(y: Tensor, classes: int) -> Tensor:
    """[*t, n, classes] whether a row is of a class; F.one_hot fails under vmap."""
    return y.long().unsqueeze(-1) == torch.arange(classes, device=y.device)


def corners(classes: int, like: Tensor) -> Tensor:
    """[classes, classes - 1]: the corners of a regular simplex around 0, with a mean square of 1 along every axis."""
    i = torch.arange(classes, device=like.device, dtype=like.dtype).unsqueeze(1)
    j = i[1:].squeeze(1)
    return ((i < j).to(like.dtype) - j * (i == j)) * (classes / (j * (j + 1))).sqrt()
