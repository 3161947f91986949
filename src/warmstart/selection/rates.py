"""Learning rates of a stack: every model multiplies the rate by a number of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from warmstart.core import Likelihood, Model
from warmstart.maths.optim import Optimiser
from warmstart.selection.training import Drawn, Inner, Step, plain_step


def rates(trials: int) -> Tensor:
    """1 first, then from about a tenth to three, evenly in their logarithm.

    >>> rates(1).tolist(), len(rates(10))
    ([1.0], 10)
    """
    return torch.cat([torch.ones(1), torch.logspace(-1.05, 0.5, trials - 1)])


def scaled_step(model: Model, likelihood: Likelihood, optimiser: Optimiser) -> Step:
    """A plain step at the rate times `extra["rate"]`."""
    plain = plain_step(model, likelihood, optimiser)

    def step(lr: Tensor, inner: Inner, drawn: Drawn) -> tuple[Inner, Tensor]:
        return plain(lr * inner.extra["rate"], inner, drawn)

    return step
