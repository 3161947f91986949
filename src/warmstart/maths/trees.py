"""Which boosted trees there are: LightGBM's where it is installed (extra `boost`), else scikit-learn's."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor


@dataclass(frozen=True)
class Trees:
    trees: int = 200
    rate: float = 0.05  # of learning: how much of each tree counts
    leaves: int = 31  # at most, in a tree
    smallest_leaf: int = 50  # rows in it
    l2: float = 10.0  # penalty on the values of leaves


def booster() -> str:
    """Which library grows the trees, and its version."""
    name = "lightgbm" if find_spec("lightgbm") is not None else "scikit-learn"
    return f"{name} {version(name)}"


def make_trees(cfg: Trees, seed: int, clicks: bool = False) -> Any:
    """A model with scikit-learn's fit and predict: of a squared loss, or of the log loss of clicks."""
    if find_spec("lightgbm") is not None:
        import lightgbm

        light = lightgbm.LGBMClassifier if clicks else lightgbm.LGBMRegressor
        return light(
            n_estimators=cfg.trees,
            learning_rate=cfg.rate,
            num_leaves=cfg.leaves,
            min_child_samples=cfg.smallest_leaf,
            reg_lambda=cfg.l2,
            random_state=seed,
            n_jobs=1,
            deterministic=True,
            verbose=-1,
        )
    kind = HistGradientBoostingClassifier if clicks else HistGradientBoostingRegressor
    return kind(
        max_iter=cfg.trees,
        learning_rate=cfg.rate,
        max_leaf_nodes=cfg.leaves,
        min_samples_leaf=cfg.smallest_leaf,
        l2_regularization=cfg.l2,
        early_stopping=False,
        random_state=seed,
    )
