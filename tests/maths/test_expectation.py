"""The three estimators of an expected log likelihood: the same mean, less noise, and what they draw by hand."""

import pytest
import torch
from torch import nn
from torch.func import grad, grad_and_value, vmap

from warmstart.core import InputError, functional, make_batch, task_log_likelihood
from warmstart.core.trees import leaves, pack, tree_map, unpack
from warmstart.engine.noise import generator, normals
from warmstart.maths.expectation import LINES, expectation
from warmstart.maths.mean_field import Gaussian, around, draw
from warmstart.models.conv4 import Conv4
from warmstart.models.likelihoods import multiclass, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
by_rows = pytest.mark.parametrize("estimator", ["local", "flipout"])
NOISE = 0.6


class Pictures(nn.Module):
    """A convolution with a stride and a bias, and parameters that belong to no layer."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.scale = nn.Parameter(torch.tensor([0.7, 1.2, -0.4]))
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        out = torch.tanh(self.conv(x)) * self.scale[:, None, None]
        return self.head(out.flatten(1))


def mlp():
    batch = make_batch(torch.randn(6, 2), torch.randn(6) + 0.5, torch.rand(6) + 0.5, torch.tensor([1.0, 1, 0, 1, 1, 1]))
    return functional(MLP(2, (4,), 1, activation="tanh")), batch


def pictures():
    return functional(Pictures()), make_batch(torch.randn(5, 2, 4, 4), torch.randn(5) + 0.5)


def posterior(model, sd=0.2):
    q = around(pack(model.params), sd)
    return q._replace(log_sd=q.log_sd + 0.3 * torch.randn_like(q.log_sd))


def drawn(expected, *lead, seed=0):
    return tree_map(lambda leaf: leaf.double(), normals(expected.noise(*lead), (), generator(seed)))


def single(expected, q, batch, noise):
    """The gradient and the estimate of each draw alone."""
    one = grad_and_value(lambda q, e: expected.value(q, batch, tree_map(lambda leaf: leaf[None], e)))
    return vmap(one, (None, 0))(q, noise)


@by_rows
@pytest.mark.parametrize("problem", [mlp, pictures])
def test_values_and_gradients_have_the_mean_of_those_with_drawn_weights(problem, estimator):
    model, batch = problem()
    q, many = posterior(model), 20_000
    found = []
    for name in ("weights", estimator):
        expected = expectation(model, squared, NOISE, name)
        noise = drawn(expected, many, seed=len(name))
        slopes, values = single(expected, q, batch, noise)
        each = torch.cat([values[:, None], *slopes], 1)
        found.append((each.mean(0), each.std(0) / many**0.5))
    (left, first), (right, second) = found
    assert ((left - right).abs() / (first**2 + second**2).sqrt()).max() < 4.5  # standard errors


@by_rows
def test_with_rows_of_their_own_noise_an_estimate_varies_less(estimator):
    """The sum over rows, whose deviations are independent of each other instead of sharing one draw."""
    model = functional(MLP(2, (20,), 1, activation="tanh"))
    x = torch.randn(1, 2) + 0.1 * torch.randn(12, 2)  # rows that are alike: with drawn weights they deviate together
    batch, q = make_batch(x, torch.randn(12)), posterior(model)
    spread = {}
    for name in ("weights", estimator):
        expected = expectation(model, squared, NOISE, name)
        spread[name] = single(expected, q, batch, drawn(expected, 4000))[1].var()
    assert spread[estimator] < 0.3 * spread["weights"]


@by_rows
@pytest.mark.parametrize("problem", [mlp, pictures])
def test_without_spread_it_is_the_plain_network(problem, estimator):
    model, batch = problem()
    q = around(pack(model.params), 1e-9)
    expected = expectation(model, squared, NOISE, estimator)
    found = expected.value(q, batch, drawn(expected, 3))
    torch.testing.assert_close(
        found, task_log_likelihood(model, squared, NOISE)(model.params, batch), rtol=1e-6, atol=0
    )


def test_a_linear_layer_draws_its_outputs():
    """A row of place i in the mask has line i; padding has no place."""
    model, batch = mlp()
    q = posterior(model)
    mean, variance = (unpack(part, model.params) for part in (q.mean, torch.exp(2 * q.log_sd)))
    expected = expectation(model, squared, NOISE, "local")
    noise = drawn(expected, 2)
    total = 0.0
    for s in range(2):
        lines = noise["rows"][s][[0, 1, 1, 2, 3, 4]]
        out = batch.x
        for name, columns in (("body.0", slice(0, 4)), ("head", slice(4, 5))):
            centre = out @ mean[f"{name}.weight"].T + mean[f"{name}.bias"]
            spread = out**2 @ variance[f"{name}.weight"].T + variance[f"{name}.bias"]
            out = centre + spread.sqrt() * lines[:, columns]
            out = torch.tanh(out) if name != "head" else out
        rows = torch.distributions.Normal(out[:, 0], NOISE).log_prob(batch.y)
        total = total + (rows * batch.w * batch.mask).sum() / 2
    torch.testing.assert_close(expected.value(q, batch, noise), total)


def test_flipout_is_a_network_of_its_own_for_every_row():
    model, batch = pictures()
    q = posterior(model)
    expected = expectation(model, squared, NOISE, "flipout")
    noise = drawn(expected, 1)
    mean, deviations = unpack(q.mean, model.params), unpack(draw(q, noise["weights"][0]) - q.mean, model.params)
    total = 0.0
    for i in range(5):
        signs, away = noise["rows"][0][i].sign(), dict(deviations)
        (a, b), (c, d) = signs[:5].split([3, 2]), signs[5:].split([1, 12])
        away["conv.weight"] = away["conv.weight"] * a[:, None, None, None] * b[:, None, None]
        away["head.weight"] = away["head.weight"] * c[:, None] * d
        away["conv.bias"], away["head.bias"] = away["conv.bias"] * a, away["head.bias"] * c
        params = {name: mean[name] + away[name] for name in mean}
        out = model.apply(params, batch.x[i : i + 1])[0, 0]
        total = total + torch.distributions.Normal(out, NOISE).log_prob(batch.y[i])
    torch.testing.assert_close(expected.value(q, batch, noise), total)


@by_rows
def test_more_rows_than_lines_and_none(estimator):
    model = functional(MLP(2, (4,), 1))
    expected = expectation(model, squared, NOISE, estimator)
    q, noise = posterior(model), drawn(expected, 2)
    x, y = torch.randn(LINES, 2), torch.randn(LINES)
    once = expected.value(q, make_batch(x, y), noise)
    torch.testing.assert_close(expected.value(q, make_batch(x.repeat(2, 1), y.repeat(2)), noise), 2 * once)
    slope = grad(lambda q: expected.value(q, make_batch(torch.zeros(0, 2), torch.zeros(0)), noise))(q)
    assert not any(leaf.any() for leaf in leaves(slope))


@by_rows
def test_a_layer_that_mixes_rows_is_drawn_once_for_all(estimator):
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = nn.Linear(1, 2), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.inside(x.reshape(-1, 1)).reshape(len(x), 4))

    model = functional(Mixing())
    expected = expectation(model, squared, NOISE, estimator)
    q, noise = posterior(model), drawn(expected, 1)
    batch = make_batch(torch.randn(3, 2), torch.randn(3))
    alone = Gaussian(q.mean, torch.cat([q.log_sd[:4], torch.full((5,), -20.0)]))  # the head has no spread
    plain = task_log_likelihood(model, squared, NOISE)(unpack(draw(alone, noise["weights"][0]), model.params), batch)
    torch.testing.assert_close(expected.value(alone, batch, noise), plain, rtol=1e-6, atol=1e-6)


@by_rows
def test_the_four_block_network_runs(estimator):
    model = functional(Conv4((1, 16, 16), 3, filters=4))
    x = {"pixels": torch.randn(4, 1, 16, 16), "real": torch.ones(4)}
    expected = expectation(model, multiclass, NOISE, estimator)
    noise = drawn(expected, 2)
    batch = make_batch(x, torch.tensor([0, 1, 2, 0]))
    slope = grad(lambda q: expected.value(q, batch, noise))(around(pack(model.params), 0.1))
    assert all(torch.isfinite(leaf).all() and leaf.any() for leaf in leaves(slope))


def test_an_unknown_estimator_is_refused():
    with pytest.raises(InputError, match="an estimator among weights, local, flipout, got 'dropout'"):
        expectation(functional(MLP(1, (2,), 1)), squared, NOISE, "dropout")
