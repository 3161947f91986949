"""Gradient descent on one task with a rate of the task's own: what MeLU and the PAML family share.

    phi_t <- phi_t - s_t rate_t grad L(phi_t; support_t) - (1 - s_t) (phi_t - theta),      s_t = n_t / (n_t + shrink)

with n_t the weight of the support rows, so that few of them lead not far from where all tasks start.

Only fast parameters are adapted. What slow ones make of the rows does not change within a task, so a stack of
tasks is encoded in one go, and differentiated in one go too: tables of embeddings get one gradient, not one per task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from warmstart.core import Batch, Likelihood, Model, Params, Prediction, Task, Tree, mean_loss
from warmstart.core.trees import dot, tree_map
from warmstart.maths.descent import share_of
from warmstart.maths.optim import descend


class Inner(NamedTuple):
    phi: Params  # fast parameters
    rate: Tensor  # [] the task's own


class Info(NamedTuple):
    loss: Tensor  # summed over tasks
    rate: Tensor  # the same: the rates


class Rated(NamedTuple):
    step: Callable[[Params, Inner, Batch], Inner]  # all parameters, Inner, rows: one task
    predict: Callable[[Params, Params, Tree], Prediction]  # all parameters, phi, x: one task
    episodes: Callable[[Params, Tensor, Task], tuple[Tensor, Tensor]]  # parameters, rates [t], tasks -> loss, slope [t]


def rated(model: Model, likelihood: Likelihood, steps: int, shrink: float = 0.0) -> Rated:
    """`episodes` takes `steps` inner steps; slope is ||grad L||^2 of the support rows before the first."""
    decide = model.decide or model.apply

    def loss(params: Params, rows: Batch) -> Tensor:
        """Of rows that are encoded."""
        return mean_loss(likelihood.loss(decide(params, rows.x), rows.y), rows)

    def move(params: Params, inner: Inner, rows: Batch, first: bool = False) -> tuple[Inner, Tensor]:
        """One step on rows that are encoded, and ||grad L||^2 before it; the first one is at the start."""
        start, slow = model.split(params)
        grads, _ = grad_and_value(lambda phi: loss({**slow, **phi}, rows))(inner.phi)
        slope = dot(grads, grads)
        if not shrink:
            return Inner(descend(inner.phi, grads, inner.rate), inner.rate), slope
        share = share_of(rows, shrink)
        kept = start if first else tree_map(lambda phi, theta: torch.lerp(theta, phi, share), inner.phi, start)
        return Inner(descend(kept, grads, inner.rate * share), inner.rate), slope

    def step(params: Params, inner: Inner, batch: Batch) -> Inner:
        slow = model.split(params)[1]
        return move(params, inner, batch._replace(x=model.encode(slow, batch.x)))[0]

    def predict(params: Params, phi: Params, x: Tree) -> Prediction:
        return Prediction(likelihood.mean(model.apply({**params, **phi}, x)))

    def episodes(params: Params, rates: Tensor, tasks: Task) -> tuple[Tensor, Tensor]:
        fast, slow = model.split(params)

        def one(rate: Tensor, support: Batch, query: Batch) -> tuple[Tensor, Tensor]:
            inner, slope = Inner(fast, rate), torch.zeros_like(rate)
            for k in range(steps):
                inner, found = move(params, inner, support, k == 0)
                slope = slope if k else found
            return loss({**slow, **inner.phi}, query), slope

        # shown and judged rows together: half as many lookups, and half as many gradients of tables
        shown = tasks.support.y.shape[1]
        rows = model.encode(slow, tree_map(lambda s, q: torch.cat([s, q], 1), tasks.support.x, tasks.query.x))
        support = tasks.support._replace(x=tree_map(lambda leaf: leaf[:, :shown], rows))
        query = tasks.query._replace(x=tree_map(lambda leaf: leaf[:, shown:], rows))
        found: tuple[Tensor, Tensor] = vmap(one)(rates, support, query)
        return found

    return Rated(step, predict, episodes)


def first_rates(width: int, hidden: Sequence[int], like: Tensor, seed: int) -> Params:
    """Weights of a network from an embedding of `width` numbers to one number, as torch's linear layers begin, but for
    the last bias, so that rates begin around half of what they can be."""
    draw = torch.Generator().manual_seed(seed)
    found: Params = {}
    for i, (inputs, outputs) in enumerate(zip((width, *hidden), (*hidden, 1), strict=True)):
        bound = max(inputs, 1) ** -0.5
        for name, shape in ((f"weight{i}", (inputs, outputs)), (f"bias{i}", (outputs,))):
            found[name] = ((2 * torch.rand(shape, generator=draw) - 1) * bound).to(like)
    last = f"bias{len(hidden)}"
    return {**found, last: torch.zeros_like(found[last])}


def rate_of(weights: Params, embedding: Tensor, most: float) -> Tensor:
    """most * sigmoid(MLP(embedding)), [*t] of [*t, width]."""
    layers, h = len(weights) // 2, embedding
    for i in range(layers):
        h = h @ weights[f"weight{i}"] + weights[f"bias{i}"]
        h = torch.relu(h) if i < layers - 1 else h
    return most * torch.sigmoid(h.squeeze(-1))
