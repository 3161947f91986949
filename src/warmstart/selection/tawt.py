"""Target-aware weighted training: weights of tasks that follow the target's gradient.

    phi   <- Adam on sum_t w_t L_t(phi)
    w_t   <- w_t exp(eta cos(grad L_t, grad L_target)),   normalised

A task gains weight when a step that helps the target helps it too. <grad L_t, grad L_target> of all tasks is one
directional derivative of their losses. Chen et al., 2022; eta is tuned between 0.01 and 100, and
the rate with it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, jvp

from warmstart.core import Likelihood, Model, Params
from warmstart.core.trees import dot
from warmstart.maths.optim import Optimiser
from warmstart.selection.final import Config, Fitted, keep_best, tune
from warmstart.selection.measures import Measure
from warmstart.selection.rates import scaled, shuffled
from warmstart.selection.training import Drawn, Inner, Step, shares, train_models
from warmstart.tasks.transfer import Transfer


def weighted_step(model: Model, likelihood: Likelihood, optimiser: Optimiser) -> Step:
    """`extra`: log weights [k + 1] and eta; the target is the last task."""

    def step(lr: Tensor, inner: Inner, drawn: Drawn) -> tuple[Inner, Tensor]:
        logs, eta = inner.extra["logs"], inner.extra["eta"]
        tasks = len(logs)
        own = (drawn.task == torch.arange(tasks, device=logs.device)[:, None]).to(logs.dtype)
        count = own.sum(1)

        def losses(phi: Params) -> Tensor:
            rows = likelihood.loss(model.apply(phi, drawn.rows.x), drawn.rows.y)
            return own @ rows / torch.where(count > 0, count, 1.0)

        def joint(phi: Params) -> Tensor:
            return (torch.softmax(logs, 0) * losses(phi)).sum()

        towards = grad(lambda phi: losses(phi)[tasks - 1])(inner.phi)
        along: Tensor = jvp(losses, (inner.phi,), (towards,))[1] / dot(towards, towards).clamp(min=1e-12)
        moved = logs + lr * eta * torch.where(count > 0, along.clamp(-1.0, 1.0), 0.0)
        grads, value = grad_and_value(joint)(inner.phi)
        phi, opt = optimiser.update(inner.phi, grads, inner.opt, lr)
        return Inner(phi, opt, {**inner.extra, "logs": moved - torch.logsumexp(moved, 0)}), value

    return step


WEIGHTED = scaled(weighted_step)


def fit(transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int) -> Fitted:
    """One model for every eta, in one stack; all tasks are drawn alike and weighed as above."""
    device, tasks = transfer.pool.y.device, len(transfer.names)
    members = torch.ones(trials, transfer.sources, device=device)
    logs = torch.zeros(trials, tasks, device=device)
    eta, rate = torch.logspace(-2, 2, trials, device=device), shuffled(trials, seed).to(device)
    extra = {"logs": logs, "eta": eta, "rate": rate}
    phi = train_models(transfer, shares(transfer, members, 0.0), cfg.training, seed, step=WEIGHTED, extra=extra)
    return keep_best(transfer, tune(transfer, phi, cfg, seed), members, measure, cfg)
