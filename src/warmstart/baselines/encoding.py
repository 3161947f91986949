"""Mean targets in place of the values of columns that are too long for one-hot (an item's mean rating).

A training row is told the mean of its value over other folds of rows only: with its own target in the
mean, trees would read the answer off rare values. New rows are told the mean over all training rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from warmstart.baselines.design import LEVELS
from warmstart.core import Columns

PRIOR = 10.0  # rows' worth of shrinkage towards the mean of all
FOLDS = 5


def long_columns(columns: Columns) -> dict[int, int]:
    """Place and vocabulary size of the categorical columns that lose values to `LEVELS`.

    >>> long_columns(Columns(0, (5, 2000)))
    {1: 2000}
    """
    return {i: size for i, size in enumerate(columns[1]) if size - 2 > LEVELS}


def fit_means(
    index: Tensor, size: int, values: Tensor, w: Tensor, seed: int
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Cross-fitted means [N, c] of the training rows, and the function that tells those of new rows.

    index [N], values [N, c], weights [N]; a mean is (sum w v) / (sum w + PRIOR) with v centred.
    """
    centred = values - (values * w[:, None]).sum(0) / w.sum()
    fold = torch.randperm(len(index), generator=torch.Generator().manual_seed(seed)) % FOLDS
    place = fold * size + index
    sums = (
        torch.zeros(FOLDS * size, values.shape[-1]).index_add_(0, place, centred * w[:, None]).reshape(FOLDS, size, -1)
    )
    counts = torch.zeros(FOLDS * size).index_add_(0, place, w).reshape(FOLDS, size, 1)
    others = (sums.sum(0) - sums) / (counts.sum(0) - counts + PRIOR)
    table = sums.sum(0) / (counts.sum(0) + PRIOR)
    return others[fold, index], lambda index: table[index]
