"""Gauss-Newton inference against linear models solved on paper, and where networks are far from linear."""

import math
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from warmstart.core import functional, make_batch, task_log_likelihood
from warmstart.core.trees import unpack
from warmstart.maths.mean_field import Gaussian, log_density
from warmstart.maths.newton import _narrowing, linearised, newton
from warmstart.maths.outer import outer
from warmstart.maths.prior import as_theta, learned_prior
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
NOISE, WEIGHT = 0.6, 0.7
ANCHOR = Gaussian(torch.tensor([0.4, -1.0, 0.2]).double(), torch.tensor([-0.3, 0.2, -0.8]).double())


def rows(likelihood, count, inputs=2):
    """Rows of unequal weight; the second is padding."""
    y = (
        torch.randn(count) + 1
        if likelihood is squared
        else torch.arange(count) % 3 % (2 if likelihood is binary else 3)
    )
    mask = torch.ones(count)
    mask[1] = 0
    w = torch.rand(count) + 0.4
    return make_batch(torch.randn(count, inputs), y.to(w) if likelihood is not multiclass else y, w=w, mask=mask)


def line():
    return functional(MLP(2, (), 1))  # a weight of two and a bias


def parts(model, likelihood, anchor):
    infer = newton(model, likelihood, NOISE, WEIGHT)
    common = learned_prior(model, likelihood, infer, rate=1.0, noise=NOISE, unrolled=False)
    state = outer(0.1).init(as_theta(anchor))
    return infer, linearised(common, model, likelihood, NOISE, WEIGHT), state


def adapted(common, state, batch, steps):
    inner = common.start(state, ())
    for _ in range(steps):
        inner = common.step(state, inner, batch, ())
    return inner.q, common.finish(state, inner, batch)


def exact(batch):
    """Mean and covariance of the weights of `line`, with rows that count 1 / WEIGHT."""
    x = torch.cat([batch.x, torch.ones(len(batch.x), 1)], 1)
    scale = batch.w * batch.mask / (WEIGHT * NOISE**2)
    precision = torch.diag(torch.exp(-2 * ANCHOR.log_sd)) + (x * scale[:, None]).mT @ x
    pull = torch.exp(-2 * ANCHOR.log_sd) * ANCHOR.mean + (x * scale[:, None]).mT @ batch.y
    return torch.linalg.solve(precision, pull), torch.linalg.inv(precision)


@pytest.mark.parametrize("whole", [0, 1500], ids=["directions", "whole"])
@pytest.mark.parametrize("count", [2, 7, 120])  # fewer lines than parameters, more, and more than are kept
def test_one_step_on_a_linear_model_is_its_posterior(count, whole, monkeypatch):
    monkeypatch.setattr("warmstart.maths.newton.WHOLE", whole)
    batch, new = rows(squared, count), torch.randn(4, 2)
    _, common, state = parts(line(), squared, ANCHOR)
    mean, covariance = exact(batch)
    q, found = adapted(common, state, batch, 1)
    assert_close(q.mean, mean)
    assert_close(torch.exp(2 * q.log_sd), covariance.diagonal())
    assert_close(adapted(common, state, batch, 3)[0], q)  # and stays there
    said = common.predict(state, found, new, ())
    seen = torch.cat([new, torch.ones(4, 1)], 1)
    assert_close(said.mean, seen @ mean)
    assert_close(said.variance, (seen @ covariance * seen).sum(-1) + NOISE**2)


def test_what_q_expects_of_linear_rows_is_in_closed_form():
    batch = rows(squared, 6)
    infer, _, _ = parts(line(), squared, ANCHOR)
    x = torch.cat([batch.x, torch.ones(6, 1)], 1)
    apart = (batch.y - x @ ANCHOR.mean) ** 2 + (x**2) @ torch.exp(2 * ANCHOR.log_sd)
    each = -0.5 * apart / NOISE**2 - math.log(NOISE) - 0.5 * math.log(2 * math.pi)
    assert_close(infer.fit(ANCHOR, batch, ()), (each * batch.w * batch.mask).sum())


@pytest.mark.parametrize("count", [2, 7])  # fewer lines than parameters, and more
def test_a_posterior_expects_rows_by_its_whole_covariance_and_has_the_exact_evidence(count):
    infer, (seen, new) = parts(line(), squared, ANCHOR)[0], (rows(squared, count), rows(squared, 5))
    q = infer.step(ANCHOR, infer.start(ANCHOR), seen, (), 1.0).q
    mean, covariance = exact(seen)
    x = torch.cat([new.x, torch.ones(5, 1)], 1)
    apart = (new.y - x @ mean) ** 2 + (x @ covariance * x).sum(-1)
    each = -0.5 * apart / NOISE**2 - math.log(NOISE) - 0.5 * math.log(2 * math.pi)
    assert_close(infer.expect(q, ANCHOR, seen, new, ()), (each * new.w * new.mask).sum())
    # with rows whose likelihood has the power 1 / WEIGHT, log p(rows | w) N(w) / posterior is the same at every w
    at = torch.tensor([0.3, -0.2, 0.5])
    fit = task_log_likelihood(line(), squared, NOISE)(unpack(at, line().params), seen) / WEIGHT
    posterior = torch.distributions.MultivariateNormal(mean, covariance).log_prob(at)
    assert_close(-infer.bound(q, ANCHOR, seen, ()) / WEIGHT, fit + log_density(ANCHOR, at) - posterior)


@pytest.mark.parametrize("whole", [0, 1500], ids=["directions", "whole"])
@pytest.mark.parametrize("likelihood", [binary, multiclass], ids=["binary", "multiclass"])
def test_steps_on_classes_reach_the_mode_and_its_curvature(likelihood, whole, monkeypatch):
    """For a linear model the Gauss-Newton matrix is the Hessian, which automatic differentiation gives too."""
    monkeypatch.setattr("warmstart.maths.newton.WHOLE", whole)
    model = functional(MLP(2, (), 3 if likelihood is multiclass else 1))
    d = 9 if likelihood is multiclass else 3
    anchor = Gaussian(0.3 * torch.randn(d), 0.3 * torch.randn(d))
    batch, new = rows(likelihood, 8), torch.randn(4, 2)
    _, common, state = parts(model, likelihood, anchor)
    q, found = adapted(common, state, batch, 12)
    fit = task_log_likelihood(model, likelihood)
    posterior = lambda flat: log_density(anchor, flat) + fit(unpack(flat, model.params), batch) / WEIGHT  # noqa: E731
    assert torch.func.grad(posterior)(q.mean).abs().max() < 1e-8
    covariance = torch.linalg.inv(-torch.func.hessian(posterior)(q.mean))
    assert_close(torch.exp(2 * q.log_sd), covariance.diagonal())
    if likelihood is binary:  # unit draws add up to the variance of the output
        said = common.predict(state, found, new, torch.eye(d))
        away = torch.logit(said.samples) - model.apply(unpack(q.mean, model.params), new).squeeze(-1)
        seen = torch.cat([new, torch.ones(4, 1)], 1)
        assert_close((away**2).sum(0), (seen @ covariance * seen).sum(-1))


def test_a_step_is_never_for_the_worse_where_the_plain_one_is():
    torch.manual_seed(3)
    model = functional(MLP(1, (20, 20), 1))
    anchor = Gaussian(torch.cat([p.reshape(-1) for p in model.params.values()]), torch.full((481,), math.log(0.4)))
    batch = rows(squared, 8, 1)
    batch = batch._replace(x=5 * batch.x, y=4 * batch.y)
    infer, _, _ = parts(model, squared, anchor)
    fit = task_log_likelihood(model, squared, NOISE)
    height = lambda flat: -log_density(anchor, flat) - fit(unpack(flat, model.params), batch) / WEIGHT  # noqa: E731
    inner, heights, shortened = infer.start(anchor), [height(anchor.mean)], 0
    for _ in range(12):
        before = inner.q.mean
        inner = infer.step(anchor, inner, batch, (), 1.0)
        heights.append(height(inner.q.mean))
        shortened += int(any(height(before + f * (inner.q.mean - before)) > heights[-2] for f in (2, 4, 8, 16, 32)))
    assert all(after <= before + 1e-9 for before, after in pairwise(heights))
    assert heights[-1] < 0.2 * heights[0] and shortened > 0


def test_rows_that_say_very_much_are_factorised_in_single_precision():
    """Twenty rows, four of them apart, 1e7 times as sure as the prior: without its rounding there is no factor."""
    c = 3e3 * torch.randn(4, 30).repeat(5, 1).float()
    assert torch.linalg.cholesky_ex(torch.eye(20, dtype=c.dtype) + c @ c.mT).info > 0
    w = _narrowing(c)
    left = 1 - (w**2).sum(0)
    _, _, directions = torch.linalg.svd(c[:4].double(), full_matrices=False)
    assert_close(left.double(), 1 - (directions**2).sum(0), atol=1e-3, rtol=1e-3)


def test_nothing_seen_is_the_prior():
    batch = rows(squared, 5)
    _, common, state = parts(line(), squared, ANCHOR)
    empty = batch._replace(mask=torch.zeros(5))
    for q, found in (adapted(common, state, empty, 2), adapted(common, state, batch, 0)):
        assert_close(q, ANCHOR)
        said = common.predict(state, found, batch.x, ())
        x = torch.cat([batch.x, torch.ones(5, 1)], 1)
        assert_close(said.variance, (x**2) @ torch.exp(2 * ANCHOR.log_sd) + NOISE**2)
