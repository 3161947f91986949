"""Gauss-Newton inference on one task: the posterior of a network linearised where its mean is.

    anchor N(mu, sigma^2),    C' C = sigma R' R sigma,    R' R the Gauss-Newton curvature of the rows at the mean m
    v = (I + C' C)^-1 (sigma grad log p(rows | m) - (m - mu) / sigma),    m <- m + rate sigma v
    variances sigma^2 diag (I + C' C)^-1 = sigma^2 (1 - diag W' W),    W' W = C' (I + C C')^-1 C

The rate is the one of 1, 1/2, ..., 1/32 and 0 that leaves -log p(rows | m) - log N(m; mu, sigma^2) the lowest, so no
step is for the worse. A task has few rows, so what is factorised has a line for each row and output, and is
at least the identity. For a linear model one step is the exact posterior. q holds its marginal variances; a prediction
has all of its covariance sigma (I - W' W) sigma, linearised too (Immer, Korzepa and Bauer, 2021).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from warmstart.core import Batch, Likelihood, Model, Params, Prediction, Tree, task_log_likelihood
from warmstart.core.trees import unpack
from warmstart.maths.curvature import gauss_newton_root, jacobian
from warmstart.maths.mean_field import Gaussian, bounded, kl
from warmstart.maths.outer import State
from warmstart.maths.predictive import predictive
from warmstart.maths.prior import Prior, prior_of
from warmstart.maths.variational import Inference, Inner

RATES = 6  # 1 to 1/32
RANK = 100  # directions that a task's rows can narrow in a prediction; the others keep the prior's spread
LEAST = 1e-6  # of a variance relative to the anchor's: single precision holds no less


class Adapted(NamedTuple):
    """N(mean, sigma (I - narrowed' narrowed) sigma), of one size however many rows there were."""

    mean: Tensor  # [d]
    narrowed: Tensor  # [RANK, d], lines orthogonal to each other


def newton(model: Model, likelihood: Likelihood, noise: float, kl_weight: float = 1.0) -> Inference:
    """`noise` is the standard deviation of a squared likelihood's row; no draws are taken, and no rate is asked for.

    A weight of the prior is one over that of the rows.
    """
    log_likelihood = task_log_likelihood(model, likelihood, noise)
    root = gauss_newton_root(model, likelihood, noise)

    def value(mean: Tensor, batch: Batch) -> Tensor:
        return log_likelihood(unpack(mean, model.params), batch) / kl_weight

    def fit(q: Gaussian, batch: Batch, drawn: Tree) -> Tensor:
        """E_q log p(rows | params), of second order around the mean."""
        lines = root({}, unpack(q.mean, model.params), batch) * q.log_sd.exp()
        return kl_weight * value(q.mean, batch) - 0.5 * (lines**2).sum()

    def bound(q: Gaussian, anchor: Gaussian, batch: Batch, drawn: Tree) -> Tensor:
        return kl_weight * kl(q, anchor) - fit(q, batch, drawn)

    def start(q: Gaussian) -> Inner:
        return Inner(q, q.mean.new_zeros(()))  # whether rows were seen

    def step(anchor: Gaussian, inner: Inner, batch: Batch, drawn: Tree, rate: Any) -> Inner:
        mean, sd = inner.q.mean, anchor.log_sd.exp()
        c = root({}, unpack(mean, model.params), batch) * (sd / math.sqrt(kl_weight))
        w = _narrowing(c)
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

    return Inference(fit, bound, start, step, lambda *lead: ())


def _narrowing(c: Tensor) -> Tensor:
    """W. To the identity the rounding of a factorisation is added, so that there is one where rows say very much."""
    gram = c @ c.mT
    eye = torch.eye(len(c), dtype=c.dtype, device=c.device)
    rounding = torch.finfo(c.dtype).eps * torch.trace(gram)
    chol = torch.linalg.cholesky_ex(gram + (1 + rounding) * eye).L
    w: Tensor = torch.linalg.solve_triangular(chol, c, upper=False)
    return w


def linearised(common: Prior, model: Model, likelihood: Likelihood, noise: float, kl_weight: float = 1.0) -> Prior:
    """`common` with the whole covariance in its predictions."""
    root = gauss_newton_root(model, likelihood, noise)

    def finish(state: State, inner: Inner, batch: Batch) -> Adapted:
        sd = prior_of(state.theta).log_sd.exp()
        counted = batch._replace(w=batch.w * inner.opt)
        c = root({}, unpack(inner.q.mean, model.params), counted) * (sd / math.sqrt(kl_weight))
        c = torch.nan_to_num(c, 0.0, 0.0, 0.0)  # where a training went wrong; eigenvalues refuse it
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
            spread = (scaled**2).sum(-1) - ((scaled @ adapted.narrowed.mT) ** 2).sum(-1)
            return Prediction(likelihood.mean(out), spread.clamp(min=0) + noise**2)

        def beside(moved: Params, x: Tree) -> Tensor:
            found: Any = jvp(lambda own: model.apply(own, x), (params,), (moved,))
            out: Tensor = found[0] + found[1]
            return out

        # a root of I - W' W, since the lines of W are orthogonal
        lengths = (adapted.narrowed**2).sum(-1).clamp(max=1)
        part = (drawn @ adapted.narrowed.mT) / (1 + torch.sqrt(1 - lengths))
        moved = sd * (drawn - part @ adapted.narrowed)
        return predictive(model._replace(apply=beside), likelihood, unpack(moved, model.params), x, noise)

    return common._replace(finish=finish, predict=predict)
