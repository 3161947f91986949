"""The target column: standardised numbers, 0 and 1, or class indices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from warmstart.core import InputError
from warmstart.tasks.cells import Ints, cell_error, is_number, numbers, texts
from warmstart.tasks.features import distinct_texts, fit_number, standardise
from warmstart.tasks.roles import refuse_mixed

MOST_CLASSES = 20  # that are not asked about, however few rows there are
KINDS = ("squared", "binary", "multiclass")  # the names of the likelihoods


@dataclass(frozen=True)
class Target:
    """y = (value - mean) / std when squared, else the index of the value in `classes`."""

    kind: str
    mean: float = 0.0
    std: float = 1.0
    classes: tuple[str, ...] = ()

    @classmethod
    def fit(cls, column: pd.Series[Any], kind: str | None = None) -> Target:
        """Two distinct values are binary, other texts multiclass, other numbers squared, unless told."""
        if kind is not None and kind not in KINDS:
            raise InputError(f"a target kind of {', '.join(KINDS)}", f"'{kind}'", "pass one of them")
        if kind == "squared":
            return cls._squared(column)
        written = pd.api.types.infer_dtype(column, skipna=True)
        numeric = written in ("integer", "floating", "mixed-integer-float", "decimal")
        if numeric:
            numbers(column, "rows")  # for its message where one is not finite
        elif kind is None and written not in ("boolean", "categorical"):
            refuse_mixed(column, "rows", "correct or remove the row")
        names = _classes(column)[1]
        if kind is None and not numeric and len(names) > max(MOST_CLASSES, len(column) // 2):
            told = f"{len(names)} different texts, such as '{names[0]}'"
            remedy = "write numbers with a point, or pass kind multiclass"
            raise InputError(f"numbers or a few classes in target column '{column.name}'", told, remedy)
        if kind is None and numeric and len(names) != 2:
            return cls._squared(column)
        kind = kind or ("binary" if len(names) == 2 else "multiclass")
        if len(names) < 2 or (kind == "binary" and len(names) > 2):
            expected = f"{'two' if kind == 'binary' else 'two or more'} classes in target column '{column.name}'"
            raise InputError(expected, f"{len(names)}", "pass another target column or kind")
        order = sorted(names, key=float) if all(map(is_number, names)) else sorted(names)
        return cls(kind, classes=tuple(order))

    @classmethod
    def _squared(cls, column: pd.Series[Any]) -> Target:
        _, mean, std, missing = fit_number(column, "rows")
        if missing:
            _refuse_missing(column, np.isnan(numbers(column, "rows")))
        return cls("squared", mean, std)

    def encode(self, column: pd.Series[Any]) -> Tensor:
        """y of every row; missing values, and classes unknown in training, are errors."""
        if self.kind == "squared":
            scaled = standardise(column, self.mean, self.std, "rows")
            _refuse_missing(column, np.isnan(scaled))
            return torch.from_numpy(scaled).to(torch.get_default_dtype())
        codes, names = _classes(column)
        place = pd.Index(self.classes, dtype=object).get_indexer(pd.Index(names, dtype=object))
        index = place[codes].astype(np.int64)
        if (index < 0).any():
            expected = f"one of the training classes {', '.join(self.classes[:10])}"
            raise cell_error(expected, column, int((index < 0).argmax()), "rows", "remove such rows or fit on them")
        y = torch.from_numpy(index)
        return y.to(torch.get_default_dtype()) if self.kind == "binary" else y

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "classes": list(self.classes)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Target:
        """The inverse of `to_dict`; ValueError, KeyError or TypeError when the content is damaged."""
        target = cls(**{**content, "classes": tuple(content["classes"])})
        count = len(target.classes)
        fits = {"squared": count == 0, "binary": count == 2, "multiclass": count >= 2}
        if not (fits[target.kind] and distinct_texts(target.classes)):
            raise ValueError("bad target classes")
        if not (isinstance(target.mean, float) and isinstance(target.std, float)):
            raise TypeError("bad target statistics")
        if not (math.isfinite(target.mean) and 0 < target.std < math.inf):
            raise ValueError("bad target statistics")
        return target


def _classes(column: pd.Series[Any]) -> tuple[Ints, list[str]]:
    codes, names = texts(column, "rows")
    _refuse_missing(column, codes < 0)
    return codes, names


def _refuse_missing(column: pd.Series[Any], missing: NDArray[np.bool_]) -> None:
    if missing.any():
        raise cell_error("a target", column, int(missing.argmax()), "rows", "remove rows without one")
