"""What a posterior expects of some rows, E_q log p(rows | params), as a mean over draws.

With params = mean + sd * noise its derivative in mean and sd is known (reparameterisation). What is drawn is

    weights     all parameters, once for all rows
    local       what a linear layer gives, for every row: N(x m + b, x^2 s^2 + sb^2); convolutions as in flipout
    flipout     all parameters once, their deviations from the mean with random signs for every row and layer:
                x m + b + ((x r) d + db) s,    d = sd * noise, r and s signs of inputs and outputs

All three have the same mean where a row's likelihood is its own affair, not that of a batch whose statistics it
shares. In the last two rows deviate independently of each other, so the mean over them is less noisy. A parameter
that is no layer's weight or bias, or whose layer does not keep rows apart, is drawn once for all rows.

Kingma, Salimans and Welling, 2015; Wen et al., 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from warmstart.core import Batch, InputError, Likelihood, Model, Params, Tree, task_log_likelihood
from warmstart.core.trees import unpack
from warmstart.maths.layers import Layer, Meeting
from warmstart.maths.mean_field import Gaussian, draw

ESTIMATORS = ("weights", "local", "flipout")
LINES = 16  # rows whose noise is their own; the next ones use it again, which changes no mean
LEAST = 1e-30  # of a variance whose root is taken: below, its derivative would not be finite


class Expectation(NamedTuple):
    value: Callable[[Gaussian, Batch, Tree], Tensor]  # q, rows, noise with an axis of draws
    noise: Callable[..., Tree]  # leading axes, the last of them that of draws -> shapes


def expectation(model: Model, likelihood: Likelihood, noise: float, estimator: str = "weights") -> Expectation:
    """`noise` is the standard deviation of a squared likelihood's row."""
    if estimator not in ESTIMATORS:
        raise InputError(f"an estimator among {', '.join(ESTIMATORS)}", repr(estimator), "use one of these names")
    log_likelihood = task_log_likelihood(model, likelihood, noise)
    if estimator == "weights":

        def value(q: Gaussian, batch: Batch, drawn: Tree) -> Tensor:
            each: Tensor = vmap(lambda e: log_likelihood(unpack(draw(q, e), model.params), batch))(drawn)
            return each.mean()

        return Expectation(value, lambda *lead: torch.Size((*lead, size(model))))
    return _by_rows(model, log_likelihood, estimator == "local")


def _by_rows(model: Model, log_likelihood: Callable[[Params, Batch], Tensor], local: bool) -> Expectation:
    """Noise is {"weights": [s, d], "rows": [s, lines, columns]}; a row has the line of its place among real rows."""
    columns: dict[str, slice] = {}
    width = 0
    for name, given in model.params.items():
        if given.dim() > 1:
            wanted = len(given) if local and given.dim() == 2 else len(given) + given.shape[1]
            columns[name] = slice(width, width + wanted)
            width += wanted

    def value(q: Gaussian, batch: Batch, drawn: Tree) -> Tensor:
        mean, sd = unpack(q.mean, model.params), unpack(q.log_sd.exp(), model.params)
        place = (batch.mask.cumsum(-1).long() - 1) % LINES

        def one(e: Tree) -> Tensor:
            params, lines = unpack(draw(q, e["weights"]), model.params), e["rows"][place]

            def handle(layer: Layer) -> Tensor:
                x, weight = layer.x, params[layer.weight]
                if x.dim() != weight.dim() or x.shape[:2] != (len(lines), weight.shape[1]):
                    return layer.apply(x, weight, params.get(layer.bias))
                way = _locally if local and layer.linear else _flipped
                return way(layer, mean, sd, params, lines[:, columns[layer.weight]])

            with Meeting(params, handle):
                return log_likelihood(params, batch)

        each: Tensor = vmap(one)(drawn)
        return each.mean()

    def noise(*lead: int) -> Tree:
        return {"weights": torch.Size((*lead, size(model))), "rows": torch.Size((*lead, LINES, width))}

    return Expectation(value, noise)


def _locally(layer: Layer, mean: Params, sd: Params, drawn: Params, noise: Tensor) -> Tensor:
    bias = (sd[layer.bias] ** 2) if layer.bias else None
    spread = layer.apply(layer.x**2, sd[layer.weight] ** 2, bias)
    return layer.apply(layer.x, mean[layer.weight], mean.get(layer.bias)) + (spread + LEAST).sqrt() * noise


def _flipped(layer: Layer, mean: Params, sd: Params, drawn: Params, noise: Tensor) -> Tensor:
    outputs = len(mean[layer.weight])
    signs = noise.sign().reshape(*noise.shape, *(1 for _ in layer.x.shape[2:]))
    bias = drawn[layer.bias] - mean[layer.bias] if layer.bias else None
    away = layer.apply(layer.x * signs[:, outputs:], drawn[layer.weight] - mean[layer.weight], bias)
    return layer.apply(layer.x, mean[layer.weight], mean.get(layer.bias)) + away * signs[:, :outputs]


def size(model: Model) -> int:
    """How many parameters there are."""
    return sum(value.numel() for value in model.params.values())
