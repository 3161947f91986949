"""Gauss-Newton inference on one task: the posterior of a network linearised where its mean is.

    anchor N(mu, sigma^2),    C' C = sigma R' R sigma,    R' R the Gauss-Newton curvature of the rows at the mean m
    v = (I + C' C)^-1 (sigma grad log p(rows | m) - (m - mu) / sigma),    m <- m + rate sigma v
    variances sigma^2 diag (I + C' C)^-1 = sigma^2 (1 - diag W' W),    W' W = C' (I + C C')^-1 C

The rate is the one of 1, 1/2, ..., 1/32 and 0 that leaves -log p(rows | m) - log N(m; mu, sigma^2) the lowest, so no
step is for the worse. What is factorised has a line for each row and output, or for each parameter where these are
fewer, and is at least the identity. For a linear model one step is the exact posterior. q holds its marginal variances;
a prediction has all of its covariance sigma (I - W' W) sigma, linearised too (Immer, Korzepa and Bauer, 2021).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from warmstart.core import Batch, InputError, Likelihood, Model, Params, Prediction, Tree, task_log_likelihood
from warmstart.core.trees import unpack
from warmstart.maths.curvature import gauss_newton_root, jacobian
from warmstart.maths.expectation import size
from warmstart.maths.mean_field import Gaussian, bounded
from warmstart.maths.outer import State
from warmstart.maths.predictive import predictive
from warmstart.maths.prior import Prior, prior_of
from warmstart.maths.variational import Inference, Inner

RATES = 6  # 1 to 1/32
WHOLE = 1500  # parameters up to which a prediction knows all of the covariance
RANK = 100  # directions that a task's rows can narrow where there are more; the others keep the prior's spread
LEAST = 1e-6  # of a variance relative to the anchor's: single precision holds no less


class Adapted(NamedTuple):
    """N(mean, sigma S sigma), of one size however many rows there were."""

    mean: Tensor  # [d]
    lines: Tensor  # V [d, d] with S = V' V; or N [RANK, d], orthogonal to each other, with S = I - N' N


def newton(model: Model, likelihood: Likelihood, noise: float, kl_weight: float = 1.0) -> Inference:
    """`noise` is the standard deviation of a squared likelihood's row; no draws are taken, and no rate is asked for.

    A weight of the prior is one over that of the rows.
    """
    if kl_weight == 0:
        raise InputError("a kl_weight above 0 for Newton's method", "0", "raise it: without a prior there is no mode")
    log_likelihood = task_log_likelihood(model, likelihood, noise)
    root = gauss_newton_root(model, likelihood, noise)

    def value(mean: Tensor, batch: Batch) -> Tensor:
        return log_likelihood(unpack(mean, model.params), batch) / kl_weight

    def scaled(mean: Tensor, anchor: Gaussian, batch: Batch) -> Tensor:
        """C."""
        return root({}, unpack(mean, model.params), batch) * (anchor.log_sd.exp() / math.sqrt(kl_weight))

    def fit(q: Gaussian, batch: Batch, drawn: Tree) -> Tensor:
        """E_q log p(rows | params), of second order around the mean."""
        lines = root({}, unpack(q.mean, model.params), batch) * q.log_sd.exp()
        return kl_weight * value(q.mean, batch) - 0.5 * (lines**2).sum()

    def bound(q: Gaussian, anchor: Gaussian, batch: Batch, drawn: Tree) -> Tensor:
        """Minus the log evidence of the network linearised at the mean, which is to be the mode."""
        c, apart = scaled(q.mean, anchor, batch), (q.mean - anchor.mean) * torch.exp(-anchor.log_sd)
        half = torch.log(torch.diagonal(_factor(_shorter(c)), dim1=-2, dim2=-1)).sum(-1)
        return kl_weight * (0.5 * (apart**2).sum() + half - value(q.mean, batch))

    def expect(q: Gaussian, anchor: Gaussian, seen: Batch, batch: Batch, drawn: Tree) -> Tensor:
        """By the whole covariance that the rows seen leave, of second order around the mean."""
        lines = root({}, unpack(q.mean, model.params), batch) * anchor.log_sd.exp()
        less = lines @ _narrowing(scaled(q.mean, anchor, seen)).mT
        return kl_weight * value(q.mean, batch) - 0.5 * ((lines**2).sum() - (less**2).sum())

    def start(q: Gaussian) -> Inner:
        return Inner(q, q.mean.new_zeros(()))  # whether rows were seen

    def step(anchor: Gaussian, inner: Inner, batch: Batch, drawn: Tree, rate: Any) -> Inner:
        mean, sd = inner.q.mean, anchor.log_sd.exp()
        w = _narrowing(scaled(mean, anchor, batch))
        slope = sd * grad(value)(mean, batch) - (mean - anchor.mean) / sd
        along = sd * (slope - w.mT @ (w @ slope))

        def height(rate: Tensor) -> Tensor:
            there = mean + rate * along
            found = 0.5 * (((there - anchor.mean) / sd) ** 2).sum() - value(there, batch)
            return torch.where(torch.isfinite(found), found, float("inf"))

        halves = 0.5 ** torch.arange(RATES, dtype=mean.dtype, device=mean.device)
        rates = torch.cat([halves, torch.zeros_like(halves[:1])])
        heights = vmap(height)(rates)
        best = (rates * (heights == heights.min())).max()
        narrow = (1 - (w**2).sum(0)).clamp(min=LEAST)
        q = Gaussian(mean + best * torch.nan_to_num(along, 0.0, 0.0, 0.0), anchor.log_sd + 0.5 * narrow.log())
        return Inner(bounded(q), torch.ones_like(inner.opt))

    return Inference(fit, bound, start, step, lambda *lead: (), expect)


def _narrowing(c: Tensor) -> Tensor:
    """W."""
    c = _shorter(c)
    w: Tensor = torch.linalg.solve_triangular(_factor(c), c, upper=False)
    return w


def _shorter(c: Tensor) -> Tensor:
    """Where C has more lines than parameters, a square one with the same C' C."""
    if len(c) <= c.shape[-1]:
        return c
    gram = c.mT @ c
    square: Tensor = torch.linalg.cholesky_ex(gram + _rounding(gram)).L.mT
    return square


def _factor(c: Tensor) -> Tensor:
    """The lower factor of I + C C'."""
    gram = c @ c.mT
    eye = torch.eye(len(c), dtype=c.dtype, device=c.device)
    lower: Tensor = torch.linalg.cholesky_ex(gram + eye + _rounding(gram)).L
    return lower


def _rounding(gram: Tensor) -> Tensor:
    """Of a factorisation, times the identity. With it there is a factor where rows say very much."""
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.finfo(gram.dtype).eps * torch.trace(gram) * eye


def linearised(common: Prior, model: Model, likelihood: Likelihood, noise: float, kl_weight: float = 1.0) -> Prior:
    """`common` with the whole covariance in its predictions."""
    root, whole = gauss_newton_root(model, likelihood, noise), size(model) <= WHOLE

    def finish(state: State, inner: Inner, batch: Batch) -> Adapted:
        sd = prior_of(state.theta).log_sd.exp()
        counted = batch._replace(w=batch.w * inner.opt)
        c = root({}, unpack(inner.q.mean, model.params), counted) * (sd / math.sqrt(kl_weight))
        c = torch.nan_to_num(c, 0.0, 0.0, 0.0)  # where a training went wrong; eigenvalues refuse it
        if whole:
            chol, eye = _factor(c.mT), torch.eye(c.shape[-1], dtype=c.dtype, device=c.device)
            return Adapted(inner.q.mean, torch.linalg.solve_triangular(chol, eye, upper=False))
        squares, vectors = torch.linalg.eigh(c @ c.mT)  # rising
        w = (vectors * torch.rsqrt(1 + squares.clamp(min=0))).mT @ c
        kept = w.flip(0)[:RANK]
        return Adapted(inner.q.mean, torch.cat([kept, kept.new_zeros(RANK - len(kept), kept.shape[-1])]))

    def predict(state: State, adapted: Adapted, x: Tree, drawn: Tree) -> Prediction:
        sd = prior_of(state.theta).log_sd.exp()
        params: Params = unpack(adapted.mean, model.params)
        if likelihood.name == "squared":
            out, lines = jacobian(model, {}, params, x)
            scaled = lines.squeeze(1) * sd
            along = ((scaled @ adapted.lines.mT) ** 2).sum(-1)
            spread = along if whole else ((scaled**2).sum(-1) - along).clamp(min=0)
            return Prediction(likelihood.mean(out), spread + noise**2)

        def beside(moved: Params, x: Tree) -> Tensor:
            found: Any = jvp(lambda own: model.apply(own, x), (params,), (moved,))
            out: Tensor = found[0] + found[1]
            return out

        moved = sd * (drawn @ adapted.lines if whole else _spread(drawn, adapted.lines))
        return predictive(model._replace(apply=beside), likelihood, unpack(moved, model.params), x, noise)

    return common._replace(finish=finish, predict=predict)


def _spread(drawn: Tensor, narrowed: Tensor) -> Tensor:
    """Draws with covariance I - N' N, whose root is at hand since the lines of N are orthogonal."""
    lengths = (narrowed**2).sum(-1).clamp(max=1)
    part = (drawn @ narrowed.mT) / (1 + torch.sqrt(1 - lengths))
    return drawn - part @ narrowed
