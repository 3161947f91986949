"""Closed forms against Monte Carlo and against automatic differentiation."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from warmstart.core import functional, make_batch, task_log_likelihood, task_loss
from warmstart.core.trees import pack
from warmstart.maths.mean_field import LEAST, MOST, Gaussian, around, bounded, draw, expected_score, kl, log_density
from warmstart.maths.predictive import predictive
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")


def gaussian():
    return Gaussian(torch.randn(10), torch.randn(10) / 2)


def as_torch(q):
    return Independent(Normal(q.mean, q.log_sd.exp()), 1)


def test_kl_and_density_are_those_of_torch():
    q, p = gaussian(), gaussian()
    torch.testing.assert_close(kl(q, p), kl_divergence(as_torch(q), as_torch(p)))
    torch.testing.assert_close(kl(q, q), torch.zeros(()), atol=1e-12, rtol=0)
    value = torch.randn(10)
    torch.testing.assert_close(log_density(p, value), as_torch(p).log_prob(value))


def test_kl_is_the_mean_of_the_log_ratio_over_draws():
    for own, other in ((0.4, 1.0), (1.3, 1.2)):
        q = Gaussian(torch.randn(4), torch.full((4,), math.log(own)))
        p = Gaussian(q.mean + torch.randn(4) / 2, torch.full((4,), math.log(other)))
        draws = draw(q, torch.randn(400_000, 4))
        ratio = log_density(q, draws) - log_density(p, draws)
        assert abs(kl(q, p) - ratio.mean()) < 5 * ratio.std() / len(draws) ** 0.5 < 0.02


def test_expected_score_is_the_mean_of_the_gradient_over_draws():
    q, p = gaussian(), gaussian()
    found = expected_score(q, p)
    draws = draw(q, torch.randn(200_000, 10))

    def total(mean, log_sd):
        return log_density(Gaussian(mean, log_sd), draws).mean()

    expected = torch.func.grad(total, argnums=(0, 1))(*p)
    scale = pack(expected).abs().max()
    torch.testing.assert_close(pack(found) / scale, pack(expected) / scale, atol=0.03, rtol=0)


def test_expected_score_is_minus_the_gradient_of_the_kl_to_the_prior():
    q, p = gaussian(), gaussian()
    slope = torch.func.grad(lambda prior: kl(q, prior))(p)
    torch.testing.assert_close(pack(expected_score(q, p)), -pack(slope))


def test_draws_have_the_mean_and_spread_they_should():
    drawn = draw(around(torch.tensor([1.0, -2.0]), 0.3), torch.randn(100_000, 2))
    torch.testing.assert_close(drawn.mean(0), torch.tensor([1.0, -2.0]), atol=0.01, rtol=0)
    torch.testing.assert_close(drawn.std(0), torch.tensor([0.3, 0.3]), atol=0.01, rtol=0)


def test_a_variance_is_kept_within_bounds():
    q = bounded(Gaussian(torch.zeros(3), torch.tensor([-50.0, 0.5, 80.0])))
    assert q.log_sd.tolist() == [LEAST, 0.5, MOST]


def test_log_likelihood_sums_rows_and_knows_the_noise():
    model = functional(MLP(2, (3,), 1))
    batch = make_batch(
        torch.randn(4, 2), torch.randn(4), w=torch.tensor([1.0, 2.0, 0.5, 3.0]), mask=torch.tensor([1.0, 1.0, 1.0, 0.0])
    )
    mean = model.apply(model.params, batch.x).squeeze(-1)
    rows = Normal(mean, 0.3).log_prob(batch.y)
    found = task_log_likelihood(model, squared, 0.3)(model.params, batch)
    torch.testing.assert_close(found, (rows * batch.w)[:3].sum())
    labels = batch._replace(y=torch.tensor([1.0, 0.0, 1.0, 1.0]))
    total = (labels.w * labels.mask).sum()
    mean_loss = task_loss(model, binary)(model.params, labels)
    torch.testing.assert_close(task_log_likelihood(model, binary)(model.params, labels), -mean_loss * total)
    # without a scale the squared loss itself, up to its constant
    torch.testing.assert_close(
        task_log_likelihood(model, squared)(model.params, batch),
        -task_loss(model, squared)(model.params, batch) * total - 0.5 * math.log(math.pi) * total,
    )


def test_the_predictive_is_a_mixture_over_draws():
    torch.manual_seed(3)
    draws = {
        name: value + 0.2 * torch.randn(50, *value.shape) for name, value in functional(MLP(2, (3,), 3)).params.items()
    }
    model, x = functional(MLP(2, (3,), 3)), torch.randn(5, 2)
    said = predictive(model, multiclass, draws, x)
    one = {name: value[7] for name, value in draws.items()}
    torch.testing.assert_close(said.samples[7], torch.softmax(model.apply(one, x), -1))
    torch.testing.assert_close(said.mean.sum(-1), torch.ones(5))
    single = functional(MLP(2, (3,), 1))
    draws = {name: value + 0.2 * torch.randn(50, *value.shape) for name, value in single.params.items()}
    said = predictive(single, squared, draws, x, 0.4)
    torch.testing.assert_close(said.variance, said.samples.var(0, unbiased=False) + 0.16)
