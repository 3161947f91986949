"""What needs no selection: all sources, the target alone, and sources in random order.

The first two are tuned by the learning rate, so that they have as many trials as the others have sets; the last takes
the number of sources that validation prefers, as the methods that rank sources do, so that what is left between
them is the ranking.
"""

from __future__ import annotations

import torch
from torch import Tensor

from warmstart.engine.noise import generator
from warmstart.selection.final import Config, Fitted, choose, keep_best, top_sets, tune
from warmstart.selection.measures import Measure
from warmstart.selection.rates import rates, scaled_step
from warmstart.selection.training import shares, train_models
from warmstart.tasks.transfer import Transfer


def fit(transfer: Transfer, sources: Tensor, measure: Measure, cfg: Config, trials: int, seed: int) -> Fitted:
    """With one set of sources [k], at the rate that validation prefers."""
    device = transfer.pool.y.device
    members = sources.to(device).expand(trials, -1)
    share = shares(transfer, members, cfg.training.balance)
    extra = {"rate": rates(trials).to(device)}
    phi = train_models(transfer, share, cfg.training, seed, step=scaled_step, extra=extra)
    return keep_best(transfer, tune(transfer, phi, cfg, seed), members, measure, cfg)


def all_sources(transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int) -> Fitted:
    return fit(transfer, torch.ones(transfer.sources), measure, cfg, trials, seed)


def target_only(transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int) -> Fitted:
    return fit(transfer, torch.zeros(transfer.sources), measure, cfg, trials, seed)


def random_order(transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int) -> Fitted:
    scores = torch.rand(transfer.sources, generator=generator(seed, 29))
    return choose(transfer, top_sets(scores, trials), measure, cfg, seed)
