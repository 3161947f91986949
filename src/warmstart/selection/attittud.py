"""Gradient decomposition (ATTITTUD): of the sources' gradient, the part that helps the target counts most.

    B      orthonormal basis of the gradients of some target rows
    g      B c + rest, the sources' gradient;   m = B^T grad L_t
    step   grad L_t + a (c where c m > 0) + b (c where c m < 0) + r rest

Dery, Dauphin and Grangier, 2021. a, b and r are tuned, and the rate with them; the basis is made of the mean
gradients of a few parts of the target's rows, by Gram-Schmidt, which a CUDA graph can hold.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor
from torch.func import grad, vmap

from warmstart.core import Likelihood, Model, Params
from warmstart.core.trees import pack, unpack
from warmstart.maths.optim import Optimiser
from warmstart.selection.final import Config, Fitted, keep_best, tune
from warmstart.selection.measures import Measure
from warmstart.selection.rates import scaled, shuffled
from warmstart.selection.training import Drawn, Inner, Step, shares, train_models
from warmstart.tasks.transfer import Transfer

PARTS = 5  # directions of the basis
SHARE = 1.0  # of the target among the rows drawn, relative to all sources together


def decomposed_step(model: Model, likelihood: Likelihood, optimiser: Optimiser) -> Step:
    """`extra`: what helps, hurts and rest count, and the number of the target."""

    def step(lr: Tensor, inner: Inner, drawn: Drawn) -> tuple[Inner, Tensor]:
        target = (drawn.task == inner.extra["target"]).to(drawn.rows.w.dtype)
        place = torch.arange(len(target), device=target.device) % PARTS
        parts = torch.stack([target * (place == i) for i in range(PARTS)])

        def weighted(phi: Params, weight: Tensor) -> Tensor:
            rows = likelihood.loss(model.apply(phi, drawn.rows.x), drawn.rows.y)
            return (weight * rows).sum() / weight.sum().clamp(min=1.0)

        def slope(weight: Tensor) -> Tensor:
            return pack(grad(weighted)(inner.phi, weight))

        slopes = vmap(slope)(torch.cat([parts, target[None], 1 - target[None]]))
        own, theirs = slopes[PARTS], slopes[PARTS + 1]
        basis: list[Tensor] = []
        for i in range(PARTS):
            left = slopes[i]
            for known in basis:
                left = left - (left @ known) * known
            basis.append(left / left.norm().clamp(min=1e-12))
        span = torch.stack(basis)
        c, m = span @ theirs, span @ own
        kept = torch.where(c * m > 0, inner.extra["helps"], inner.extra["hurts"]) * c
        total = own + kept @ span + inner.extra["rest"] * (theirs - c @ span)
        phi, opt = optimiser.update(inner.phi, unpack(total, inner.phi), inner.opt, lr)
        return Inner(phi, opt, inner.extra), weighted(inner.phi, target)

    return step


DECOMPOSED = scaled(decomposed_step)


def fit(transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int) -> Fitted:
    """One model for every setting of (helps, hurts, rest), in one stack."""
    device = transfer.pool.y.device
    source = random.Random(seed)
    settings = [(1.0, 0.0, 0.1)]
    while len(settings) < trials:
        settings.append((source.choice([0.1, 1.0]), source.choice([-1.0, 0.0, 0.1]), source.choice([0.0, 0.1, 1.0])))
    helps, hurts, rest = torch.tensor(settings, device=device).T
    number = torch.full((trials,), transfer.sources, device=device)
    extra = {"helps": helps, "hurts": hurts, "rest": rest, "target": number, "rate": shuffled(trials, seed).to(device)}
    members = torch.ones(trials, transfer.sources, device=device)
    share = shares(transfer, members, cfg.training.balance)
    share[:, -1] = SHARE * share[:, :-1].sum(1)
    phi = train_models(transfer, share, cfg.training, seed, step=DECOMPOSED, extra=extra)
    return keep_best(transfer, tune(transfer, phi, cfg, seed), members, measure, cfg)
