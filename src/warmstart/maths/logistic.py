"""Gaussian beliefs about the weights of many small logistic regressions, by a quadratic bound of the likelihood.

    log sigma(s) >= log sigma(xi) + (s - xi) / 2 - omega(xi) (s^2 - xi^2) / 2,      omega(xi) = tanh(xi / 2) / (2 xi)

With the best xi of each row, xi^2 = E s^2, rows are those of a linear regression with precisions omega, so that beliefs
stay Gaussian and every round raises the bound. Jaakkola and Jordan, 2000.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit

from warmstart.maths.bilinear import Events, Floats, Ints, Side, condition, gather


def omega(square: Floats) -> Floats:
    """Of E s^2."""
    xi = np.sqrt(np.maximum(square, 1e-12))
    found: Floats = np.tanh(xi / 2) / (2 * xi)
    return found


def weigh(z: Floats, y: Floats, who: Ints, weights: Floats, prior: Floats, cov: Floats) -> Side:
    """Beliefs about w of each of `len(prior)` regressions, w ~ N(prior, cov), from rows z . w of y in {0, 1}."""
    rows = (who, np.arange(len(y)))
    shape = (len(prior), len(y))
    parts = (weights, y - 0.5, np.zeros(len(y)))
    events = Events(*(csr_array((part, rows), shape=shape) for part in parts))
    sure = Side(z, np.zeros((len(z), 0, 0)), np.arange(0))
    return condition(gather(events, sure), np.zeros_like(prior), np.arange(prior.shape[1]), prior, cov)


def logits(z: Floats, who: Ints, side: Side) -> tuple[Floats, Floats]:
    """Mean and variance of z . w of each row."""
    mean = (z * side.mean[who]).sum(1)
    variance: Floats = np.einsum("nd,nde,ne->n", z, side.cov[who], z, optimize=True)
    return mean, variance


def at_prior(z: Floats, who: Ints, prior: Floats, cov: Floats) -> Floats:
    """omega of rows of which only the prior is known: where clicks are rare, logits are far from zero at once."""
    variance = np.einsum("nd,de,ne->n", z, cov, z, optimize=True)
    return omega((z * prior[who]).sum(1) ** 2 + variance)


def believe(z: Floats, y: Floats, who: Ints, prior: Floats, cov: Floats, rounds: int) -> Side:
    """`weigh` with the best bound, found in so many rounds."""
    weights = at_prior(z, who, prior, cov)
    for _ in range(rounds - 1):
        mean, variance = logits(z, who, weigh(z, y, who, weights, prior, cov))
        weights = omega(mean**2 + variance)
    return weigh(z, y, who, weights, prior, cov)


def probability(mean: Floats, variance: Floats) -> Floats:
    """E sigma(s) of a Gaussian s, by the probit that is closest (MacKay, 1992)."""
    found: Floats = expit(mean / np.sqrt(1 + np.pi * variance / 8))
    return found
