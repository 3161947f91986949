"""Clicks: values of 0 and 1, or false and true, told apart from ratings by what is in their column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from warmstart.core import InputError
from warmstart.tasks.cells import Floats, cell_error, texts

KINDS = ("squared", "binary")  # of what users say: ratings and clicks, by the names of their likelihoods
EVENTS = {"squared": "ratings", "binary": "impressions"}  # what each holds
SCALE = (0.0, 1.0)
WORDS = {"false": 0.0, "true": 1.0}


def kind_of(column: pd.Series[Any], kind: str | None, scale: tuple[float, float] | None, where: str) -> str:
    """Binary where both 0 and 1, or false and true, are there and nothing else is, unless told; a scale is of ratings.

    A table of one of the two alone is refused: who was shown what and did not click is half of what there is to learn.
    """
    if kind is not None and kind not in KINDS:
        raise InputError(f"a kind of {' or '.join(KINDS)} for preferences", repr(kind), "pass one of them, or none")
    if kind == "binary" and scale is not None:
        raise InputError("no scale for clicks", f"{scale[0]:g},{scale[1]:g}", "leave it out, or pass kind squared")
    if kind == "squared" or (kind is None and scale is not None):
        return "squared"
    found = {_value(name) for name in texts(column, where)[1]}
    if len(found) == 1 and found <= {0.0, 1.0}:
        expected = f"clicks and impressions without one in column '{column.name}' of the {where}"
        remedy = "add rows of the other value; ratings need their scale"
        raise InputError(expected, f"all {found.pop():g}", remedy)
    return "binary" if kind == "binary" or found == {0.0, 1.0} else "squared"


def read_clicks(column: pd.Series[Any], where: str) -> Floats:
    """0 and 1, NaN where missing."""
    codes, names = texts(column, where)
    known = np.array([-1.0 if (value := _value(name)) is None else value for name in names] + [np.nan])
    found: Floats = known[codes]
    if (found < 0).any():
        remedy = "correct it; other values are ratings, of kind squared"
        raise cell_error("0 or 1, false or true", column, int((found < 0).argmax()), where, remedy)
    return found


def _value(name: str) -> float | None:
    """0 or 1, however it is written; None of anything else.

    >>> [_value(name) for name in ("1", "1.0", "False", "yes", "0.5")]
    [1.0, 1.0, 0.0, None, None]
    """
    try:
        value = WORDS[name.lower()] if name.lower() in WORDS else float(name)
    except ValueError:
        return None
    return value if value in (0.0, 1.0) else None
