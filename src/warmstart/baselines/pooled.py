"""What the pooled models share: the episodes they learn from, and scikit-learn's answers as tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sklearn.dummy import DummyClassifier
from torch import Tensor

from warmstart.core import Likelihood, Task
from warmstart.tasks.pool import Pool, episodes


def training_rows(
    pool: Pool, features: Callable[[Task], Tensor], draws: int, support: int, query: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and weight of rows to predict: every task with `draws` random supports of 0 to `support` rows."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for _ in range(draws):
        shown = torch.randint(support + 1, (pool.count,), generator=generator)
        for first in range(0, pool.count, 500):
            ids = torch.arange(first, min(first + 500, pool.count))
            task = episodes(pool, ids, support, query, generator, shown[ids])
            real = task.query.mask > 0
            parts.append((features(task)[real], task.query.y[real], task.query.w[real]))
    x, y, w = (torch.cat(part) for part in zip(*parts, strict=True))
    return x, y, w


def fit_model(model: Any, x: Tensor, y: Tensor, w: Tensor | None, likelihood: Likelihood) -> Any:
    """A scikit-learn model fitted; when all rows are of one class, the model that says so."""
    if likelihood.name != "squared":
        y = y.long()
        model = model if bool((y != y[0]).any()) else DummyClassifier()
    return model.fit(x.numpy(), y.numpy(), sample_weight=None if w is None else w.numpy())


def answers(model: Any, x: Tensor, likelihood: Likelihood, classes: int) -> Tensor:
    """[..., c] of a fitted scikit-learn model at x [..., F]; a class it never saw has probability 0."""
    flat = x.flatten(0, -2).numpy()
    if likelihood.name == "squared":
        values = torch.from_numpy(model.predict(flat)).unsqueeze(-1)
    else:
        values = torch.zeros(len(flat), max(classes, 2), dtype=torch.float64)
        values[:, torch.from_numpy(model.classes_).long()] = torch.from_numpy(model.predict_proba(flat)).double()
    kept = values[:, 1:2] if likelihood.name == "binary" else values
    return kept.reshape(*x.shape[:-1], -1).float()
