"""Variational inference on one task: a mean-field Gaussian q descends the negative evidence bound.

    kl_weight KL(q || anchor) - E_q log p(rows | params),    params = mean + sd * noise

The anchor is the prior, or the posterior of rows seen before. The expectation is a mean over draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from warmstart.core import Batch, Params, Tree
from warmstart.maths.mean_field import Gaussian, bounded, draw, kl
from warmstart.maths.optim import Optimiser


class Inner(NamedTuple):
    q: Gaussian
    opt: Any


class Inference(NamedTuple):
    bound: Callable[[Gaussian, Gaussian, Batch, Tree], Tensor]  # q, anchor, rows, noise -> negative evidence bound
    start: Callable[[Gaussian], Inner]
    step: Callable[[Gaussian, Inner, Batch, Tree, Any], Inner]  # anchor, Inner, rows, noise [s, ...], rate


def inference(
    log_likelihood: Callable[[Params, Batch], Tensor], optimiser: Optimiser, kl_weight: float = 1.0
) -> Inference:
    """Noise leads with an axis of draws."""

    def bound(q: Gaussian, anchor: Gaussian, batch: Batch, noise: Tree) -> Tensor:
        fits: Tensor = vmap(lambda drawn: log_likelihood(draw(q, drawn), batch))(noise)
        return kl_weight * kl(q, anchor) - fits.mean()

    def start(q: Gaussian) -> Inner:
        return Inner(q, optimiser.init(q))

    def step(anchor: Gaussian, inner: Inner, batch: Batch, noise: Tree, rate: Any) -> Inner:
        slope: Gaussian = grad(bound)(inner.q, anchor, batch, noise)
        q, opt = optimiser.update(inner.q, slope, inner.opt, rate)
        return Inner(bounded(q), opt)

    return Inference(bound, start, step)


def shapes(params: Params, *lead: int) -> Tree:
    """What a method asks of the engine: a standard normal for every parameter, with leading axes."""
    return {name: torch.Size((*lead, *value.shape)) for name, value in params.items()}
