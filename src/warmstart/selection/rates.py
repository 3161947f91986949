"""Learning rates of a stack: every model multiplies the rate by a number of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from warmstart.core import Likelihood, Model
from warmstart.engine.noise import generator
from warmstart.maths.optim import Optimiser
from warmstart.selection.training import Drawn, Inner, Step, plain_step


def rates(trials: int) -> Tensor:
    """1 first, then from about a tenth to three, evenly in their logarithm.

    >>> rates(1).tolist(), len(rates(10))
    ([1.0], 10)
    """
    return torch.cat([torch.ones(1), torch.logspace(-1.05, 0.5, trials - 1)])


def shuffled(trials: int, seed: int) -> Tensor:
    """The same in random order, for trials that also differ by a setting of the method's own."""
    return rates(trials)[torch.randperm(trials, generator=generator(seed, 37))]


def scaled(
    build: Callable[[Model, Likelihood, Optimiser], Step],
) -> Callable[[Model, Likelihood, Optimiser], Step]:
    """A method's step at the rate times `extra["rate"]`."""

    def scaled_step(model: Model, likelihood: Likelihood, optimiser: Optimiser) -> Step:
        inner_step = build(model, likelihood, optimiser)

        def step(lr: Tensor, inner: Inner, drawn: Drawn) -> tuple[Inner, Tensor]:
            return inner_step(lr * inner.extra["rate"], inner, drawn)

        return step

    return scaled_step


scaled_step = scaled(plain_step)
