"""Surrogates against what generated f, and against other libraries' solutions."""

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from warmstart.core import InputError
from warmstart.metrics.ranking import spearman
from warmstart.selection.subsets import indicators, sample_subsets
from warmstart.selection.surrogate import Config, fit, judge

TRUE = torch.tensor([-3.0, -1.0, 0.5, 2.0, 0.0, 1.0, 0.25, 4.0]).double()


def data(count=50, noise=0.0, seed=0):
    z = indicators(sample_subsets(8, 3, count, seed), 8).double()
    draw = torch.Generator().manual_seed(seed)
    return z, 7.0 + z.double() @ TRUE + noise * torch.randn(count, generator=draw).double()


def test_least_squares_finds_the_coefficients_relative_to_their_mean():
    z, f = data()
    found = fit(z, f, Config("least squares", draws=5))
    torch.testing.assert_close(found.theta, TRUE - TRUE.mean())
    torch.testing.assert_close(found.predict(z.double()), f)


def test_a_constant_added_to_f_changes_no_coefficient():
    z, f = data(noise=0.3)
    for kind in ("least squares", "ridge", "lasso", "kernel"):
        one, other = fit(z, f, Config(kind, draws=2)), fit(z, f + 100.0, Config(kind, draws=2))
        torch.testing.assert_close(one.theta, other.theta)
        torch.testing.assert_close(one.predict(z.double()) + 100.0, other.predict(z.double()))


def test_ridge_agrees_with_sklearn():
    z, f = data(noise=0.5)
    penalty = 0.3 * float(z.var(0, correction=0).mean()) * len(z)
    theirs = Ridge(alpha=penalty).fit(z.numpy(), f.numpy())
    np.testing.assert_allclose(fit(z, f, Config("ridge", penalty=0.3, draws=2)).theta, theirs.coef_, rtol=1e-6)


def test_kernel_agrees_with_sklearn_and_orders_sources():
    z, f = data(noise=0.1)
    found = fit(z, f, Config("kernel", penalty=0.2, length=1.5, draws=2))
    gamma = 1 / (2 * 1.5 * 3)
    theirs = KernelRidge(alpha=0.2, kernel="rbf", gamma=gamma).fit(z.numpy(), (f - f.mean()).numpy())
    np.testing.assert_allclose(found.predict(z.double()), theirs.predict(z.numpy()) + float(f.mean()), rtol=1e-6)
    assert spearman(found.theta, TRUE) > 0.95


def test_lasso_leaves_out_sources_that_do_nothing():
    z, _ = data(56)
    f = 3.0 * z[:, 1].double() - 2.0 * z[:, 6].double()
    found = fit(z, f, Config("lasso", penalty=0.2, draws=2))
    assert set(found.theta.abs().gt(0.2).nonzero().flatten().tolist()) == {1, 6}
    assert found.theta[1] > 0 > found.theta[6]


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    inside = []
    for seed in range(20):
        z, f = data(50, noise=1.0, seed=seed)
        found = fit(z, f, Config("least squares", draws=100, level=0.9), seed)
        truth = TRUE - TRUE.mean()
        inside.append(((found.low <= truth) & (truth <= found.high)).double().mean())
    assert 0.8 < torch.stack(inside).mean() < 0.97


def test_fewer_subsets_than_sources_are_noted_and_solved_by_ridge():
    z, f = data(6)
    found = fit(z, f, Config("least squares", draws=2))
    assert "under-determined" in found.note
    torch.testing.assert_close(found.theta, fit(z, f, Config("ridge", draws=2)).theta)


def test_quality_is_of_held_out_subsets():
    z, f = data(56, noise=0.5)
    quality = judge(fit(z[:40], f[:40], Config(draws=2)), z[40:], f[40:])
    assert quality.spearman > 0.9 and quality.error < 0.3 * quality.variance
    assert quality.variance == pytest.approx(float(f[40:].var(correction=0)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_an_f_that_is_not_finite_is_refused(bad):
    z, f = data()
    f[3] = bad
    with pytest.raises(InputError, match="finite"):
        fit(z, f)


def test_one_subset_is_not_enough():
    z, f = data()
    with pytest.raises(InputError, match="two subsets"):
        fit(z[:1], f[:1])


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="least squares, ridge"):
        fit(*data(), Config("forest"))
