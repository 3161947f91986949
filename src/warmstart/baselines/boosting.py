"""Gradient-boosted trees for all tasks, in two stages, given every hint that a support can give.

    first    row, descriptor                                                  -> f
    second   row, descriptor, f, number of support rows,
             statistics of the support's targets and of their residuals y - f -> prediction

The second stage learns from predictions of the first on tasks it was not trained on (cross-fitting), and
from several random supports of 0 to `support` rows of every task, so that training looks like test.
The values of a column too long for one-hot are told by their mean target as well, cross-fitted too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from torch import Tensor

from warmstart.baselines.design import code_columns, coded, dense, fit_design
from warmstart.baselines.encoding import fit_means, long_columns
from warmstart.baselines.pooled import answers, fit_model, training_rows
from warmstart.baselines.support import by_chunks, statistics, targets
from warmstart.core import Batch, Columns, InputError, Likelihood, Prediction, Task, Tree
from warmstart.core.trees import take
from warmstart.tasks.pool import Pool

Tell: TypeAlias = Callable[[dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Config:
    trees: int = 300  # in each stage
    rate: float = 0.1  # of learning: how much of each tree counts
    leaves: int = 31  # at most, in a tree
    smallest_leaf: int = 50  # rows in it
    l2: float = 10.0  # penalty on the values of leaves
    bandwidth: float = 1.0  # of the similarity, relative to the distance of two random rows
    ridge: float = 0.3  # noise of the kernel regression on the support, relative to its signal
    folds: int = 3  # of tasks, for cross-fitting
    draws: int = 5  # supports drawn for every training task
    support: int = 20  # largest of them
    query: int = 10  # rows predicted from each


SPACE: dict[str, list[Any]] = {
    "trees": [150, 300, 600],
    "rate": [0.05, 0.1],
    "leaves": [15, 31, 63],
    "smallest_leaf": [20, 50, 100],
    "l2": [1.0, 10.0, 100.0],
    "bandwidth": [0.3, 0.6, 1.0, 1.5],
    "ridge": [0.1, 0.3, 1.0],
}


def fit(
    train: Pool,
    columns: Columns,
    descriptor_columns: Columns,
    likelihood: Likelihood,
    classes: int,
    cfg: Config,
    seed: int,
) -> Callable[[Task], Prediction]:
    if train.count < 2:
        raise InputError("at least two training tasks", f"{train.count}", "pass data of more tasks")
    train = train.to("cpu")
    row, about = fit_design(train.x, columns), fit_design(train.descriptor, descriptor_columns)
    codes = code_columns(row) + code_columns(about)
    long = long_columns(columns) if isinstance(train.x, dict) else {}
    centre = targets(train.y, likelihood, classes).mean(0)

    def prepare(x: Tree, descriptor: Tree, owner: Tensor) -> dict[str, Tensor]:
        known = torch.cat([coded(row, x), coded(about, descriptor)[owner]], -1)
        index = x["categorical"][..., list(long)] if long else known[..., :0].long()
        return {"design": dense(row, x), "known": known, "long": index}

    def features(task: Task) -> Tensor:
        shown, asked, w = task.support.x, task.query.x, task.support.w
        values = targets(task.support.y, likelihood, classes)
        residual = values - shown["told"][..., -values.shape[-1] :]
        both = torch.cat([values - centre, residual], -1)
        said = statistics(shown["design"], asked["design"], both, w, cfg.bandwidth * row.spread, cfg.ridge)
        count = task.support.mask.sum(-1)[:, None, None].expand(*said.shape[:-1], 1)
        return torch.cat([asked["told"], count, said], -1)

    owner = torch.repeat_interleave(torch.arange(train.count), train.lengths)
    rows = prepare(train.x, train.descriptor, owner)
    first = partial(
        _fit_first, sizes=[*long.values()], codes=codes, likelihood=likelihood, classes=classes, cfg=cfg, seed=seed
    )
    shuffled = torch.randperm(train.count, generator=torch.Generator().manual_seed(seed))
    fold = (shuffled % min(cfg.folds, train.count))[owner]
    known = {"design": rows["design"], "told": _cross_fit(first, rows, train.y, train.w, fold)}
    x, y, w = training_rows(train._replace(x=known), features, cfg.draws, cfg.support, cfg.query, seed)
    tell, second = first(rows, train.y, train.w), _trees(codes, x, y, w, likelihood, cfg, seed)

    def chunk(task: Task) -> Tensor:
        def ready(batch: Batch) -> Batch:
            owner = torch.arange(len(batch.y))[:, None].expand_as(batch.y)
            rows = prepare(batch.x, task.descriptor, owner)
            return batch._replace(x={"design": rows["design"], "told": tell(rows)})

        seen = task._replace(support=ready(task.support), query=ready(task.query))
        return answers(second, features(seen), likelihood, classes)

    return lambda task: by_chunks(chunk, task, likelihood)


def _cross_fit(first: Callable[..., Tell], rows: dict[str, Tensor], y: Tensor, w: Tensor, fold: Tensor) -> Tensor:
    """What the first stage tells of each row when it was fitted on the tasks of the other folds."""
    parts, places = [], []
    for held in range(int(fold.max()) + 1):
        out = fold == held
        parts.append(first(take(rows, ~out), y[~out], w[~out])(take(rows, out)))
        places.append(out.nonzero().squeeze(1))
    return torch.cat(parts)[torch.cat(places).argsort()]


def _fit_first(
    rows: dict[str, Tensor],
    y: Tensor,
    w: Tensor,
    sizes: list[int],
    codes: list[bool],
    likelihood: Likelihood,
    classes: int,
    cfg: Config,
    seed: int,
) -> Tell:
    """rows -> [..., F]: what is known, the mean targets of the long columns, and last the prediction f."""
    values = targets(y, likelihood, classes)
    fitted = [fit_means(rows["long"][:, i], size, values, w, seed) for i, size in enumerate(sizes)]
    known = torch.cat([rows["known"], *(means for means, _ in fitted)], -1)
    model = _trees(codes, known, y, w, likelihood, cfg, seed)

    def tell(rows: dict[str, Tensor]) -> Tensor:
        means = [mean(rows["long"][..., i]) for i, (_, mean) in enumerate(fitted)]
        known = torch.cat([rows["known"], *means], -1)
        return torch.cat([known, answers(model, known, likelihood, classes)], -1)

    return tell


def _trees(codes: list[bool], x: Tensor, y: Tensor, w: Tensor, likelihood: Likelihood, cfg: Config, seed: int) -> Any:
    """Fitted trees; the first columns of x are codes where `codes` says so, the rest are numbers."""
    kind = HistGradientBoostingRegressor if likelihood.name == "squared" else HistGradientBoostingClassifier
    model = kind(
        max_iter=cfg.trees,
        learning_rate=cfg.rate,
        max_leaf_nodes=cfg.leaves,
        min_samples_leaf=cfg.smallest_leaf,
        l2_regularization=cfg.l2,
        categorical_features=codes + [False] * (x.shape[-1] - len(codes)),
        early_stopping=False,
        random_state=seed,
    )
    weight = None if bool((w == 1).all()) else w  # weights make the binning of columns several times slower
    return fit_model(model, x, y, weight, likelihood)
