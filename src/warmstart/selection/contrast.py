"""Correct-n-Contrast: features in which rows of one class lie together, whatever a first model made of them.

    first     a plain model of the target;  e(x), its guesses
    second    (1 - a) L + a L_contrast;  an anchor's positives have its label and another guess, its negatives its
              guess and another label;   L_contrast = mean over positives of -log s_p / (s_p + sum_n s_n)

Zhang et al., 2022. a is tuned, and the second model's rate with it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value

from warmstart.core import Likelihood, Model, Params
from warmstart.core.trees import take
from warmstart.maths.optim import Optimiser
from warmstart.selection.final import Config, Fitted, keep_best
from warmstart.selection.measures import Measure, guess
from warmstart.selection.rates import scaled, shuffled
from warmstart.selection.training import Drawn, Inner, Step, outputs, shares, train_models
from warmstart.tasks.transfer import Transfer

TEMPERATURE = 0.1


def contrast_loss(features: Tensor, y: Tensor, guesses: Tensor) -> Tensor:
    """Over the rows of a batch that have positives."""
    unit = features / features.norm(dim=-1, keepdim=True).clamp(min=1e-8)
    score = unit @ unit.T / TEMPERATURE
    same, alike = y[:, None] == y, guesses[:, None] == guesses
    positive, negative = (same & ~alike).to(score.dtype), (~same & alike).to(score.dtype)
    others = torch.logsumexp(score + torch.where(negative > 0, 0.0, -1e9), -1, keepdim=True)
    each = torch.logaddexp(score, others) - score
    count = positive.sum(-1)
    mean = (positive * each).sum(-1) / count.clamp(min=1.0)
    total: Tensor = mean.sum() / (count > 0).to(score.dtype).sum().clamp(min=1.0)
    return total


def contrast_step(model: Model, likelihood: Likelihood, optimiser: Optimiser) -> Step:
    """`extra`: a. The group of a row is the first model's guess."""

    def step(lr: Tensor, inner: Inner, drawn: Drawn) -> tuple[Inner, Tensor]:
        share = inner.extra["share"]

        def loss(phi: Params) -> Tensor:
            plain = likelihood.loss(model.apply(phi, drawn.rows.x), drawn.rows.y).mean()
            apart = contrast_loss(model.features(phi, drawn.rows.x), drawn.rows.y, drawn.group)
            total: Tensor = (1 - share) * plain + share * apart
            return total

        grads, value = grad_and_value(loss)(inner.phi)
        phi, opt = optimiser.update(inner.phi, grads, inner.opt, lr)
        return Inner(phi, opt, inner.extra), value

    return step


CONTRAST = scaled(contrast_step)


def fit(transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int) -> Fitted:
    device = transfer.pool.y.device
    members = torch.zeros(trials, transfer.sources, device=device)
    share = shares(transfer, members)
    first = train_models(transfer, share[:1], cfg.training, seed)
    span = slice(int(transfer.pool.offsets[-2]), int(transfer.pool.offsets[-1]))
    group = torch.zeros_like(transfer.group)
    group[span] = guess(outputs(transfer, cfg.training, first, take(transfer.pool.x, span)))[0].long()
    extra = {"share": torch.linspace(0.1, 0.9, trials, device=device), "rate": shuffled(trials, seed).to(device)}
    told = transfer._replace(group=group)
    phi = train_models(told, share, cfg.training, seed + 1, step=CONTRAST, extra=extra)
    return keep_best(transfer, phi, members, measure, cfg)
