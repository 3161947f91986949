"""Exhaustive search: every set of at most two sources is trained, the best on validation rows is kept.

1 + k + k (k - 1) / 2 trainings, as one stack: what a search beyond single sources costs without a surrogate.
"""

from __future__ import annotations

from itertools import combinations

import torch

from warmstart.selection.final import Config, Fitted, choose
from warmstart.selection.measures import Measure
from warmstart.selection.training import Config as Training
from warmstart.selection.training import outputs, shares, train_models
from warmstart.tasks.transfer import Transfer


def fit(
    transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int, training: Training = Training(steps=300)
) -> Fitted:
    """The `trials` best sets of short trainings have a final one each."""
    sources = transfer.sources
    sets = [(), *combinations(range(sources), 1), *combinations(range(sources), 2)]
    members = torch.zeros(len(sets), sources)
    for row, chosen in enumerate(sets):
        members[row, list(chosen)] = 1.0
    share = shares(transfer, members.to(transfer.pool.y.device), training.balance)
    phi = train_models(transfer, share, training, seed)
    values = measure(outputs(transfer, training, phi, transfer.validation.x), transfer.validation)
    best = values.cpu().argsort()[:trials]
    return choose(transfer, members[best], measure, cfg, seed)
