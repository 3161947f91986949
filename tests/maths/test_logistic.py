"""Small logistic regressions: one round against the written-out posterior, all rounds against an integral."""

import numpy as np
import pytest
from scipy.special import expit

from warmstart.maths.logistic import believe, logits, omega, probability, weigh

GRID = np.linspace(-12, 12, 4001)


def test_one_round_is_a_weighted_regression():
    draw = np.random.default_rng(0)
    z, y, who = draw.normal(size=(9, 2)), (draw.random(9) < 0.6).astype(float), np.array([0, 0, 0, 2, 2, 2, 2, 0, 0])
    weights, prior = draw.uniform(0.1, 0.25, 9), draw.normal(size=(3, 2))
    cov = np.array([[0.7, 0.2], [0.2, 0.4]])
    found = weigh(z, y, who, weights, prior, cov)
    assert np.allclose(found.mean[1], prior[1]) and np.allclose(found.cov[1], cov)  # one who showed nothing
    own = who == 2
    precision = np.linalg.inv(cov) + (z[own] * weights[own, None]).T @ z[own]
    pull = np.linalg.solve(cov, prior[2]) + z[own].T @ (y[own] - 0.5)
    assert np.allclose(found.mean[2], np.linalg.solve(precision, pull))
    mean, variance = logits(z, who, found)
    assert mean[4] == pytest.approx(z[4] @ found.mean[2]) and variance[4] == pytest.approx(z[4] @ found.cov[2] @ z[4])


def test_the_posterior_of_a_level_is_that_of_an_integral():
    y, prior, variance = np.array([1.0, 1, 1, 0, 1, 1, 1, 1]), -0.4, 0.8
    found = believe(np.ones((8, 1)), y, np.zeros(8, dtype=int), np.array([[prior]]), np.array([[variance]]), 12)
    density = np.exp(-((GRID - prior) ** 2) / (2 * variance)) * expit(GRID) ** 7 * expit(-GRID)
    density /= density.sum()
    mean = (GRID * density).sum()
    assert found.mean[0, 0] == pytest.approx(mean, abs=0.05)
    assert found.cov[0, 0, 0] == pytest.approx(((GRID - mean) ** 2 * density).sum(), rel=0.25)


def test_the_bound_touches_and_probabilities_are_averaged():
    s = np.linspace(-4, 4, 9)
    xi = np.abs(s) + 0.3
    bound = -np.log1p(np.exp(-xi)) + (s - xi) / 2 - omega(xi**2) * (s**2 - xi**2) / 2
    exact = -np.log1p(np.exp(-s))
    assert (bound <= exact + 1e-12).all()
    assert omega(np.array([0.0]))[0] == pytest.approx(0.25)
    for mean, variance in ((1.3, 0.5), (-0.7, 2.0)):
        density = np.exp(-((GRID - mean) ** 2) / (2 * variance))
        assert probability(np.array([mean]), np.array([variance]))[0] == pytest.approx(
            (expit(GRID) * density).sum() / density.sum(), abs=0.01
        )
