"""The curvature of a task's negative log likelihood, layer by layer as a Kronecker product.

    H_layer = prior I + A x G,    A = sum_i w_i a_i a_i' / sum_i w_i,    G = sum_ij w_i g_ij g_ij'

a_i is what the layer is given for row i, with a 1 for its bias, and g_ij the derivative of root j of the row's
curvature (`maths.curvature`) in what the layer gives. It is the Gauss-Newton matrix of the layer where all rows have
the same inputs or the same derivatives, and layers are taken as independent. A convolution's positions add up in A and
are averaged in G. Parameters that belong to no such layer have the diagonal of the Gauss-Newton matrix.

With the eigenvalues l of A and m of G, det (H / prior) is the product of 1 + l m / prior over all pairs, and
H^-1/2 is in their eigenvectors, so that the prior's precision is there exactly.

Martens and Grosse, 2015; Grosse and Martens, 2016. For one task; callers vmap.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp, vmap

from warmstart.core import Batch, Likelihood, Model, Params, Tree
from warmstart.core.trees import unpack
from warmstart.maths.curvature import Precision, gauss_newton_root, outputs_root
from warmstart.maths.layers import Layer, Meeting


class Factors(NamedTuple):
    inputs: Tensor  # A / prior
    outputs: Tensor  # G


def kronecker(model: Model, likelihood: Likelihood, prior: float, noise: float) -> Precision:
    """`noise` is the standard deviation of a squared likelihood's rows.

    What is kept: Factors of every layer by the names of its weight and bias, and the diagonal of the rest.
    """
    root = gauss_newton_root(model, likelihood, noise)

    def of(slow: Params, phi: Params, batch: Batch) -> Tree:
        params, weight = {**slow, **phi}, batch.w * batch.mask
        met = _layers(model, params, phi, batch)

        def run(probes: Params) -> Tensor:
            def handle(layer: Layer) -> Tensor:
                out = layer.apply(layer.x, params[layer.weight], params.get(layer.bias))
                return out + probes[layer.weight] if layer.weight in probes else out

            with Meeting(params, handle):
                return model.apply(params, batch.x)

        found: Any = vjp(run, {name: torch.zeros_like(out) for name, (_, _, out) in met.items()})
        out, pull = found
        roots = outputs_root(likelihood, out, weight, noise).movedim(-1, 0)
        pulled: Params = vmap(pull)(roots)[0]  # a row does not see the others, so all go back at once
        total = weight.sum()
        share = weight / torch.where(total > 0, total, 1.0)
        layers = {}
        for name, (bias, a, _) in met.items():
            g = pulled[name]
            g = g.flatten(3).mT if params[name].dim() == 4 else g.reshape(*g.shape[:2], a.shape[1], g.shape[-1])
            inputs = torch.einsum("n,npi,npj->ij", share, a, a) / prior
            layers[f"{name} {bias}"] = Factors(inputs, torch.einsum("rnpi,rnpj->ij", g, g) / a.shape[1])
        rest = _rest(phi, layers)
        if not rest:
            return {"layers": layers, "rest": weight.new_ones(0)}
        covered = {name: value for name, value in phi.items() if name not in rest}
        return {"layers": layers, "rest": 1 + (root({**slow, **covered}, rest, batch) ** 2).sum(0) / prior}

    def log_det(kept: Tree) -> Tensor:
        total = torch.log(kept["rest"]).sum(-1)
        for part in kept["layers"].values():
            left, right = (torch.linalg.eigvalsh(torch.nan_to_num(factor)).clamp(min=0.0) for factor in part)
            total = total + torch.log1p(left * right.unsqueeze(-1)).sum((-1, -2))
        return total

    def factor(kept: Tree) -> Tree:
        """Eigenvectors of both factors, and how long a draw is along each pair of them."""

        def one(part: Factors) -> tuple[Tensor, Tensor, Tensor]:
            (left, u), (right, v) = (torch.linalg.eigh(torch.nan_to_num(factor)) for factor in part)
            product = left.clamp(min=0.0) * right.clamp(min=0.0).unsqueeze(-1)
            return u, v, torch.rsqrt(prior * (1 + product))

        layers = {name: one(part) for name, part in kept["layers"].items()}
        return {"layers": layers, "rest": torch.rsqrt(prior * kept["rest"])}

    def draw(phi: Params, factor: Tree, noise: Tree) -> Params:
        moved: Params = {}
        for key, (u, v, length) in factor["layers"].items():
            name, bias = key.split(" ")
            e = noise[name].flatten(2)
            if bias:
                e = torch.cat([e, noise[bias].unsqueeze(-1)], -1)
            e = v @ ((v.mT @ e @ u) * length) @ u.mT  # the symmetric root, whatever the order of the eigenvectors
            if bias:
                e, moved[bias] = e[..., :-1], e[..., -1]
            moved[name] = e.reshape(noise[name].shape)
        rest = _rest(phi, factor["layers"])
        lengths = unpack(factor["rest"], rest)
        moved |= {name: noise[name] * lengths[name] for name in rest}
        return {name: value + moved[name] for name, value in phi.items()}

    return Precision(of, log_det, factor, draw)


def _layers(model: Model, params: Params, phi: Params, batch: Batch) -> dict[str, tuple[str, Tensor, Tensor]]:
    """By the name of its weight, for every layer with a fast one: its bias if that is fast, what it is given
    [n, positions, inputs] with a 1 for that bias, and what it gives."""
    met: dict[str, tuple[str, Tensor, Tensor]] = {}
    twice: set[str] = set()

    def handle(layer: Layer) -> Tensor:
        out = layer.apply(layer.x, params[layer.weight], params.get(layer.bias))
        a = _given(layer, params[layer.weight])
        if layer.weight in phi and a is not None and len(a) == len(batch.w):
            bias = layer.bias if layer.bias in phi else ""
            twice.update({layer.weight} & set(met))  # a weight of two layers is of none
            met[layer.weight] = (bias, torch.cat([a, torch.ones_like(a[..., :1])], -1) if bias else a, out)
        return out

    with Meeting(params, handle):
        model.apply(params, batch.x)
    return {name: found for name, found in met.items() if name not in twice}


def _given(layer: Layer, weight: Tensor) -> Tensor | None:
    """[n, positions, inputs] of a layer, or None for a convolution whose patches are not at hand."""
    x = layer.x
    if layer.linear:
        return x.reshape(len(x), math.prod(x.shape[1:-1]), x.shape[-1])
    if layer.options.get("groups", 1) != 1 or isinstance(layer.options.get("padding", 0), str):
        return None
    options = {name: value for name, value in layer.options.items() if name != "groups"}
    patches: Tensor = F.unfold(x, weight.shape[2:], **options)
    return patches.mT


def _rest(phi: Params, layers: Tree) -> Params:
    covered = {name for key in layers for name in key.split(" ")}
    return {name: value for name, value in phi.items() if name not in covered}
