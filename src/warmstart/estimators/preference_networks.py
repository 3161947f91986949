"""Networks that adapt to a user by gradient steps, as methods for preferences: what is saved, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from warmstart.core import Learner, functional
from warmstart.core.trees import fill, named_leaves, to_device
from warmstart.engine.loop import Report
from warmstart.engine.stage import PLAIN
from warmstart.estimators.preference_contract import PreferenceMethod, by_events
from warmstart.learners import at_paml, melu, paml, reg_paml
from warmstart.models.preference import FAST
from warmstart.tasks.cells import Floats
from warmstart.tasks.clicks import KINDS
from warmstart.tasks.cold_start import Users
from warmstart.tasks.ratings import Ratings
from warmstart.training.preferences import (
    Fitted,
    Network,
    Schedule,
    Tables,
    fit,
    fit_tables,
    opened,
    paced,
    preference_net,
)

COMMON: dict[str, Any] = {"outer_lr": 3e-3, "weight_decay": 0.1}
STEPS: dict[str, Any] = {**COMMON, "inner_steps": 3, "shrink": 8.0}
NETWORKS: dict[str, tuple[Any, Any]] = {  # each with the settings that a search begins with
    "melu": (melu, melu.Config(inner_lr=0.05, **STEPS)),
    "paml": (paml, paml.Config(rate=0.1, **STEPS)),
    "at_paml": (at_paml, at_paml.Config(rate=0.1, warm_rate=0.05, memory_lr=3e-3, **STEPS)),
    "reg_paml": (reg_paml, reg_paml.Config(rate=0.1, **STEPS)),
}


class Saved(NamedTuple):
    tables: Tables
    state: dict[str, Any]  # the leaves of the learner's, by their paths


def network_method(
    build: Callable[..., Learner],
    config: Any,
    space: Mapping[str, Sequence[Any]],
    network: Network = Network(),
    schedule: Schedule = Schedule(),
    kinds: tuple[str, ...] = KINDS,
) -> PreferenceMethod:
    """Trained by `training.preferences`; the weights are saved with the tables they were fitted for."""

    def learn(train: Ratings, stop: Users, cfg: Any, seed: int, device: torch.device, report: Report) -> Saved:
        fitted = fit(build, train, cfg, seed, stop, device, network, schedule, progress=report)
        return Saved(fit_tables(train, network), named_leaves(to_device(fitted.state, "cpu")))

    def make(cfg: Any, saved: Saved) -> Fitted:
        model = functional(preference_net(saved.tables, network), FAST)
        cfg = replace(cfg, warm_up=0) if hasattr(cfg, "warm_up") else cfg  # training ends after it
        learner = build(model, saved.tables.likelihood, paced(cfg, saved.tables), PLAIN)
        state = fill(learner.init(model.params), named_leaves(saved.state))
        return opened(saved.tables, model, learner, state)

    def rates(fitted: Fitted, shown: Ratings) -> Floats:
        nothing = shown._replace(user=shown.user[:0], item=shown.item[:0], value=shown.value[:0], time=shown.time[:0])
        found: Floats = fitted.about(Users(shown, nothing, np.zeros(0, dtype=np.int64)))[1].double().numpy()
        return found if len(found) else np.full(len(shown.users), np.nan)

    return by_events(config, space, Saved, learn, lambda fitted, users: fitted.predict(users), rates, make, kinds)
