"""Closed forms against dense multivariate normals in float64."""

import pytest
import torch
from scipy.stats import multivariate_t
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from warmstart.maths.gaussian import fit_of, log_normal, log_student, nothing, observe, posterior

NOISE = torch.tensor(0.37, dtype=torch.float64)


def rows(n, q, columns=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return draw(n, q), draw(n, columns) + 0.5


def see(g, r, weight=None):
    weight = torch.ones(len(g), dtype=g.dtype) if weight is None else weight
    return observe(nothing(g.shape[1], r.shape[1], r), g, r, weight, NOISE)


def log_evidence(g, r, weight, noise):
    return log_normal(fit_of(g, r, weight, noise))


def dense_density(g, r):
    covariance = g @ g.T + NOISE * torch.eye(len(g), dtype=g.dtype)
    return MultivariateNormal(torch.zeros(len(g), dtype=g.dtype), covariance).log_prob(r.T)


@pytest.mark.parametrize(("n", "q"), [(3, 7), (7, 3), (4, 4)])
def test_log_evidence_is_the_density_of_the_rows_in_either_space(n, q):
    g, r = rows(n, q)
    ones = torch.ones(n, dtype=g.dtype)
    assert_close(log_evidence(g, r, ones, NOISE), dense_density(g, r))
    assert_close(log_normal(posterior(see(g, r)).fit), dense_density(g, r))


@pytest.mark.parametrize(("n", "q"), [(3, 7), (7, 3)])
def test_with_a_scale_of_their_own_rows_have_the_density_of_a_multivariate_t(n, q):
    g, r = rows(n, q)
    ones, dof = torch.ones(n, dtype=g.dtype), torch.tensor(4.7, dtype=g.dtype)
    covariance = torch.kron(torch.eye(2, dtype=g.dtype), g @ g.T + NOISE * torch.eye(n, dtype=g.dtype))
    expected = multivariate_t(shape=covariance.numpy(), df=4.7).logpdf(r.T.flatten().numpy())
    for fit in (fit_of(g, r, ones, NOISE), posterior(see(g, r)).fit):
        assert_close(log_student(fit, ones.sum(), dof), torch.tensor(expected))
    far = log_student(fit, ones.sum(), torch.tensor(1e9, dtype=g.dtype))
    assert_close(far, dense_density(g, r).sum(), rtol=1e-5, atol=1e-5)


def test_posterior_is_gaussian_process_conditioning():
    g, r = rows(5, 3)
    new, _ = rows(2, 3, seed=1)
    found = posterior(see(g, r))
    kernel = g @ g.T + NOISE * torch.eye(5, dtype=g.dtype)
    assert_close(new @ found.mean, new @ g.T @ torch.linalg.solve(kernel, r))
    covariance = new @ new.T - new @ g.T @ torch.linalg.solve(kernel, g @ new.T)
    assert_close(new @ found.root.T @ found.root @ new.T, covariance)


def test_before_any_row_the_posterior_is_the_prior():
    found = posterior(nothing(3, 2, NOISE))
    assert_close(found.mean, torch.zeros(3, 2, dtype=torch.float64))
    assert_close(found.root, torch.eye(3, dtype=torch.float64))
    assert_close(log_normal(found.fit), torch.zeros(2, dtype=torch.float64))


def test_rows_one_by_one_in_another_order_say_the_same():
    g, r = rows(6, 4)
    seen = nothing(4, 2, r)
    one = torch.ones(1, dtype=g.dtype)
    for i in (4, 0, 5, 2, 1, 3):
        seen = observe(seen, g[i : i + 1], r[i : i + 1], one, NOISE)
    assert_close(seen, see(g, r))


@pytest.mark.parametrize("q", [3, 9])
def test_a_row_of_weight_two_is_two_rows_and_of_weight_zero_is_none(q):
    g, r = rows(3, q)
    weight = torch.tensor([2.0, 0.0, 1.0], dtype=g.dtype)
    twice = [0, 0, 2]
    assert_close(see(g, r, weight), see(g[twice], r[twice]))
    assert_close(log_evidence(g, r, weight, NOISE), dense_density(g[twice], r[twice]))


@pytest.mark.parametrize("q", [3, 9])
def test_gradient_in_the_noise_is_finite_with_padding_and_matches_finite_differences(q):
    g, r = rows(4, q)
    weight = torch.tensor([1.0, 0.0, 1.3, 0.0], dtype=g.dtype)
    value = lambda noise: log_evidence(g, r, weight, noise)[0]  # noqa: E731
    slope = torch.func.grad(value)(NOISE)
    assert_close(slope, (value(NOISE + 1e-5) - value(NOISE - 1e-5)) / 2e-5, rtol=1e-6, atol=1e-6)


def test_a_stack_of_tasks_is_each_task():
    pairs = [rows(4, 3, seed=seed) for seed in range(3)]
    g, r = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    weight = torch.rand(3, 4, generator=torch.Generator().manual_seed(5), dtype=g.dtype)
    found = log_evidence(g, r, weight, NOISE)
    for i in range(3):
        assert_close(found[i], log_evidence(g[i], r[i], weight[i], NOISE))


def test_float32_survives_many_equal_rows_with_little_noise():
    g, r = rows(1, 5)
    g, r = g.float().repeat(2000, 1), r.float().repeat(2000, 1)
    found = posterior(observe(nothing(5, 2, r), g, r, torch.ones(2000), torch.tensor(1e-5)))
    assert_close(g[:1] @ found.mean, r[:1], rtol=1e-3, atol=1e-3)
    assert (found.fit.square >= 0).all()
