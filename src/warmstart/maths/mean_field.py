"""Gaussians over trees of parameters with a diagonal covariance, as means and log standard deviations."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core.trees import Tree, leaves, tree_map

LEAST, MOST = -9.0, 3.0  # of a log standard deviation: a variance neither collapses nor overflows


class Gaussian(NamedTuple):
    mean: Tree
    log_sd: Tree  # shaped like the mean


def around(mean: Tree, sd: float) -> Gaussian:
    """The same standard deviation everywhere."""
    return Gaussian(mean, tree_map(lambda leaf: torch.full_like(leaf, math.log(sd)), mean))


def bounded(q: Gaussian) -> Gaussian:
    return Gaussian(q.mean, tree_map(lambda leaf: leaf.clamp(LEAST, MOST), q.log_sd))


def draw(q: Gaussian, noise: Tree) -> Tree:
    """mean + sd * noise; noise may have leading sample axes."""
    return tree_map(lambda mean, log_sd, e: mean + log_sd.exp() * e, q.mean, q.log_sd, noise)


def kl(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q || p) = sum log(sp / sq) + (sq^2 + (mq - mp)^2) / (2 sp^2) - 1/2."""

    def one(mq: Tensor, lq: Tensor, mp: Tensor, lp: Tensor) -> Tensor:
        return (lp - lq + 0.5 * (torch.exp(2 * (lq - lp)) + ((mq - mp) * torch.exp(-lp)) ** 2 - 1)).sum()

    return _total(tree_map(one, q.mean, q.log_sd, p.mean, p.log_sd))


def log_density(p: Gaussian, params: Tree) -> Tensor:
    def one(value: Tensor, mean: Tensor, log_sd: Tensor) -> Tensor:
        return (-0.5 * ((value - mean) * torch.exp(-log_sd)) ** 2 - log_sd - 0.5 * math.log(2 * math.pi)).sum()

    return _total(tree_map(one, params, p.mean, p.log_sd))


def expected_score(q: Gaussian, p: Gaussian) -> Gaussian:
    """E_q of the gradient of log p in p's mean and log standard deviation, in closed form.

    mean: (mq - mp) / sp^2,    log_sd: (sq^2 + (mq - mp)^2) / sp^2 - 1
    """

    def of_mean(mq: Tensor, mp: Tensor, lp: Tensor) -> Tensor:
        return (mq - mp) * torch.exp(-2 * lp)

    def of_log_sd(mq: Tensor, lq: Tensor, mp: Tensor, lp: Tensor) -> Tensor:
        return torch.exp(2 * (lq - lp)) + ((mq - mp) * torch.exp(-lp)) ** 2 - 1

    return Gaussian(
        tree_map(of_mean, q.mean, p.mean, p.log_sd), tree_map(of_log_sd, q.mean, q.log_sd, p.mean, p.log_sd)
    )


def _total(parts: Tree) -> Tensor:
    total: Tensor = torch.stack(leaves(parts)).sum()
    return total
