"""AutoRec with profile: a network that reads some of a user's ratings and fills in the others.

    h = tanh(sum_j (r_j E_j + F_j) / sqrt(n) + profile G + c),      r_i = V_i . h

on residuals r of the shrunk effects. In training every user shows a random share of the ratings and is judged on
the rest, so that the network never sees what it must say. Sedhain et al., 2015; the masking is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from warmstart.baselines.rating_means import Bias, fit_bias, on_scale, residuals
from warmstart.baselines.rating_means import Config as Effects
from warmstart.core import Prediction
from warmstart.tasks.cold_start import Users
from warmstart.tasks.profiles import fit_table, numbers_of
from warmstart.tasks.ratings import Ratings


@dataclass(frozen=True)
class Config:
    hidden: int = 64
    epochs: int = 20
    batch: int = 64
    rate: float = 3e-3
    decay: float = 3.0  # of weights, per unit of rate
    least: int = 5  # users that must have a value of the profile for it to count
    effects: Effects = Effects()


SPACE: dict[str, list[Any]] = {"hidden": [64, 128], "decay": [1.5, 3.0, 6.0], "rate": [2e-3, 3e-3]}


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    bias = fit_bias(train, cfg.effects)
    features = fit_table(train.users, "users", cfg.least)
    profile = _tensor(numbers_of(features, train.users, "users"))
    draw = torch.Generator().manual_seed(seed)
    weights = _weights(len(train.items), profile.shape[1], cfg.hidden, draw)
    optimiser = torch.optim.AdamW(weights.values(), cfg.rate, weight_decay=cfg.decay)
    steps = -(-len(train.users) // cfg.batch) * cfg.epochs
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    starts = np.searchsorted(train.user, np.arange(len(train.users) + 1))
    for _ in range(cfg.epochs):
        share = torch.rand(len(train.users), generator=draw).numpy()
        shown = torch.rand(len(train.value), generator=draw).numpy() < share[train.user]
        order = torch.randperm(len(train.users), generator=draw).numpy()
        for users in np.array_split(order, -(-len(order) // cfg.batch)):
            rows = np.concatenate([np.arange(starts[u], starts[u + 1]) for u in users])
            owner = np.repeat(np.arange(len(users)), np.diff(starts)[users])
            loss = _loss(weights, bias, train, rows, owner, shown[rows], profile[users])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            falling.step()

    def predict(new: Users) -> Prediction:
        with torch.no_grad():
            told = _tensor(residuals(bias, new.shown))
            about = _tensor(numbers_of(features, new.shown.users, "users"))
            h = _read(weights, told, torch.from_numpy(new.shown.item), torch.from_numpy(new.shown.user), about)
            found = (h[torch.from_numpy(new.asked.user)] * weights["out"][torch.from_numpy(new.asked.item)]).sum(-1)
        return on_scale(new, bias, found.double().numpy())

    return predict


def _loss(
    weights: dict[str, Tensor], bias: Bias, train: Ratings, rows: Any, owner: Any, shown: Any, profile: Tensor
) -> Tensor:
    """Mean squared error of the hidden ratings of some users, whose own effect is that of the shown ones."""
    left = train.value[rows] - bias.centre - bias.item[train.item[rows]]
    count = np.bincount(owner[shown], minlength=len(profile))
    effect = np.bincount(owner[shown], left[shown], minlength=len(profile)) / (count + bias.user_shrink)
    told, item, who = (_tensor(left - effect[owner]), torch.from_numpy(train.item[rows]), torch.from_numpy(owner))
    seen, hidden = torch.from_numpy(shown), torch.from_numpy(~shown)
    h = _read(weights, told[seen], item[seen], who[seen], profile)
    said = (h[who[hidden]] * weights["out"][item[hidden]]).sum(-1)
    return ((said - told[hidden]) ** 2).sum() / max(int(hidden.sum()), 1)


def _read(weights: dict[str, Tensor], told: Tensor, item: Tensor, owner: Tensor, profile: Tensor) -> Tensor:
    """[users, hidden]"""
    each = told[:, None] * weights["rating"][item] + weights["choice"][item]
    count = torch.bincount(owner, minlength=len(profile)).clamp(min=1).to(each)
    total = each.new_zeros(len(profile), each.shape[1]).index_add(0, owner, each)
    return torch.tanh(total / count.sqrt()[:, None] + profile @ weights["profile"] + weights["constant"])


def _weights(items: int, profile: int, hidden: int, draw: torch.Generator) -> dict[str, Tensor]:
    sizes = {"rating": (items, hidden), "choice": (items, hidden), "out": (items, hidden), "profile": (profile, hidden)}
    scale = {"rating": 0.1, "choice": 0.01, "out": 0.1 / hidden**0.5, "profile": 0.01}
    weights = {name: scale[name] * torch.randn(*size, generator=draw) for name, size in sizes.items()}
    weights["constant"] = torch.zeros(hidden)
    return {name: value.float().requires_grad_() for name, value in weights.items()}


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).float()
