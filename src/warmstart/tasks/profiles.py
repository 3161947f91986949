"""Side tables as numbers: what describes a user or an item, one row each, fitted on training rows alone."""

from __future__ import annotations

import numpy as np
import pandas as pd

from warmstart.tasks.cells import Floats
from warmstart.tasks.features import Features
from warmstart.tasks.roles import Roles, feature_kinds

NO_ROLES = Roles(task="\0task", target="\0target")


def fit_table(table: pd.DataFrame, where: str, least: int = 5, most: int = 16) -> Features:
    """Kinds and vocabularies; values of fewer than `least` rows are left out, so a column of names vanishes."""
    if not len(table.columns):
        return Features()
    named = _named(table)
    return Features.fit(named, feature_kinds(named, NO_ROLES, "|", where), where, "|", least, most)


def numbers_of(features: Features, table: pd.DataFrame, where: str) -> Floats:
    """[n, d]: numbers and their squares, then 0 and 1 for each known value of the other columns.

    A column that the table lacks is missing in every row.
    """
    found = features.encode(_named(table), where)
    numeric = found["numeric"].numpy().astype(np.float64)
    categorical, bag = found["categorical"].numpy(), found["bag"].numpy()
    parts = [numeric, numeric[:, : len(features.numeric)] ** 2 - 1]
    for i, vocabulary in enumerate(features.categorical):
        parts.append(_marks(categorical[:, i, None], vocabulary.size))
    for i, vocabulary in enumerate(features.bag):
        parts.append(_marks(bag[:, i], vocabulary.size))
    return np.concatenate(parts, 1)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Names as text, so that messages tell whose row it is: its number in a file is not known. Events have no names."""
    return table if isinstance(table.index, pd.RangeIndex) else table.set_axis(table.index.astype(str))


def _marks(index: np.ndarray[tuple[int, ...], np.dtype[np.int64]], size: int) -> Floats:
    """1 where a known value (index 2 on) is among those of a row."""
    marks = np.zeros((len(index), size))
    np.put_along_axis(marks, index, 1.0, 1)
    return marks[:, 2:]
