"""PreferenceLearner: fit on ratings or clicks of many users, adapt to a new one's profile and events, recommend."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from warmstart.core import InputError
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.estimators.adapted_users import AdaptedUsers, adapt_users
from warmstart.estimators.choosing import Chosen, Record, choose
from warmstart.estimators.folder import pack, read_config, write_folder
from warmstart.estimators.preference_context import usual_context
from warmstart.estimators.preference_contract import PreferenceMethod, score_each
from warmstart.estimators.preference_judging import (
    METRIC,
    Data,
    calibrate,
    mean_error,
    predictor,
    split_data,
    user_errors,
)
from warmstart.estimators.preference_methods import AUTO, find
from warmstart.estimators.preference_model import Known, TrainedPreferences, restore
from warmstart.estimators.trained import damaged
from warmstart.metrics.intervals import paired
from warmstart.tasks.clicks import EVENTS, KINDS
from warmstart.tasks.profiles import fit_table
from warmstart.tasks.ratings import Ratings, read_ratings, take_users
from warmstart.tasks.roles import Roles
from warmstart.tasks.split import digest
from warmstart.tasks.table import Source, read_table
from warmstart.training.search import Trial

KIND = "preferences"
KNOWN, PANEL = 10_000, 100  # users to whom new ones are likened, and items by which


ONE_ERROR = 0.683  # the share of a normal within one standard error


class Fitted(NamedTuple):
    saved: Any
    state: Any
    value: float


@dataclasses.dataclass
class PreferenceLearner:
    """Learns from the ratings or clicks of many users what a new one will think of items.

    `method="auto"` compares a few methods on validation users. Fitted names end in `_`.
    """

    method: str = "auto"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the method
    trials: int = 1  # configurations tried for each method; the same number for all
    scale: tuple[float, float] | None = None  # least and greatest rating there can be; None: those of the table
    kind: str | None = None  # squared: ratings, binary: clicks; None: as the method or else the values tell
    seed: int = 0
    device: str = "auto"  # where methods that train a network do so
    trained_: TrainedPreferences | None = dataclasses.field(default=None, init=False, repr=False)
    trials_: dict[str, list[Trial]] = dataclasses.field(default_factory=dict, init=False, repr=False)
    notes_: tuple[str, ...] = dataclasses.field(default=(), init=False, repr=False)  # what was put right

    def fit(
        self,
        ratings: Source,
        roles: Roles,
        task_table: Source | None = None,
        item_table: Source | None = None,
        *,
        folder: Path | None = None,
        progress: Callable[[str], Any] | None = None,
    ) -> PreferenceLearner:
        """Fit on a table of ratings or impressions, one row each, and tables that describe users and items.

        With a folder, trials that were finished are not run again. Without an item in the roles, it is the
        column that the ratings and the item table share.
        """
        if self.trials < 1:
            raise InputError("trials of at least 1", f"{self.trials}", "pass a larger number")
        if self.method == "auto" and self.settings:
            raise InputError("a method to apply the settings to", "auto", "name one, for instance preference_bayes")
        device = choose_device(self.device)
        kinds = KINDS if self.method == "auto" else find(self.method).kinds
        roles = with_item(ratings, roles, item_table)
        kind = kinds[0] if self.kind is None and len(kinds) == 1 else self.kind
        data = read_ratings(ratings, roles, task_table, item_table, self.scale, kind)
        methods = {
            name: find(name, data.kind) for name in (AUTO[data.kind] if self.method == "auto" else (self.method,))
        }
        if data.scale[0] >= data.scale[1]:
            raise InputError("ratings that differ", f"all {data.scale[0]:g}", "pass the ratings, or their scale")
        if roles.context and data.kind == "squared":
            raise InputError("clicks, where there is a context", "ratings", "leave the context out")
        parts = split_data(data, self.seed, roles.time is not None, roles.context)
        usual = usual_context(parts.train)
        self.notes_ = (*data.notes, *_lonely(data))
        place = None if folder is None else folder / _fingerprint(parts.train, self.seed)
        found = choose(
            methods,
            self.settings,
            _runner(parts, self.seed, device),
            1 if self.settings else self.trials,
            seed=self.seed,
            folder=place,
            progress=progress,
        )
        found, doubts = _surely(found, methods, parts, self.seed, device)
        self.notes_ = (*self.notes_, *doubts)
        self.trials_ = found.trials
        method, state = methods[found.name], found.found.state
        if method.context is None and usual:
            unused = f"{found.name} does not use the context ({', '.join(usual)}): the model has none"
            self.notes_, roles, usual = (*self.notes_, unused), dataclasses.replace(roles, context=()), {}
        self.trained_ = TrainedPreferences(
            found.name,
            found.config,
            found.found.saved,
            roles,
            data.items,
            fit_table(parts.train.users, "users"),
            data.kind,
            data.scale,
            parts.split,
            _known(method, state, parts.train, usual),
            usual,
            calibrate(predictor(method, state), parts.validation),
            found.found.value,
        )
        return self

    def adapt(
        self,
        events: Source | None = None,
        profile: Source | Mapping[str, Any] | None = None,
        users: Sequence[str] | None = None,
    ) -> AdaptedUsers:
        """A new user, or many at once, from events (none: the profile alone) and profiles.

        Tables may lack the task column where they are of one user; `users` names those to adapt to, else all of
        the events.
        """
        return adapt_users(self.fitted, events, profile, users)

    @property
    def fitted(self) -> TrainedPreferences:
        if self.trained_ is None:
            raise InputError("a fitted model", "one that is not", "call fit first")
        return self.trained_

    def save(self, path: str | Path) -> None:
        """A folder of config.json, weights.safetensors, schema.json and card.md."""
        trained = self.fitted
        tensors, schema = trained.packed()
        config = {**trained.config_json(), "kind": KIND, "seed": self.seed}
        write_folder(Path(path), pack(config, tensors, schema, card(trained)))

    @classmethod
    def load(cls, path: str | Path) -> PreferenceLearner:
        config = read_config(Path(path), KIND)
        trained = restore(Path(path), config)
        try:
            seed = int(config["seed"])
        except (KeyError, TypeError, ValueError):
            raise damaged(Path(path)) from None
        scale = trained.scale if trained.kind == "squared" else None
        learner = cls(trained.name, dataclasses.asdict(trained.config), scale=scale, kind=trained.kind, seed=seed)
        learner.trained_ = trained
        return learner


def with_item(ratings: Source, roles: Roles, item_table: Source | None) -> Roles:
    """Roles that name the item column: told, or the one column that ratings and item table share."""
    if roles.item is not None:
        return roles
    if item_table is None:
        raise InputError("the column of the items", "none", "name it with --item COL, in Python Roles(item=...)")
    rows, items = (list(read_table(*one).columns) for one in ((ratings, "ratings"), (item_table, "item table")))
    both = [name for name in rows if name in items and name not in (roles.task, roles.target, roles.time, *roles.drop)]
    if len(both) != 1:
        got = "none" if not both else ", ".join(f"'{name}'" for name in both)
        raise InputError("one column in both ratings and item table", got, "name the items' column with --item COL")
    return dataclasses.replace(roles, item=both[0])


def _runner(parts: Data, seed: int, device: torch.device) -> Any:
    """What `choose` calls to learn with a configuration, judged on the validation users."""

    def run(name: str, cfg: Any, folder: Path | None, progress: Report, record: Record | None = None) -> Fitted:
        method = find(name)
        saved = method.learn(parts.train, parts.validation, cfg, seed, device, progress)
        state = method.open(cfg, saved)
        return Fitted(saved, state, mean_error(predictor(method, state), parts.validation))

    return run


def _surely(
    found: Chosen, methods: Mapping[str, PreferenceMethod], parts: Data, seed: int, device: torch.device
) -> tuple[Chosen, list[str]]:
    """The first of the methods unless the best one is better by more than the standard error of their difference.

    Few validation users tell methods apart badly, and a choice within the noise is one by luck.
    """
    name = next(iter(methods))
    if found.name == name:
        return found, []
    config = found.trials[name][0].config
    other = _runner(parts, seed, device)(name, config, None, silent)
    best, usual = (
        user_errors(predictor(methods[method], run.state), parts.validation)
        for method, run in ((found.name, found.found), (name, other))
    )
    if len(best) > 1 and paired(best, usual, ONE_ERROR).high < 0:
        return found, []
    note = (
        f"on validation users {found.name} has an error of {found.found.value:.4g}, {name} {other.value:.4g}: "
        f"too little to tell them apart, so {name} was kept"
    )
    return Chosen(name, config, other, found.trials), [note]


def _known(method: PreferenceMethod, state: Any, train: Ratings, usual: Mapping[str, Any], chunk: int = 1000) -> Known:
    """Training users, of many a fixed sample, by what is predicted for them of the items with the most events."""
    names = [str(name) for name in train.users.index]
    kept = np.array(sorted(sorted(range(len(names)), key=lambda i: digest(names[i]))[:KNOWN]))
    count = np.bincount(train.item, minlength=len(train.items))
    panel = np.sort(np.argsort(-count, kind="stable")[:PANEL])
    said = []
    for some in np.array_split(kept, max(1, len(kept) // chunk)):
        shown = take_users(train, some)
        adapted = method.finish(state, shown, method.observe(state, shown, None))
        scores = (
            score_each(method.score, state, adapted, shown, panel, usual)
            if usual
            else method.catalogue(state, adapted, panel)
        )
        said.append(np.clip(scores[0], *train.scale))
    return Known(tuple(names[i] for i in kept), panel, np.concatenate(said))


def _lonely(data: Ratings) -> list[str]:
    alone = int((np.bincount(data.user, minlength=len(data.users)) == 1).sum())
    one = EVENTS[data.kind].removesuffix("s")
    return [f"{alone:,} users have one {one}: they are trained on and not judged"] if alone else []


def _fingerprint(train: Ratings, seed: int) -> str:
    """A name that changes with anything that changes a trial, so that trials of other data are not taken for these."""
    hashed = hashlib.blake2b(json.dumps([seed, train.kind, train.scale]).encode(), digest_size=6)
    for part in (train.user, train.item, train.value):
        hashed.update(np.ascontiguousarray(part).tobytes())
    for table in (train.users, train.items, train.context):
        hashed.update(pd.util.hash_pandas_object(table.astype(str)).to_numpy().tobytes())
    return hashed.hexdigest()


def card(trained: TrainedPreferences) -> str:
    """The page of a model for people."""
    train, validation, test = (len(part) for part in trained.split)
    low, high = trained.scale
    said = f"from {low:g} to {high:g}" if trained.kind == "squared" else "or not"
    events, metric = EVENTS[trained.kind], METRIC[trained.kind]
    lines = [
        f"# A warmstart model of preferences: {trained.name}",
        "",
        f"- {trained.roles.target} {said}, of {len(trained.items):,} items ({trained.roles.item})",
        f"- profiles: {', '.join(trained.profile.names) or 'none'}",
        f"- users: {train} to train, {validation} to validate, {test} held out",
        f"- validation {metric} (mean over 0, 1, 2, 5, 10, 20 and all {events} shown): {trained.value:.4g}",
        *(f"- {name}: {value}" for name, value in dataclasses.asdict(trained.config).items()),
        "",
        f"It holds the names of the users it was fitted on and the item table, but none of their {events}.",
        "",
        "```python",
        "from warmstart.estimators import PreferenceLearner",
        'model = PreferenceLearner.load("this folder")',
        "```",
        "",
    ]
    return "\n".join(lines)
