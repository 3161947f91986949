"""Whether unusual users are served as well as common ones: who is which, and the gap with its interval.

A high p-value is not evidence of equality: any method with noisy errors gets one. So the gap comes with an
interval, and with Welch's test besides Student's, since the two groups differ in size and spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from warmstart.core import InputError


class Gap(NamedTuple):
    """Mean error of minor users minus that of major ones."""

    difference: float
    low: float
    high: float
    student: float  # p-values of equal means: with one variance for both groups
    welch: float  # and with one for each


def is_major(
    profiles: pd.DataFrame, columns: Sequence[str], share: float = 0.3, more_than: int = 2
) -> NDArray[np.bool_]:
    """The rule of Yu et al. (2021): more than two features among the top 30 % values of their column.

    The top 30 % are that share of a column's distinct values, rounded up, those that most users have; it is
    the reading that gives the shares of the paper's Table 1. Ties go to the value that comes first as text.
    """
    missing = [name for name in columns if name not in profiles]
    if missing or not 0 < share <= 1:
        got = f"none named '{missing[0]}'" if missing else f"a share of {share}"
        raise InputError("columns of the profiles and a share up to 1", got, "name columns that are there")
    votes = np.zeros(len(profiles), dtype=int)
    for name in columns:
        values = profiles[name].astype(object).where(profiles[name].notna(), None)
        counts = sorted(values.value_counts().items(), key=lambda pair: (-pair[1], str(pair[0])))
        top = {value for value, _ in counts[: ceil(share * len(counts))]}
        votes += np.array([value in top for value in values], dtype=int)
    return votes > more_than


def gap(errors: ArrayLike, major: NDArray[np.bool_], level: float = 0.95) -> Gap:
    """Of one error for each user; users that scored NaN are left out. The interval is Welch's."""
    from scipy.stats import ttest_ind  # imported here: loading it takes seconds

    values = np.asarray(errors, dtype=float)
    scored = ~np.isnan(values)
    minor, common = values[scored & ~major], values[scored & major]
    if min(len(minor), len(common)) < 2:
        raise InputError("two users of each kind", f"{len(common)} major, {len(minor)} minor", "judge more users")
    welch = ttest_ind(minor, common, equal_var=False)
    student = ttest_ind(minor, common)
    low, high = welch.confidence_interval(level)
    difference = float(minor.mean() - common.mean())
    return Gap(difference, float(low), float(high), float(student.pvalue), float(welch.pvalue))
