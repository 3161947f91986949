"""A trained model of preferences: a method, its state, and what its numbers mean. What is saved, and what adapts."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from warmstart.core import InputError
from warmstart.engine.files import finite, read_tensors
from warmstart.estimators.folder import SCHEMA, WEIGHTS, read_text
from warmstart.estimators.judging import Calibration, reaches
from warmstart.estimators.methods import configure
from warmstart.estimators.preference_chances import Chances, chance_interval, put_right
from warmstart.estimators.preference_contract import PreferenceMethod, Scores, score_each, score_in
from warmstart.estimators.preference_methods import find
from warmstart.estimators.preference_state import pack_state, unpack_state
from warmstart.estimators.trained import damaged
from warmstart.tasks.cells import Floats, Ints
from warmstart.tasks.clicks import SCALE
from warmstart.tasks.features import Features, distinct_texts
from warmstart.tasks.ratings import Ratings, newcomers
from warmstart.tasks.roles import Roles
from warmstart.tasks.split import Split

VERSION = 1  # of schema.json
CELLS = 500_000  # users and contexts times items that are scored at once


class Known(NamedTuple):
    """What is predicted for known users of a few items that many rated, so that likeness can be told in ratings."""

    names: tuple[str, ...]
    items: Ints  # [p] places in the catalogue
    said: NDArray[np.float32]  # [users, p]


@dataclass(frozen=True)
class TrainedPreferences:
    """Everything that adapting to new users needs."""

    name: str  # method id
    config: Any
    saved: Any  # of the method
    roles: Roles
    items: pd.DataFrame  # the catalogue: names are its index
    profile: Features  # columns and values of users' profiles
    kind: str  # of what users say: "squared", ratings, or "binary", clicks
    scale: tuple[float, float]
    split: Split  # names of the users
    known: Known
    usual: dict[str, Any]  # the context that is taken where none is told; empty where the method uses none
    calibration: Calibration | Chances  # of ratings, of clicks
    value: float  # MSE or log loss on the validation users, mean over support sizes
    reaches: dict[float, Any] = field(default_factory=dict, repr=False, compare=False)  # by level, once asked for

    @property
    def method(self) -> PreferenceMethod:
        return find(self.name)

    @functools.cached_property
    def state(self) -> Any:
        """What the method works with."""
        return self.method.open(self.config, self.saved)

    @functools.cached_property
    def around(self) -> Features:
        """Columns and values of the context."""
        return Features() if self.method.context is None else self.method.context(self.state)

    @functools.cached_property
    def titles(self) -> NDArray[np.object_]:
        """[items] their names."""
        return self.items.index.to_numpy(dtype=object)

    @functools.cached_property
    def cells(self) -> dict[str, NDArray[Any]]:
        """What the item table says of each item, by column."""
        return {str(name): self.items[name].to_numpy() for name in self.items}

    def catalogue(
        self, adapted: Any, users: Ratings, which: Ints | None, context: Mapping[str, Any] | None = None
    ) -> Scores:
        """What the method says of some items, or all, for every user."""
        if not self.usual:
            return self.method.catalogue(self.state, adapted, which)
        return score_each(self.method.score, self.state, adapted, users, which, self.usual | dict(context or {}))

    def any_item(self, adapted: Any, users: Ratings, who: Ints, rows: pd.DataFrame) -> tuple[Floats, Floats]:
        """[rows] mean and variance of what the user of each would say of an item taken at random, in its context."""
        if not self.usual:
            mean, variance = _over_items(self.catalogue(adapted, users, None), self.scale)
            return mean[who], variance[who]
        around = self.in_context(rows)
        alike = around.astype(str).assign(user=who)  # no context is called so
        place = alike.groupby(list(alike), sort=False, dropna=False).ngroup().to_numpy()
        _, first = np.unique(place, return_index=True)
        found = []
        for some in np.array_split(first, -(-len(first) * len(self.items) // CELLS)):
            told = around.iloc[some].reset_index(drop=True)
            scores = score_in(self.method.score, self.state, adapted, users, who[some], None, told)
            found.append(_over_items(scores, self.scale))
        mean, variance = (np.concatenate(part) for part in zip(*found, strict=True))
        return mean[place], variance[place]

    def in_context(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The context of rows; a column that they lack is as usual, an empty cell is missing."""
        found = {name: rows.get(name, usual) for name, usual in self.usual.items()}
        return pd.DataFrame(found, index=rows.index).reset_index(drop=True)

    def put_right(
        self, mean: NDArray[Any], variance: NDArray[Any] | None, shown: Ints
    ) -> tuple[NDArray[np.float64], NDArray[Any] | None]:
        """What the method says of rows, as it is told: on the scale, or as chances that validation users bear out.

        `shown`: how many events the user of each row has shown.
        """
        if isinstance(self.calibration, Chances):
            return put_right(self.calibration, mean, variance, shown)
        return np.clip(mean.astype(np.float64), *self.scale), variance

    def interval(
        self, mean: NDArray[np.float64], variance: NDArray[Any] | None, shown: Ints, level: float
    ) -> dict[str, NDArray[np.float64]]:
        """low and high of what was put right: where a rating lies, or its chance; nothing where a method has no idea.

        Within the scale, unless nothing can be claimed.
        """
        if not 0 < level < 1:
            raise InputError("a level between 0 and 1", f"{level}", "pass for instance 0.9")
        if isinstance(self.calibration, Chances):
            ends = () if variance is None else chance_interval(mean, variance, level)
            return dict(zip(("low", "high"), ends, strict=False))
        reach = self._reach(level, self.calibration, shown)
        half = reach * (1.0 if variance is None else np.sqrt(np.maximum(variance, 1e-12)))
        low, high, sure = mean - half, mean + half, np.isfinite(reach)
        least, most = self.scale
        return {
            "low": np.where(sure, np.maximum(low, least), low),
            "high": np.where(sure, np.minimum(high, most), high),
        }

    def _reach(self, level: float, scores: Calibration, shown: Ints) -> NDArray[np.float64]:
        """How many standard deviations an interval reaches, by the events that users have shown."""
        if level not in self.reaches:
            self.reaches[level] = reaches(scores, level).numpy()
        place = np.searchsorted(scores.sizes.numpy(), shown, side="right")
        found: NDArray[np.float64] = self.reaches[level][np.maximum(place, 1) - 1]
        return found

    def config_json(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "config": dataclasses.asdict(self.config),
            "target": self.kind,
            "scale": list(self.scale),
            "validation": self.value if self.value == self.value else None,
        }

    def packed(self) -> tuple[dict[str, Any], str]:
        """Tensors, and schema.json: roles, catalogue, profiles, the split of the users, and the words of the state."""
        tensors, words = pack_state(self.saved)
        tensors |= pack_state(self.calibration, "calibration")[0]
        tensors |= {"known/items": torch.from_numpy(self.known.items), "known/said": torch.from_numpy(self.known.said)}
        columns = {str(name): [_cell(cell) for cell in self.items[name]] for name in self.items}
        schema = {
            "version": VERSION,
            "roles": self.roles.to_dict(),
            "items": {"names": self.items.index.tolist(), "columns": columns},
            "profile": self.profile.to_dict(),
            "users": {part: list(names) for part, names in self.split._asdict().items()},
            "known": list(self.known.names),
            "usual": self.usual,
            "state": words,
        }
        return tensors, json.dumps(schema, allow_nan=False) + "\n"


def _over_items(scores: Scores, scale: tuple[float, float]) -> tuple[Floats, Floats]:
    """Mean and variance of each row over its items."""
    mean = np.clip(scores[0].astype(np.float64), *scale)
    within = 0.0 if scores[1] is None else scores[1].mean(1)
    return mean.mean(1), within + mean.var(1)


def restore(path: Path, config: dict[str, Any]) -> TrainedPreferences:
    """From its folder; nothing in it is run. A model that cannot score its own catalogue is damaged."""
    tensors, _ = read_tensors(path / WEIGHTS)
    if not finite({name: value for name, value in tensors.items() if not name.startswith("calibration/")}):
        raise InputError(f"finite weights in {path / WEIGHTS}", "others", "restore the file, or fit again")
    try:
        content = json.loads(read_text(path / SCHEMA))
        version = content["version"]
        if isinstance(version, int) and version > VERSION:
            raise InputError(f"version {VERSION} or older in {path / SCHEMA}", f"{version}", "update warmstart")
        kind, value = str(config["target"]), config["validation"]
        method = find(config["method"], kind)
        low, high = map(float, config["scale"])
        trained = TrainedPreferences(
            config["method"],
            configure(method.config, config["config"]),
            unpack_state(method.saved, tensors, content["state"]),
            Roles.from_dict(content["roles"]),
            _catalogue(content["items"]),
            Features.from_dict(content["profile"]),
            kind,
            (low, high),
            Split(*(tuple(map(str, content["users"][part])) for part in Split._fields)),
            Known(tuple(map(str, content["known"])), tensors["known/items"].numpy(), tensors["known/said"].numpy()),
            {str(name): content["usual"][name] for name in content["roles"]["context"]},
            unpack_state(Chances if kind == "binary" else Calibration, tensors, {}, "calibration"),
            float("nan") if value is None else float(value),
        )
        with np.errstate(all="ignore"):
            _try(trained)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, RecursionError):
        raise damaged(path, SCHEMA) from None
    return trained


def _try(trained: TrainedPreferences) -> None:
    """ValueError unless every item is scored for a user of whom nothing is known, and all parts fit together."""
    nobody = newcomers(None, pd.DataFrame(index=["nobody"]), trained.items, trained.scale, kind=trained.kind)
    method, known, calibration = trained.method, trained.known, trained.calibration
    adapted = method.finish(trained.state, nobody, method.observe(trained.state, nobody, None))
    mean, variance = trained.catalogue(adapted, nobody, None)
    inside = known.items.ndim == 1 and not len(known.items[(known.items < 0) | (known.items >= len(trained.items))])
    fits = [
        mean.shape == (1, len(trained.items)),
        bool(np.isfinite(mean).all()),
        variance is None or bool((variance > 0).all() and np.isfinite(variance).all()),
        inside and known.said.shape == (len(known.names), len(known.items)),
        _sound(calibration) and calibration.sizes.shape[0] > 0,
        trained.scale[0] < trained.scale[1] and trained.roles.item is not None,
        trained.kind != "binary" or trained.scale == SCALE,
    ]
    if not all(fits):
        raise ValueError("parts that do not fit together")


def _sound(calibration: Calibration | Chances) -> bool:
    sizes = calibration.sizes.shape
    if isinstance(calibration, Calibration):
        return bool(calibration.scores.shape == (*sizes, *calibration.mask.shape))
    fits = calibration.shift.shape == calibration.slope.shape == sizes
    finite = np.isfinite(calibration.shift).all() and np.isfinite(calibration.slope).all()
    return fits and bool(finite and (calibration.slope > 0).all() and (np.diff(calibration.sizes) > 0).all())


def _catalogue(content: dict[str, Any]) -> pd.DataFrame:
    names, columns = content["names"], content["columns"]
    if not names or not distinct_texts(names) or any(len(cells) != len(names) for cells in columns.values()):
        raise ValueError("bad catalogue")
    return pd.DataFrame(columns, index=pd.Index(names, dtype=object))


def _cell(value: Any) -> Any:
    """As JSON has it: a number, a text, a list of them, or nothing."""
    if isinstance(value, list | tuple | np.ndarray):
        return [_cell(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT or value != value:
        return None
    return value if isinstance(value, str | bool | int | float) else str(value)
