"""What a posterior expects of some rows, E_q log p(rows | params), as a mean over draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from warmstart.core import Batch, Likelihood, Model, Tree, task_log_likelihood
from warmstart.core.trees import unpack
from warmstart.maths.mean_field import Gaussian, draw


class Expectation(NamedTuple):
    value: Callable[[Gaussian, Batch, Tree], Tensor]  # q, rows, noise with an axis of draws
    noise: Callable[..., Tree]  # leading axes, the last of them that of draws -> shapes


def expectation(model: Model, likelihood: Likelihood, noise: float) -> Expectation:
    """`noise` is the standard deviation of a squared likelihood's row."""
    log_likelihood = task_log_likelihood(model, likelihood, noise)

    def value(q: Gaussian, batch: Batch, drawn: Tree) -> Tensor:
        each: Tensor = vmap(lambda e: log_likelihood(unpack(draw(q, e), model.params), batch))(drawn)
        return each.mean()

    return Expectation(value, lambda *lead: torch.Size((*lead, size(model))))


def size(model: Model) -> int:
    """How many parameters there are."""
    return sum(value.numel() for value in model.params.values())
