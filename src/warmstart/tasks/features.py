"""Features: how columns become tensors, fitted on training rows alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from warmstart.core import Columns
from warmstart.tasks.cells import Cells, Floats, Ints, cell_error, cells, distinct_pairs, numbers, texts

FAR = 10  # standard deviations from the mean in training, beyond which a number is told
FEW = 3  # values that a note names


class Number(NamedTuple):
    """A numeric column; `missing` says that it gets a 0/1 column telling where it was missing."""

    name: str
    mean: float
    std: float
    missing: bool


class Vocabulary(NamedTuple):
    """A column of texts: value i has index i + 2, most frequent in training first."""

    name: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.values) + 2

    def lookup(self, names: Sequence[str]) -> Ints:
        """0 missing is for the caller, 1 unseen, 2 on for values."""
        place = _places(self.values).get_indexer(pd.Index(names, dtype=object))
        return np.where(place < 0, 1, place + 2).astype(np.int64)


@functools.lru_cache(maxsize=256)
def _places(values: tuple[str, ...]) -> pd.Index[Any]:
    """Kept, since its hash table costs more than a look-up of a few names."""
    return pd.Index(values, dtype=object)


def fit_number(column: pd.Series[Any], where: str) -> Number:
    """Mean and standard deviation of what is there; a constant column is only centred."""
    values = numbers(column, where)
    known = values[~np.isnan(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = (float(known.mean()), float(known.std())) if len(known) else (0.0, 1.0)
    if not (math.isfinite(mean) and math.isfinite(std)):
        largest = int(np.nanargmax(np.abs(values)))
        raise cell_error("numbers that can be squared", column, largest, where, "rescale the column")
    # the spread of equal numbers is rounding error, not always 0
    spread = std > 1e-12 * float(np.abs(known).max(initial=0.0))
    return Number(str(column.name), mean, std if spread else 1.0, len(known) < len(values))


def _frequent(name: str, names: list[str], counts: Ints, min_count: int) -> Vocabulary:
    kept = sorted((-int(count), text) for text, count in zip(names, counts, strict=True) if count >= min_count)
    return Vocabulary(name, tuple(text for _, text in kept))


@dataclass(frozen=True)
class Features:
    """How some columns become `numeric`, `categorical` and `bag` tensors."""

    numeric: tuple[Number, ...] = ()
    categorical: tuple[Vocabulary, ...] = ()
    bag: tuple[Vocabulary, ...] = ()
    bag_length: int = 0  # members kept of a bag: those most frequent in training
    separator: str = "|"

    @classmethod
    def fit(
        cls, frame: pd.DataFrame, kinds: Mapping[str, str], where: str, separator: str, min_count: int, max_bag: int
    ) -> Features:
        """Statistics and vocabularies of the columns in `kinds`: name -> numeric, categorical or multi."""
        numeric = [fit_number(frame[name], where) for name, kind in kinds.items() if kind == "numeric"]
        categorical, bag, length = [], [], 0
        for name in (name for name, kind in kinds.items() if kind == "categorical"):
            codes, names = texts(frame[name], where)
            counts = np.bincount(codes[codes >= 0], minlength=len(names))
            categorical.append(_frequent(name, names, counts, min_count))
        for name in (name for name, kind in kinds.items() if kind == "multi"):
            found = cells(frame[name], separator, where)
            rows = np.bincount(found.row[found.row >= 0], minlength=int(found.cell.max(initial=-1)) + 1)
            counts = np.bincount(found.value, weights=rows[found.cell], minlength=len(found.names)).astype(np.int64)
            bag.append(_frequent(name, found.names, counts, min_count))
            length = max(length, int(np.bincount(found.cell).max(initial=1)))
        return cls(tuple(numeric), tuple(categorical), tuple(bag), min(length, max_bag), separator)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Features:
        """The inverse of `to_dict`; ValueError, KeyError or TypeError when the content is damaged."""
        numeric = tuple(Number(**part) for part in content["numeric"])
        categorical = tuple(Vocabulary(part["name"], tuple(part["values"])) for part in content["categorical"])
        bag = tuple(Vocabulary(part["name"], tuple(part["values"])) for part in content["bag"])
        features = cls(numeric, categorical, bag, content["bag_length"], content["separator"])
        features._check()
        return features

    def _check(self) -> None:
        for number in self.numeric:
            sound = (
                isinstance(number.mean, float) and isinstance(number.std, float) and isinstance(number.missing, bool)
            )
            if not (sound and math.isfinite(number.mean) and 0 < number.std < math.inf):
                raise ValueError(f"bad statistics of column {number.name}")
        for vocabulary in (*self.categorical, *self.bag):
            if not distinct_texts(vocabulary.values):
                raise ValueError(f"bad vocabulary of column {vocabulary.name}")
        if not distinct_texts(self.names):
            raise ValueError("bad column names")
        if type(self.bag_length) is not int or self.bag_length < (1 if self.bag else 0):
            raise ValueError("bad bag_length")
        if not (isinstance(self.separator, str) and self.separator):
            raise ValueError("bad separator")

    @property
    def names(self) -> list[str]:
        parts: tuple[Number | Vocabulary, ...] = (*self.numeric, *self.categorical, *self.bag)
        return [part.name for part in parts]

    @property
    def columns(self) -> Columns:
        indicators = sum(number.missing for number in self.numeric)
        return Columns(
            len(self.numeric) + indicators,
            tuple(vocabulary.size for vocabulary in self.categorical),
            tuple(vocabulary.size for vocabulary in self.bag),
        )

    def encode(self, frame: pd.DataFrame, where: str) -> dict[str, Tensor]:
        """Rows as tensors; a column that the frame lacks is missing in every row."""
        absent = pd.Series([None] * len(frame), dtype=object)
        source = {name: frame[name] if name in frame else absent.rename(name) for name in self.names}
        numeric = [standardise(source[number.name], number.mean, number.std, where) for number in self.numeric]
        flags = [np.isnan(part) for part, number in zip(numeric, self.numeric, strict=True) if number.missing]
        categorical = [_indices(vocabulary, source[vocabulary.name], where) for vocabulary in self.categorical]
        bag = [self._bag(vocabulary, source[vocabulary.name], where) for vocabulary in self.bag]
        stacked = np.stack([*numeric, *flags], 1) if numeric else np.zeros((len(frame), 0))
        return {
            "numeric": torch.from_numpy(np.nan_to_num(stacked, nan=0.0)).to(torch.get_default_dtype()),
            "categorical": _stacked(categorical, (len(frame), 0)),
            "bag": _stacked(bag, (len(frame), 0, self.bag_length)),
        }

    def strange(self, frame: pd.DataFrame, where: str, whose: str, counted: bool = False) -> list[str]:
        """Notes on values that no or hardly any training row had, which tell nothing, and on numbers far off.

        With `counted` they say in how many rows; without, they are the same of every table.
        """
        notes = []
        for number in self.numeric:
            if number.name in frame:
                far = np.abs(standardise(frame[number.name], number.mean, number.std, where)) > FAR
                new = [f"{value:g}" for value in np.unique(numbers(frame[number.name], where)[far])]
                told = f"more than {FAR} standard deviations from the mean of training {whose}: far from all learned"
                notes += _note(number.name, new, far, where if counted else "", told)
        for vocabulary in (*self.categorical, *self.bag):
            if vocabulary.name in frame and vocabulary.values:
                column = frame[vocabulary.name].reset_index(drop=True)
                found = cells(column, self.separator, where) if vocabulary in self.bag else _single(column, where)
                unseen = vocabulary.lookup(found.names) == 1
                new = [repr(name) for name, one in zip(found.names, unseen, strict=True) if one]
                rows = np.isin(found.row, found.cell[unseen[found.value]])
                told = f"which no or few training {whose} have: taken as unknown"
                notes += _note(vocabulary.name, new, rows, where if counted else "", told)
        return notes

    def _bag(self, vocabulary: Vocabulary, column: pd.Series[Any], where: str) -> Ints:
        """[N, bag_length] indices, 0 after the last member."""
        found = cells(column, self.separator, where)
        index = vocabulary.lookup(found.names)[found.value]
        rank = np.where(index == 1, vocabulary.size, index)  # the unseen comes last, and once
        cell, rank = distinct_pairs(found.cell, rank)
        slot = np.arange(len(cell)) - np.searchsorted(cell, cell)
        kept = slot < self.bag_length
        # one cell more, of zeros, which row -1 finds
        filled = np.zeros((int(found.row.max(initial=-1)) + 2, self.bag_length), dtype=np.int64)
        filled[cell[kept], slot[kept]] = np.where(rank == vocabulary.size, 1, rank)[kept]
        return filled[found.row]

    def to_dict(self) -> dict[str, Any]:
        return {
            "numeric": [number._asdict() for number in self.numeric],
            "categorical": [{"name": part.name, "values": list(part.values)} for part in self.categorical],
            "bag": [{"name": part.name, "values": list(part.values)} for part in self.bag],
            "bag_length": self.bag_length,
            "separator": self.separator,
        }


def _single(column: pd.Series[Any], where: str) -> Cells:
    """Cells of one member each."""
    codes, names = texts(column, where)
    return Cells(codes, np.arange(len(names)), np.arange(len(names)), names)


def _note(name: str, values: list[str], rows: NDArray[np.bool_], where: str, told: str) -> list[str]:
    few = ", ".join(values[:FEW]) + (f" and {len(values) - FEW} others" if len(values) > FEW else "")
    place = f" in {rows.sum():,} of {len(rows):,} rows of the {where}" if where else ""
    return [f"'{name}' is {few}{place}, {told}"] if values else []


def distinct_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values) and len(set(values)) == len(values)


def standardise(column: pd.Series[Any], mean: float, std: float, where: str) -> Floats:
    """(value - mean) / std, NaN where missing."""
    with np.errstate(over="ignore"):
        scaled = (numbers(column, where) - mean) / std
    far = np.abs(scaled) > 1e38  # beyond this a float32 overflows
    if far.any():
        expected = f"a number within 1e38 standard deviations ({std:g}) of the training mean"
        raise cell_error(expected, column, int(far.argmax()), where, "correct it, or rescale the column")
    return scaled


def _indices(vocabulary: Vocabulary, column: pd.Series[Any], where: str) -> Ints:
    codes, names = texts(column, where)
    return np.append(vocabulary.lookup(names), 0)[codes]


def _stacked(parts: list[Ints], empty: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.stack(parts, 1)) if parts else torch.zeros(empty, dtype=torch.long)
