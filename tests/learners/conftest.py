"""Written out by hand, for learners that infer by descent: their inner loop, and tasks solved on paper."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from warmstart.core import functional, make_batch, make_task
from warmstart.core.trees import flatten, leaves, tree_map, unflatten, unpack
from warmstart.engine.noise import generator, train_noise
from warmstart.maths.mean_field import Gaussian

INPUTS, TASKS, NOISE = 3, 4, 0.6


def distance(q, p):
    """KL(q || p) by torch.distributions."""
    return kl_divergence(Normal(q.mean, q.log_sd.exp()), Normal(p.mean, p.log_sd.exp())).sum()


def misfit(model, vector, batch, sd):
    rows = Normal(model.apply(unpack(vector, model.params), batch.x).squeeze(-1), sd).log_prob(batch.y)
    return -(rows * batch.w * batch.mask).sum()


def bound(model, q, anchor, batch, noise, cfg):
    """Negative evidence bound, one draw after another."""
    total = cfg.kl_weight * distance(q, anchor)
    for drawn in noise:
        total = total + misfit(model, q.mean + q.log_sd.exp() * drawn, batch, cfg.noise) / len(noise)
    return total


def infer(model, anchor, batch, noise, cfg):
    """Plain gradient descent on the bound from the anchor; noise [steps, draws, ...]; differentiable."""
    q = anchor
    for drawn in noise:
        slopes = torch.autograd.grad(bound(model, q, anchor, batch, drawn, cfg), list(q), create_graph=True)
        q = Gaussian(*(value - cfg.inner_lr * slope for value, slope in zip(q, slopes, strict=True)))
    return q


def both(task):
    """Support and query rows together, of one task or of a stack."""
    axis = task.support.y.dim() - 1
    return tree_map(lambda s, q: torch.cat([s, q], axis), task.support, task.query)


def uneven():
    """Tasks with weights, padding and an input that is always 0, so that some weights meet no gradient at all."""

    def rows(count, lengths):
        mask = (torch.arange(count) < torch.tensor(lengths)[:, None]).double()
        x = torch.randn(TASKS, count, 2) * torch.tensor([1.0, 0.0])
        return make_batch(x, torch.randn(TASKS, count) + 0.7, torch.rand(TASKS, count) + 0.5, mask)

    return make_task(rows(4, [4, 2, 0, 3]), rows(3, [3, 3, 2, 1]))


def drawn(learner):
    return train_noise(learner.noise, TASKS, generator(3))


def finite_differences(value, theta, slope, size=1e-5, tolerance=1e-6):
    """The gradient along random directions against central differences."""
    structure = flatten(theta)[1]
    for _ in range(4):
        way = [torch.randn_like(leaf) for leaf in leaves(theta)]
        ends = [
            value(unflatten([leaf + sign * size * w for leaf, w in zip(leaves(theta), way, strict=True)], structure))
            for sign in (1, -1)
        ]
        along = sum((g * w).sum() for g, w in zip(leaves(slope), way, strict=True))
        torch.testing.assert_close((ends[0] - ends[1]) / (2 * size), along, rtol=tolerance, atol=tolerance)


def linear():
    """y = w x, a prior over w that is the same for no two directions, and inputs along the axes: posteriors are
    diagonal."""
    model = functional(nn.Linear(INPUTS, 1, bias=False))
    theta = {"mean": torch.tensor([0.4, -1.0, 0.2]), "log_sd": torch.tensor([-0.3, 0.2, -0.8])}
    rows = torch.eye(INPUTS).repeat(2, 1) * torch.linspace(0.5, 1.5, 2 * INPUTS)[:, None]
    support = make_batch(rows.expand(TASKS, -1, -1), torch.randn(TASKS, len(rows)) + 0.7)
    query = make_batch((2 * torch.eye(INPUTS)).expand(TASKS, -1, -1), torch.randn(TASKS, INPUTS) - 0.4)
    return model, theta, make_task(support, query)


def exact_draws(*lead):
    """Draws whose mean and covariance are those of a standard normal exactly: +- sqrt(d) along every axis."""
    points = math.sqrt(INPUTS) * torch.cat([torch.eye(INPUTS), -torch.eye(INPUTS)])
    return points.expand(*lead, 2 * INPUTS, INPUTS)


def posterior(theta, batch):
    """Of a stack of linear tasks: [t, inputs]."""
    mean, log_sd = theta["mean"], theta["log_sd"]
    precision = torch.exp(-2 * log_sd) + (batch.x**2).sum(1) / NOISE**2
    pull = torch.exp(-2 * log_sd) * mean + (batch.x * batch.y[..., None]).sum(1) / NOISE**2
    return Gaussian(pull / precision, -0.5 * precision.log())


def log_marginal(theta, batch):
    """Sum over tasks of log N(y; x m, x S x' + noise)."""
    mean, log_sd = theta["mean"], theta["log_sd"]
    total = torch.zeros(())
    for x, y in zip(batch.x, batch.y, strict=True):
        covariance = x @ torch.diag(torch.exp(2 * log_sd)) @ x.T + NOISE**2 * torch.eye(len(x))
        total = total + MultivariateNormal(x @ mean, covariance).log_prob(y)
    return total


def expected_fit(q, batch):
    """Sum over linear tasks of E_q log p(y | x, w)."""
    mean, variance = q.mean.unsqueeze(1), torch.exp(2 * q.log_sd).unsqueeze(1)
    residual = (batch.y - (batch.x * mean).sum(-1)) ** 2 + (batch.x**2 * variance).sum(-1)
    return (-residual / (2 * NOISE**2) - math.log(NOISE) - 0.5 * math.log(2 * math.pi)).sum()


@pytest.fixture
def by_hand(float64):
    return SimpleNamespace(**{name: value for name, value in globals().items() if callable(value) or name == "NOISE"})
