"""Variational inference on one task: a mean-field Gaussian q descends the negative evidence bound.

    kl_weight KL(q || anchor) - E_q log p(rows | params)

The anchor is the prior, or the posterior of rows seen before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from warmstart.core import Batch, Tree
from warmstart.core.trees import tree_map
from warmstart.maths.expectation import Expectation
from warmstart.maths.mean_field import Gaussian, bounded, kl
from warmstart.maths.optim import Optimiser


class Inner(NamedTuple):
    q: Gaussian
    opt: Any


class Inference(NamedTuple):
    fit: Callable[[Gaussian, Batch, Tree], Tensor]  # q, rows, noise -> E_q log p(rows | params)
    bound: Callable[[Gaussian, Gaussian, Batch, Tree], Tensor]  # q, anchor, rows, noise -> negative evidence bound
    start: Callable[[Gaussian], Inner]
    step: Callable[[Gaussian, Inner, Batch, Tree, Any], Inner]  # anchor, Inner, rows, noise [s, ...], rate
    noise: Callable[..., Tree]  # leading axes, the last of them that of draws -> shapes
    # q, anchor, rows that q knows, rows, noise -> E log p(rows | params) under all that is known of the posterior
    expect: Callable[[Gaussian, Gaussian, Batch, Batch, Tree], Tensor]


def inference(expected: Expectation, optimiser: Optimiser, kl_weight: float = 1.0, per_row: bool = False) -> Inference:
    """With `per_row` a step is along the bound divided by the weight of the rows."""

    def bound(q: Gaussian, anchor: Gaussian, batch: Batch, noise: Tree) -> Tensor:
        return kl_weight * kl(q, anchor) - expected.value(q, batch, noise)

    def start(q: Gaussian) -> Inner:
        return Inner(q, optimiser.init(q))

    def step(anchor: Gaussian, inner: Inner, batch: Batch, noise: Tree, rate: Any) -> Inner:
        slope: Gaussian = grad(bound)(inner.q, anchor, batch, noise)
        if per_row:
            weight = (batch.w * batch.mask).sum()
            slope = tree_map(lambda leaf: leaf / torch.where(weight > 0, weight, 1.0), slope)
        q, opt = optimiser.update(inner.q, slope, inner.opt, rate)
        return Inner(bounded(q), opt)

    def expect(q: Gaussian, anchor: Gaussian, seen: Batch, batch: Batch, noise: Tree) -> Tensor:
        return expected.value(q, batch, noise)

    return Inference(expected.value, bound, start, step, expected.noise, expect)
