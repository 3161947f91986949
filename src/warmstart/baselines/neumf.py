"""Neural matrix factorisation: a product of two vectors, and a network that reads two others, in one last layer.

    r_ui = h . [p_u * q_i, mlp(s_u, t_i)]

on residuals of the shrunk effects, for squared error; a new user's p and s are fitted on the support. He et al., 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from warmstart.baselines.rating_networks import Say, Training, fit_network
from warmstart.core import Params, Prediction, functional
from warmstart.engine.noise import generator
from warmstart.models.mlp import MLP, seeded
from warmstart.tasks.cold_start import Users
from warmstart.tasks.ratings import Ratings


@dataclass(frozen=True)
class Config:
    factors: int = 20  # of the product, and again of the network
    hidden: tuple[int, ...] = (32, 16)  # () leaves the product alone
    training: Training = Training()


SPACE: dict[str, list[Any]] = {"factors": [8, 16, 32]}


def network(items: int, cfg: Config, seed: int) -> tuple[Say, Params]:
    """What the network says of pairs, and its weights but for the users' own numbers [2 * factors]."""
    d, draw = cfg.factors, generator(seed, 3)
    with seeded(seed):
        deep = functional(MLP(2 * d, cfg.hidden, 1))
    shared = {
        "product": 0.1 * torch.randn(items, d, generator=draw),
        "weight": torch.ones(d),
        "items": 0.1 * torch.randn(items, d, generator=draw),
        **{f"deep.{name}": value for name, value in deep.params.items()},
    }

    def say(shared: Params, own: Tensor, about: Tensor, item: Tensor) -> Tensor:
        told = (own[:, :d] * shared["product"][item]) @ shared["weight"]
        if not cfg.hidden:
            return told
        inner = {name.removeprefix("deep."): value for name, value in shared.items() if name.startswith("deep.")}
        pair = torch.cat([own[:, d:], shared["items"][item]], -1)
        return told + deep.apply(inner, pair).squeeze(-1)

    return say, shared


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    say, shared = network(len(train.items), cfg, seed)
    return fit_network(
        train, say, shared, 2 * cfg.factors, lambda part: np.zeros((len(part.users), 0)), cfg.training, seed
    )
