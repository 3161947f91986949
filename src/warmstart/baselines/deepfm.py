"""DeepFM: a factorisation machine over who, what and all that is known of both, and a network on the same vectors.

    r = sum_f w_f x_f + sum_{f < g} (v_f . v_g) x_f x_g + mlp(sums of v_f x_f by field)

with features f in four fields: the user, the item, the profile, the content. On residuals of the shrunk effects, for
squared error; a new user's own w and v are fitted on the support. Guo et al., 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from warmstart.baselines.rating_networks import Say, Training, fit_network
from warmstart.core import Params, Prediction, functional
from warmstart.engine.noise import generator
from warmstart.models.mlp import MLP, seeded
from warmstart.tasks.cold_start import Users
from warmstart.tasks.profiles import fit_table, numbers_of
from warmstart.tasks.ratings import Ratings


@dataclass(frozen=True)
class Config:
    factors: int = 20
    hidden: tuple[int, ...] = (32, 16)  # () leaves the factorisation machine alone
    least: int = 5  # rows that must have a value of a profile or of content for it to count
    training: Training = Training()


SPACE: dict[str, list[Any]] = {"factors": [8, 16, 32]}


def network(content: Tensor, profile: int, cfg: Config, seed: int) -> tuple[Say, Params]:
    """What the network says of pairs, and its weights but for the users' own numbers [1 + factors]: w, then v."""
    d, draw, items = cfg.factors, generator(seed, 3), len(content)
    sizes = {"item": items, "profile": profile, "content": content.shape[1]}
    with seeded(seed):
        deep = functional(MLP(4 * d, cfg.hidden, 1))
    shared = {
        **{f"{name}_w": torch.zeros(size) for name, size in sizes.items()},
        **{f"{name}_v": 0.1 * torch.randn(size, d, generator=draw) for name, size in sizes.items()},
        **{f"deep.{name}": value for name, value in deep.params.items()},
    }

    def say(shared: Params, own: Tensor, about: Tensor, item: Tensor) -> Tensor:
        what, v_user, v_item = content[item], own[:, 1:], shared["item_v"][item]
        linear = own[:, 0] + shared["item_w"][item] + about @ shared["profile_w"] + what @ shared["content_w"]
        fields = [v_user, v_item, about @ shared["profile_v"], what @ shared["content_v"]]
        # sum over pairs f < g of x_f x_g v_f . v_g = (|sum x v|^2 - sum |x v|^2) / 2
        squares = v_user.square() + v_item.square()
        squares = squares + about.square() @ shared["profile_v"].square() + what.square() @ shared["content_v"].square()
        told = linear + 0.5 * (sum(fields[1:], fields[0]).square() - squares).sum(-1)
        if not cfg.hidden:
            return told
        inner = {name.removeprefix("deep."): value for name, value in shared.items() if name.startswith("deep.")}
        return told + deep.apply(inner, torch.cat(fields, -1)).squeeze(-1)

    return say, shared


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    features = fit_table(train.users, "users", cfg.least)
    content = numbers_of(fit_table(train.items, "items", cfg.least), train.items, "items")
    columns = numbers_of(features, train.users, "users").shape[1]
    say, shared = network(torch.from_numpy(content).float(), columns, cfg, seed)
    return fit_network(
        train,
        say,
        shared,
        1 + cfg.factors,
        lambda part: numbers_of(features, part.users, "users"),
        cfg.training,
        seed,
    )
