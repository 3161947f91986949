"""Major and minor users by the paper's rule, and the gap between them by the textbook."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from warmstart.core import InputError
from warmstart.metrics.minority import gap, is_major

PROFILES = pd.DataFrame(
    {
        "sex": ["m", "m", "m", "f", "m"],  # top 30 % of 2 values is one: m
        "age": ["a", "a", "b", "b", "c"],  # of 3 values one: a, before b as text
        "job": ["x", "y", "x", None, "y"],  # of 2 values one: x
    }
)


def test_the_rule_counts_features_with_frequent_values():
    columns = ["sex", "age", "job"]
    assert is_major(PROFILES, columns).tolist() == [True, False, False, False, False]
    assert is_major(PROFILES, columns, more_than=1).tolist() == [True, True, True, False, False]
    assert is_major(PROFILES, columns, share=0.6, more_than=2).tolist() == [True, True, True, False, False]
    assert is_major(PROFILES, ["age"], share=0.5, more_than=0).tolist() == [True, True, True, True, False]
    with pytest.raises(InputError, match="none named 'zip'"):
        is_major(PROFILES, ["zip"])
    with pytest.raises(InputError, match="a share of 0"):
        is_major(PROFILES, columns, share=0)


def test_gap_by_the_textbook():
    minor, major = np.array([1.0, 2.0, 4.0, 9.0]), np.array([1.0, 1.5, 2.0, 0.5, 3.0, 2.5])
    errors = np.concatenate([minor, [math.nan], major])
    found = gap(errors, np.array([False] * 5 + [True] * 6), 0.9)
    a, b = minor.var(ddof=1) / 4, major.var(ddof=1) / 6
    difference = minor.mean() - major.mean()
    freedom = (a + b) ** 2 / (a**2 / 3 + b**2 / 5)
    half = t.ppf(0.95, freedom) * math.sqrt(a + b)
    assert found[:3] == pytest.approx((difference, difference - half, difference + half))
    assert found.welch == pytest.approx(2 * t.sf(abs(difference) / math.sqrt(a + b), freedom))
    pooled = (3 * minor.var(ddof=1) + 5 * major.var(ddof=1)) / 8 * (1 / 4 + 1 / 6)
    assert found.student == pytest.approx(2 * t.sf(abs(difference) / math.sqrt(pooled), 8))
    with pytest.raises(InputError, match="two users of each kind"):
        gap([1.0, 2.0, 3.0], np.array([True, True, False]))
