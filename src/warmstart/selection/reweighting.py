"""Robust training on the target alone: importance weighting and group distributionally robust optimisation.

    importance    row weight = (rows / rows of its group)^p
    group DRO     q_g <- q_g exp(eta L_g), normalised;   loss = sum_g q_g L_g

Byrd and Lipton, 2019; Sagawa et al., 2020. p and eta are tuned, and the rate with them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from warmstart.core import Likelihood, Model, Params
from warmstart.maths.optim import Optimiser
from warmstart.selection.final import Config, Fitted, keep_best
from warmstart.selection.measures import Measure
from warmstart.selection.rates import scaled, shuffled
from warmstart.selection.training import Drawn, Inner, Step, shares, train_models
from warmstart.tasks.transfer import Transfer, task_rows

ABSENT = -1e9  # log q of a group without rows: finite, since a state that is not counts as diverged


def importance_step(model: Model, likelihood: Likelihood, optimiser: Optimiser) -> Step:
    """`extra`: the weight of a row of each group."""

    def step(lr: Tensor, inner: Inner, drawn: Drawn) -> tuple[Inner, Tensor]:
        weight = drawn.rows.w * inner.extra["weight"][drawn.group]

        def loss(phi: Params) -> Tensor:
            rows = likelihood.loss(model.apply(phi, drawn.rows.x), drawn.rows.y)
            total: Tensor = (weight * rows).sum() / weight.sum()
            return total

        phi, opt = optimiser.update(inner.phi, grad(loss)(inner.phi), inner.opt, lr)
        return Inner(phi, opt, inner.extra), loss(inner.phi)

    return step


def dro_step(model: Model, likelihood: Likelihood, optimiser: Optimiser) -> Step:
    """`extra`: log q [groups], and eta."""

    def step(lr: Tensor, inner: Inner, drawn: Drawn) -> tuple[Inner, Tensor]:
        logs, eta = inner.extra["logs"], inner.extra["eta"]
        own = (drawn.group == torch.arange(len(logs), device=logs.device)[:, None]).to(logs.dtype)
        count = own.sum(1)

        def losses(phi: Params) -> Tensor:
            rows = likelihood.loss(model.apply(phi, drawn.rows.x), drawn.rows.y)
            return own @ rows / torch.where(count > 0, count, 1.0)

        moved = logs + eta * losses(inner.phi)
        moved = moved - torch.logsumexp(moved, 0)

        def loss(phi: Params) -> Tensor:
            total: Tensor = (moved.exp() * losses(phi)).sum()
            return total

        phi, opt = optimiser.update(inner.phi, grad(loss)(inner.phi), inner.opt, lr)
        return Inner(phi, opt, {**inner.extra, "logs": moved}), loss(inner.phi)

    return step


IMPORTANCE, DRO = scaled(importance_step), scaled(dro_step)


def fit_importance(transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int) -> Fitted:
    group = task_rows(transfer, transfer.sources).group
    counts = torch.bincount(group, minlength=len(transfer.groups)).clamp(min=1)
    power = torch.linspace(0.1, 1.0, trials, device=group.device)[:, None]
    return _alone(transfer, measure, cfg, seed, IMPORTANCE, {"weight": (len(group) / counts) ** power})


def fit_dro(transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int) -> Fitted:
    group = task_rows(transfer, transfer.sources).group
    counts = torch.bincount(group, minlength=len(transfer.groups))
    present = torch.where(counts > 0, 0.0, ABSENT)
    logs = (present - torch.logsumexp(present, 0)).expand(trials, -1)
    return _alone(
        transfer,
        measure,
        cfg,
        seed,
        DRO,
        {"logs": logs, "eta": torch.logspace(-4, 0, trials, device=group.device)},
    )


def _alone(
    transfer: Transfer, measure: Measure, cfg: Config, seed: int, step: object, extra: dict[str, Tensor]
) -> Fitted:
    count, device = len(next(iter(extra.values()))), transfer.pool.y.device
    members = torch.zeros(count, transfer.sources, device=device)
    extra |= {"rate": shuffled(count, seed).to(device)}
    phi = train_models(transfer, shares(transfer, members), cfg.training, seed, step=step, extra=extra)  # type: ignore[arg-type]
    return keep_best(transfer, phi, members, measure, cfg)
