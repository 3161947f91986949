"""Kronecker factors against the Gauss-Newton matrix where they are exact, against products written out elsewhere."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from warmstart.core import functional, make_batch
from warmstart.core.trees import pack, unpack
from warmstart.maths.curvature import gauss_newton_root
from warmstart.maths.laplace import precision
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
PRIOR, NOISE = 1.7, 0.6
LIKELIHOODS = {"squared": squared, "binary": binary, "multiclass": multiclass}
likelihoods = pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=list(LIKELIHOODS))


def network(likelihood, hidden=(), fast="*"):
    return functional(MLP(2, hidden, 3 if likelihood is multiclass else 1, activation="tanh"), fast)


def batch(likelihood, rows):
    y = {squared: torch.randn(rows) + 1, binary: torch.arange(rows) % 2.0, multiclass: torch.arange(rows) % 3}
    return make_batch(torch.randn(rows, 2), y[likelihood], w=torch.rand(rows) + 0.4)


def found(model, likelihood, shown):
    """log det H and the covariance of the draws, exactly: each unit vector in turn is the noise."""
    phi, slow = model.split(model.params)
    form = precision("kronecker", model, likelihood, PRIOR, NOISE)
    kept, d = form.of(slow, phi, shown), pack(phi).numel()
    drawn = form.draw(phi, form.factor(kept), unpack(torch.eye(d), phi))
    lines = torch.cat([drawn[name].reshape(d, -1) - phi[name].reshape(-1) for name in phi], 1)
    return form.log_det(kept) + d * math.log(PRIOR), lines.mT @ lines


def blocks(model, matrix, *groups):
    """The matrix with entries between parameters of different groups set to zero."""
    label = {name: i for i, group in enumerate(groups) for name in group}
    phi = model.split(model.params)[0]
    at = torch.cat([torch.full((value.numel(),), label[name]) for name, value in phi.items()])
    return matrix * (at[:, None] == at[None])


def check(model, likelihood, shown, expected):
    log_det, covariance = found(model, likelihood, shown)
    assert_close(log_det, torch.logdet(expected))
    assert_close(covariance, torch.linalg.inv(expected))


def gauss_newton(model, likelihood, shown):
    phi, slow = model.split(model.params)
    root = gauss_newton_root(model, likelihood, NOISE)(slow, phi, shown)
    return PRIOR * torch.eye(root.shape[1]) + root.mT @ root


@pytest.mark.parametrize("rows", [2, 9])
def test_a_linear_regression_is_exact(rows):
    model, shown = network(squared), batch(squared, rows)
    check(model, squared, shown, gauss_newton(model, squared, shown))


@likelihoods
def test_with_one_row_every_layer_is_exact(likelihood):
    model, shown = network(likelihood, (3,)), batch(likelihood, 1)
    layers = [("body.0.weight", "body.0.bias"), ("head.weight", "head.bias")]
    check(model, likelihood, shown, blocks(model, gauss_newton(model, likelihood, shown), *layers))


@likelihoods
def test_rows_with_equal_inputs_are_exact_and_padding_is_none(likelihood):
    """What a layer is given is the same for all rows."""
    model, shown = network(likelihood, (3,)), batch(likelihood, 5)
    equal = shown._replace(x=shown.x[:1].expand(5, 2), mask=torch.tensor([1.0, 1, 0, 1, 0]))
    layers = [("body.0.weight", "body.0.bias"), ("head.weight", "head.bias")]
    exact = blocks(model, gauss_newton(model, likelihood, equal), *layers)
    check(model, likelihood, equal._replace(x=equal.x + 30 * (1 - equal.mask[:, None])), exact)


def test_products_written_out():
    """Layer by layer with torch.kron; a batch on which the factors are an approximation."""
    model, shown = network(squared, (3,), fast=["body.*", "head.weight"]), batch(squared, 6)
    p, share = model.params, shown.w / shown.w.sum()
    hidden = torch.tanh(shown.x @ p["body.0.weight"].T + p["body.0.bias"])
    slope = shown.w[:, None].sqrt() / NOISE * (1 - hidden**2) * p["head.weight"]
    first = torch.cat([shown.x, torch.ones(6, 1)], 1)
    body = torch.kron(slope.T @ slope, (first.T * share) @ first)  # rows of weights, each with its bias at the end
    order = torch.tensor([0, 1, 3, 4, 6, 7, 2, 5, 8])  # weights first, then biases, as parameters lie
    head = (hidden.T * share) @ hidden * shown.w.sum() / NOISE**2
    expected = torch.block_diag(body[order][:, order], head) + PRIOR * torch.eye(12)
    check(model, squared, shown, expected)


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2, stride=1, padding=1)
        self.scale = nn.Parameter(torch.tensor([0.7, 1.2, -0.4]))

    def forward(self, x):
        return (torch.tanh(self.conv(x)).mean((2, 3)) * self.scale).sum(1, keepdim=True)


def test_a_convolution_adds_inputs_over_positions_and_averages_derivatives():
    model = functional(Pictures())
    shown = make_batch(torch.randn(2, 2, 2, 2), torch.randn(2), torch.tensor([1.5, 0.6]))
    p = model.params
    inputs, outputs = torch.zeros(9, 9), torch.zeros(3, 3)
    padded = nn.functional.pad(shown.x, (1, 1, 1, 1))
    for n in range(2):
        for i in range(3):
            for j in range(3):
                a = torch.cat([padded[n, :, i : i + 2, j : j + 2].reshape(-1), torch.ones(1)])
                z = p["conv.weight"].reshape(3, 8) @ a[:8] + p["conv.bias"]
                g = shown.w[n].sqrt() / NOISE * (1 - torch.tanh(z) ** 2) * p["scale"] / 9
                inputs += shown.w[n] / shown.w.sum() * torch.outer(a, a)
                outputs += torch.outer(g, g) / 9
    order = torch.tensor([9 * o + i for o in range(3) for i in range(8)] + [9 * o + 8 for o in range(3)])
    names = list(p)  # scale comes first: a module's own parameters before those of its parts
    assert names == ["scale", "conv.weight", "conv.bias"]
    conv = torch.kron(outputs, inputs)[order][:, order]
    rest = torch.diag(torch.diagonal(gauss_newton(model, squared, shown) - PRIOR * torch.eye(30))[:3])
    check(model, squared, shown, torch.block_diag(rest, conv) + PRIOR * torch.eye(30))


def test_a_weight_of_two_layers_is_diagonal():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

        def forward(self, x):
            return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))

    model, shown = functional(Twice()), batch(squared, 1)
    exact = gauss_newton(model, squared, shown)
    expected = blocks(model, exact, ("layer.weight", "layer.bias"), ("head.weight", "head.bias"))
    expected[:6, :6] = torch.diag(torch.diagonal(exact)[:6])
    check(model, squared, shown, expected)
