"""Boosted trees on the rows of a target, or of target and sources together, by LightGBM (extra `boost`).

Categories are LightGBM's own, which scikit-learn's trees refuse beyond 255 values; the task may be one of them. The
number of trees is where the validation rows' loss stops falling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from warmstart.core import InputError, Tree
from warmstart.tasks.transfer import Transfer


@dataclass(frozen=True)
class Config:
    trees: int = 1000  # at most
    patience: int = 30  # trees without a lower loss
    rate: float = 0.1
    leaves: int = 127
    smallest_leaf: int = 50
    l2: float = 10.0
    smooth: float = 10.0  # of categories; those with fewer rows in a tree are not told apart
    columns: float = 0.5  # share of them that a tree may use
    share: float = 0.7  # of the rows that a tree is fitted on
    with_task: bool = True  # the task is a feature
    rows: int | None = None  # at most, drawn at random: for trials


SPACE: dict[str, list[Any]] = {
    "leaves": [63, 127, 255],
    "smallest_leaf": [20, 50, 200],
    "l2": [1.0, 10.0, 100.0],
    "smooth": [10.0, 50.0],
    "columns": [0.3, 0.5, 0.8],
    "share": [0.5, 0.7, 0.9],
}

VALUES = 100  # of a column with several that trees tell apart; the last stands for all beyond


class Trees(NamedTuple):
    """Fitted trees, as a function: rows of the target -> log-odds [n, 1] or log-probabilities [n, classes]."""

    booster: Any
    with_task: bool
    target: int  # its number among the tasks
    outputs: int

    def __call__(self, x: Tree) -> Tensor:
        rows = _columns(x, None, self.with_task, self.target)
        said = torch.from_numpy(np.asarray(self.booster.predict(rows))).clamp(1e-12, 1 - 1e-12)
        return torch.logit(said)[:, None] if self.outputs == 1 else said.log()

    def text(self) -> str:
        """LightGBM's own form, which is data and runs nothing."""
        return str(self.booster.model_to_string())


def load(text: str, with_task: bool, target: int, outputs: int) -> Trees:
    """The inverse of `Trees.text`; ValueError when the text is damaged."""
    lightgbm = _lightgbm()
    try:
        booster = lightgbm.Booster(model_str=text)
    except lightgbm.basic.LightGBMError as error:
        raise ValueError(str(error)) from None
    return Trees(booster, with_task, target, outputs)


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError:
        raise InputError("LightGBM for boosted trees", "none installed", "pip install 'warmstart[boost]'") from None
    return lightgbm


def check(transfer: Transfer, sources: bool) -> None:
    """Refuse what trees cannot be fitted on, with sources or without; also where LightGBM is absent."""
    _lightgbm()
    if transfer.kind == "squared":
        raise InputError("a target of classes", "numbers", "use another method")
    if transfer.ordered:
        remedy = "make the texts TF-IDF, which is `make_text_transfer` without `represent`, or use networks"
        raise InputError("rows of numbers or categories for boosted trees", "words in their order", remedy)
    if transfer.apart and sources:
        raise InputError("the same labels in all tasks", "labels of their own", "use the target alone, or networks")


def fit(transfer: Transfer, members: Tensor, cfg: Config = Config(), seed: int = 0, threads: int = 1) -> Trees:
    """On the target and the sources among `members` [k]."""
    check(transfer, bool(members.any()))
    lightgbm = _lightgbm()
    pool = transfer.pool.to("cpu")
    task = torch.repeat_interleave(torch.arange(len(transfer.names)), pool.lengths)
    chosen = torch.cat([members.bool().cpu(), torch.ones(1, dtype=torch.bool)])[task].nonzero().flatten()
    if cfg.rows is not None and len(chosen) > cfg.rows:
        order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))
        chosen = chosen[order[: cfg.rows]].sort().values
    x = {name: part[chosen] for name, part in pool.x.items()}
    rows = _columns(x, task[chosen], cfg.with_task)
    held = _columns(transfer.validation.x, None, cfg.with_task, transfer.sources)
    codes = list(range(x["numeric"].shape[-1] + VALUES * x["bag"].shape[1], rows.shape[-1]))
    settings = {
        "objective": "binary" if transfer.outputs == 1 else "multiclass",
        "num_class": transfer.outputs,
        "learning_rate": cfg.rate,
        "num_leaves": cfg.leaves,
        "min_data_in_leaf": cfg.smallest_leaf,
        "lambda_l2": cfg.l2,
        "cat_smooth": cfg.smooth,
        "feature_fraction": cfg.columns,
        "bagging_fraction": cfg.share,
        "bagging_freq": 1,
        "seed": seed,
        "num_threads": threads,
        "verbosity": -1,
    }
    seen = lightgbm.Dataset(rows, pool.y[chosen].numpy(), categorical_feature=codes)
    asked = lightgbm.Dataset(held, transfer.validation.y.cpu().numpy(), reference=seen)
    stop = lightgbm.early_stopping(cfg.patience, verbose=False)
    model = lightgbm.train(settings, seen, cfg.trees, valid_sets=[asked], callbacks=[stop])
    return Trees(model, cfg.with_task, transfer.sources, transfer.outputs)


def _columns(x: Tree, task: Tensor | None, with_task: bool, home: int = 0) -> Any:
    """[n, columns]: numbers, which values a row has of columns with several, then codes, then the task."""
    numbers = x["numeric"].cpu().double()
    own = torch.full((len(numbers),), home) if task is None else task
    codes = [x["categorical"].cpu().double(), *([own[:, None].double()] if with_task else [])]
    return np.asarray(torch.cat([numbers, _has(x["bag"].cpu()), *codes], 1))


def _has(bag: Tensor) -> Tensor:
    """[n, columns * VALUES] from codes [n, columns, several]; 0 is no value, 1 an unseen one."""
    has = torch.zeros(*bag.shape[:2], 2 + VALUES, dtype=torch.double).scatter_(2, bag.clamp(max=1 + VALUES), 1.0)
    return has[..., 2:].flatten(1)
