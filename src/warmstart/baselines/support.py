"""What the support says: targets as channels, sums per task, and estimates for query rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from warmstart.core import Batch, Likelihood, Prediction, Task
from warmstart.core.trees import take, to_device, tree_map
from warmstart.tasks.pool import Pool, pad_safe


def targets(y: Tensor, likelihood: Likelihood, classes: int) -> Tensor:
    """[..., 1] the number to predict, or [..., classes] one-hot."""
    return F.one_hot(y.long(), classes).float() if likelihood.name == "multiclass" else y.unsqueeze(-1).float()


def task_sums(pool: Pool, values: Tensor) -> tuple[Tensor, Tensor]:
    """Each task's weighted sum of values [N, c] -> [T, c], and its weight [T]."""
    owner = torch.repeat_interleave(torch.arange(pool.count, device=pool.y.device), pool.lengths)
    sums = torch.zeros(pool.count, values.shape[-1], device=pool.y.device).index_add_(
        0, owner, values * pool.w[:, None]
    )
    return sums, torch.zeros(pool.count, device=pool.y.device).index_add_(0, owner, pool.w.float())


def statistics(support: Tensor, query: Tensor, values: Tensor, weight: Tensor, spread: float, ridge: float) -> Tensor:
    """[t, q, 3 c] of support rows [t, s, D] with values [t, s, c] and weights [t, s], for query rows [t, q, D].

    Three estimates of the values at a query row, each shrunk to 0 and 0 without support: the mean,
    the mean weighted by similarity, and kernel ridge regression.
    """
    cross = kernel(query, support, spread)
    near = cross * weight.unsqueeze(-2)
    mean = (weight.unsqueeze(-1) * values).sum(-2) / (weight.sum(-1, keepdim=True) + 1)
    similar = near @ values / (near.sum(-1, keepdim=True) + 0.1)
    smooth = regress(kernel(support, support, spread), cross, values, weight, ridge)
    return torch.cat([mean.unsqueeze(-2).expand_as(similar), similar, smooth], -1)


def kernel(a: Tensor, b: Tensor, spread: float) -> Tensor:
    """Similarity exp(-|a - b|^2 / (2 spread^2)), [t, a, b]."""
    square = (a**2).sum(-1).unsqueeze(-1) + (b**2).sum(-1).unsqueeze(-2) - 2 * a @ b.mT
    return torch.exp(-square.clamp(min=0) / (2 * spread**2))


def regress(own: Tensor, cross: Tensor, values: Tensor, weight: Tensor, ridge: float) -> Tensor:
    """Kernel ridge regression of a stack, cross (own + ridge / weight)^-1 values; weight 0 is no row."""
    root = weight.sqrt().unsqueeze(-1)
    system = root * own * root.mT + ridge * torch.eye(own.shape[-1]).to(own)
    coefficients: Tensor = torch.linalg.solve(system, root * values)
    return cross @ (root * coefficients)


def by_chunks(predict: Callable[[Task], Tensor], task: Task, likelihood: Likelihood, size: int = 200) -> Prediction:
    """`predict`, task -> [t, q, c], on clean slices of the stack, so that [t, q, s] arrays stay small."""
    parts = (to_device(take(task, slice(first, first + size)), "cpu") for first in range(0, len(task.key), size))
    clean = (part._replace(support=_one_more(pad_safe(part.support)), query=pad_safe(part.query)) for part in parts)
    values = torch.cat([predict(part) for part in clean]).to(task.query.w)
    return Prediction(values if likelihood.name == "multiclass" else values.squeeze(-1))


def _one_more(batch: Batch) -> Batch:
    """A padded row at the end, since scikit-learn refuses to predict no rows at all."""
    return Batch(*tree_map(lambda leaf: torch.cat([leaf, leaf.new_zeros(len(leaf), 1, *leaf.shape[2:])], 1), batch))
