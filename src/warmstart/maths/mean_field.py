"""Gaussians over vectors of parameters with a diagonal covariance, as means and log standard deviations.

All parameters of a network lie in one vector (`core.trees.pack`), so that whatever is done to them is few operations
however many layers there are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LEAST, MOST = -9.0, 3.0  # of a log standard deviation: a variance neither collapses nor overflows


class Gaussian(NamedTuple):
    mean: Tensor  # [..., d]
    log_sd: Tensor


def around(mean: Tensor, sd: float) -> Gaussian:
    """The same standard deviation everywhere."""
    return Gaussian(mean, torch.full_like(mean, math.log(sd)))


def bounded(q: Gaussian) -> Gaussian:
    return Gaussian(q.mean, q.log_sd.clamp(LEAST, MOST))


def draw(q: Gaussian, noise: Tensor) -> Tensor:
    """mean + sd * noise; noise may have leading sample axes."""
    return q.mean + q.log_sd.exp() * noise


def kl(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q || p) = sum log(sp / sq) + (sq^2 + (mq - mp)^2) / (2 sp^2) - 1/2."""
    apart = ((q.mean - p.mean) * torch.exp(-p.log_sd)) ** 2
    return (p.log_sd - q.log_sd + 0.5 * (torch.exp(2 * (q.log_sd - p.log_sd)) + apart - 1)).sum(-1)


def log_density(p: Gaussian, vector: Tensor) -> Tensor:
    apart = ((vector - p.mean) * torch.exp(-p.log_sd)) ** 2
    return (-0.5 * apart - p.log_sd - 0.5 * math.log(2 * math.pi)).sum(-1)


def expected_score(q: Gaussian, p: Gaussian) -> Gaussian:
    """E_q of the gradient of log p in p's mean and log standard deviation, in closed form.

    mean: (mq - mp) / sp^2,    log_sd: (sq^2 + (mq - mp)^2) / sp^2 - 1
    """
    away = q.mean - p.mean
    return Gaussian(
        away * torch.exp(-2 * p.log_sd),
        torch.exp(2 * (q.log_sd - p.log_sd)) + (away * torch.exp(-p.log_sd)) ** 2 - 1,
    )
