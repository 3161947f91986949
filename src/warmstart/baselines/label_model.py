"""Label models: what labelling functions agree on, without a label. Majority vote, data programming and snorkel's.

    P(y = c) = pi_c,    P(vote_j = v | y = c) = T_j[c, v],    v a class, or abstaining, which tells something too
    E   q_i(c)     proportional to  pi_c prod_j T_j[c, vote_ij]
    M   T_j[c, v]  proportional to  smooth + sum_i q_i(c) 1[vote_ij = v]

Functions err independently of each other given the label. Ratner et al., 2016, with a table for every function, as
Dawid and Skene, 1979, have it, by expectation-maximisation from the majority vote; `metal` is snorkel's label model
(Ratner et al., 2019), of the extra `weak`. All take votes [n, k], -1 abstains, and give probabilities [n, classes].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmstart.core import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Config:
    smooth: float = 0.1  # votes added to every cell of a table
    sweeps: int = 50


def fit(votes: NDArray[np.int64], balance: Floats, cfg: Config = Config()) -> tuple[Floats, Floats]:
    """q [n, classes] and the tables [k, classes, 1 + classes], the first column abstaining; `balance` is pi."""
    classes = len(balance)
    if classes < 2 or not bool((votes >= -1).all() and (votes < classes).all()):
        raise InputError(f"votes from -1 to {classes - 1}", "others", "check the votes and the classes")
    seen = np.stack([votes == v for v in range(-1, classes)]).astype(float)  # [v, n, k]
    q, prior = majority(votes, classes), np.log(np.maximum(balance, 1e-9))
    tables = np.empty((votes.shape[1], classes, 1 + classes))
    for _ in range(cfg.sweeps):
        counts = cfg.smooth + (q.T @ seen).transpose(2, 1, 0)  # [k, c, v]
        tables = counts / counts.sum(-1, keepdims=True)
        logs = prior + (seen @ np.log(tables).transpose(2, 0, 1)).sum(0)
        q = np.exp(logs - logs.max(1, keepdims=True))
        q /= q.sum(1, keepdims=True)
    return q, tables


def metal(votes: NDArray[np.int64], balance: Floats, seed: int = 0) -> Floats:
    """q [n, classes] by snorkel's label model."""
    try:
        from snorkel.labeling.model import LabelModel
    except ImportError:
        remedy = "pip install 'warmstart[weak]'"
        raise InputError("snorkel for its label model", "none installed", remedy) from None
    model: Any = LabelModel(cardinality=len(balance), verbose=False)
    shares = np.maximum(balance, 1e-3)
    model.fit(votes, class_balance=list(shares / shares.sum()), seed=seed, progress_bar=False)
    return np.asarray(model.predict_proba(votes), dtype=float)


def majority(votes: NDArray[np.int64], classes: int) -> Floats:
    """q [n, classes]: the share of a class among those with the most votes, all alike where nobody votes."""
    counts = np.stack([(votes == c).sum(1) for c in range(classes)], 1)
    most = (counts == counts.max(1, keepdims=True)).astype(float)
    shares: Floats = most / most.sum(1, keepdims=True)
    return shares
