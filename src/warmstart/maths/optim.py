"""Optimisers as init/update pairs of pure functions, for the inner and the outer loop alike.

Each agrees with its namesake in `torch.optim` to rounding. The learning rate is an argument of
`update`: a number, a tensor, or a tree of tensors shaped like the parameters (Meta-SGD).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.core.trees import Tree, leaves, pack, tree_map, unpack, zeros_like


class Optimiser(NamedTuple):
    """`init(params)` gives the state; `update(params, grads, state, lr)` gives new parameters and state."""

    init: Callable[[Tree], Any]
    update: Callable[[Tree, Tree, Any, Any], tuple[Tree, Any]]


class AdamState(NamedTuple):
    done: Tensor  # updates so far
    c1: Tensor  # what m and v would be of ones: 1 - b^done, without the digits that single precision loses
    c2: Tensor
    m: Tensor  # [parameters]
    v: Tensor


def descend(params: Tree, direction: Tree, lr: float | Tensor | Tree) -> Tree:
    """params - lr * direction, with one rate for all or a rate for each entry."""
    if isinstance(lr, (int, float)):
        return tree_map(lambda p, d: torch.sub(p, d, alpha=lr), params, direction)
    if isinstance(lr, Tensor):
        return tree_map(lambda p, d: p - lr * d, params, direction)
    return tree_map(lambda p, d, rate: p - rate * d, params, direction, lr)


def sgd() -> Optimiser:
    """Plain gradient descent; no state."""
    return Optimiser(lambda params: (), lambda params, grads, state, lr: (descend(params, grads, lr), ()))


def momentum(beta: float = 0.9) -> Optimiser:
    """v <- beta v + g; params <- params - lr v."""

    def update(params: Tree, grads: Tree, state: Tree, lr: Any) -> tuple[Tree, Tree]:
        velocity = tree_map(lambda v, g: beta * v + g, state, grads)
        return descend(params, velocity, lr), velocity

    return Optimiser(zeros_like, update)


def adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0) -> Optimiser:
    """Adam; with `weight_decay`, AdamW (decay apart from the gradient, scaled by lr).

    The moments of all parameters lie in one vector, so that a step is a dozen operations
    however many layers there are.
    """

    def init(params: Tree) -> AdamState:
        parts = leaves(params)
        flat = parts[0].new_zeros(sum(part.numel() for part in parts))
        none = flat.new_zeros(())
        return AdamState(none, none.clone(), none.clone(), flat, flat.clone())

    def update(params: Tree, grads: Tree, state: AdamState, lr: Any) -> tuple[Tree, AdamState]:
        g = pack(grads)
        m = torch.lerp(state.m, g, 1 - b1)
        v = torch.addcmul(b2 * state.v, g, g, value=1 - b2)
        c1, c2 = b1 * state.c1 + (1 - b1), b2 * state.c2 + (1 - b2)
        # m / c1 / (sqrt(v / c2) + eps), with what is one number for all entries taken together;
        # the tiny number keeps the derivative finite where a gradient is exactly zero
        root = c2.sqrt()
        step = m * (root / c1) / ((v + 1e-30).sqrt() + eps * root)
        direction = unpack(step, grads)
        if weight_decay:
            direction = tree_map(lambda d, p: d + weight_decay * p, direction, params)
        return descend(params, direction, lr), AdamState(state.done + 1, c1, c2, m, v)

    return Optimiser(init, update)


def cosine(done: Tensor, total: int) -> Tensor:
    """A factor that falls from 1 to 0 over `total` updates; constant 1 when `total` is 0."""
    if total == 0:
        return torch.ones_like(done)
    return 0.5 * (1 + torch.cos(math.pi * (done / total).clamp(max=1.0)))


def linear(done: Tensor, total: int) -> Tensor:
    """Like `cosine`, in a straight line."""
    if total == 0:
        return torch.ones_like(done)
    return (1 - done / total).clamp(min=0.0)


def named(name: str) -> Optimiser:
    """The optimiser of that name, for configurations that are written down as text."""
    match name:
        case "sgd":
            return sgd()
        case "momentum":
            return momentum()
        case "adam":
            return adam()
    raise InputError("an optimiser sgd, momentum or adam", repr(name), "use one of these names")
