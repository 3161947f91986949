"""Targets: the kind that is inferred, the numbers that come out, and what is refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.core import InputError
from warmstart.tasks.target import Target


def series(*values):
    return pd.Series(values, name="y")


def refused(match, call, *arguments):
    with pytest.raises(InputError, match=match):
        call(*arguments)


@pytest.mark.parametrize(
    ("column", "kind", "classes"),
    [
        ([True, False, True], "binary", ("False", "True")),
        ([3, 10, 3], "binary", ("3", "10")),
        ([1.0, -1.0, 1.0], "binary", ("-1", "1")),
        (["no", "yes", "no"], "binary", ("no", "yes")),
        (["c", "a", "b"], "multiclass", ("a", "b", "c")),
        ([1, 2, 3], "squared", ()),
        ([4, 4, 4], "squared", ()),
    ],
)
def test_target_kind(column, kind, classes):
    target = Target.fit(series(*column))
    assert (target.kind, target.classes) == (kind, classes)
    y = target.encode(series(*column))
    assert y.dtype == (torch.long if kind == "multiclass" else torch.float32)
    if kind == "squared":
        np.testing.assert_allclose(y * target.std + target.mean, column, rtol=1e-6)
    else:
        assert [classes[int(i)] for i in y] == [str(value).removesuffix(".0") for value in column]


def test_forced_target_kinds():
    grades = series(2, 10, 1)
    assert Target.fit(grades, "multiclass").classes == ("1", "2", "10")
    assert Target.fit(series("1", "2", "6"), "squared").mean == 3
    refused("two classes in target column 'y', got 3", Target.fit, grades, "binary")
    refused("two or more classes", Target.fit, series("a", "a"))
    refused("a target kind of squared", Target.fit, grades, "poisson")
    refused("a number in column 'y' of the rows, got 'b' in row 2", Target.fit, series("1", "b"), "squared")


@pytest.mark.parametrize("kind", ["squared", "multiclass"])
def test_bad_cells(kind):
    target = Target.fit(series("1", "2", "3"), kind)
    refused("a target in column 'y' of the rows, got .* in row 2", target.encode, series("1", None))
    expected = "a number" if kind == "squared" else "one of the training classes 1, 2, 3"
    refused(f"{expected} in column 'y' of the rows, got 'x' in row 2", target.encode, series("3", "x"))


def test_bad_cells_at_fit():
    refused("a target in column 'y' of the rows, got nan in row 3", Target.fit, series(1, 2, np.nan, 4))
    refused("finite.* got inf in row 2", Target.fit, series(1, np.inf, 3))
    refused("got 'two' in row 2; correct", Target.fit, series("1", "two", "3"))
    refused("within 1e38", Target.fit(series(0.0, 1.0, 2.0)).encode, series(1e300))
