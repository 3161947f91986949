"""Higher-order approximation: sources ranked by what each does alone.

    score_j = f_t({j}),   a set's score is the mean over its sources

Standley et al., 2020. One training per source, all as one stack; the number of sources is chosen on validation rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from warmstart.selection.final import Config, Fitted, choose, top_sets
from warmstart.selection.measures import Measure
from warmstart.selection.training import Config as Training
from warmstart.selection.training import outputs, shares, train_models
from warmstart.tasks.transfer import Transfer


def scores(transfer: Transfer, measure: Measure, training: Training, seed: int) -> Tensor:
    """f_t of every source with the target [k]."""
    share = shares(transfer, torch.eye(transfer.sources, device=transfer.pool.y.device), training.balance)
    phi = train_models(transfer, share, training, seed)
    return measure(outputs(transfer, training, phi, transfer.validation.x), transfer.validation).cpu()


def fit(
    transfer: Transfer, measure: Measure, cfg: Config, trials: int, seed: int, training: Training = Training(steps=300)
) -> Fitted:
    ranked = scores(transfer, measure, training, seed)
    return choose(transfer, top_sets(ranked, trials), measure, cfg, seed)
