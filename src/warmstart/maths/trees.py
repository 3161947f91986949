"""Which boosted trees there are: LightGBM's where it is installed (extra `boost`), else scikit-learn's."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from warmstart.core import InputError


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
    if min(cfg.trees, cfg.leaves - 1, cfg.smallest_leaf) < 1 or not (cfg.rate > 0 and cfg.l2 >= 0):
        got = ", ".join(f"{name} {value}" for name, value in vars(cfg).items() if name in Trees.__annotations__)
        raise InputError("trees, leaves of two or more, rows in one, a rate above 0 and l2 from 0", got, "change them")
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
