"""Cells: few rows are read one by one and many by a hash table, with the same outcome."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.core import InputError
from warmstart.tasks.cells import SHORT, ranks, texts

mixed = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(["1", " 1", "a", "", "1.0"])
KINDS = (
    st.lists(mixed, min_size=1, max_size=8).map(lambda cells: pd.Series(cells, dtype=object)),
    st.lists(st.integers(-3, 3), min_size=1, max_size=8).map(pd.Series),
    st.lists(st.floats(-2, 2) | st.just(np.nan), min_size=1, max_size=8).map(
        lambda cells: pd.Series(cells, dtype=float)
    ),
    st.lists(st.sampled_from(["x", " x", "y", None]), min_size=1, max_size=8).map(
        lambda cells: pd.Series(cells, dtype="string")
    ),
    st.lists(st.sampled_from(["x", "y", None]), min_size=1, max_size=8).map(
        lambda cells: pd.Series(cells, dtype=object).astype("category")
    ),
)


@given(st.one_of(*KINDS))
def test_few_rows_are_read_as_many(column):
    times = SHORT // len(column) + 1
    many = pd.concat([column] * times, ignore_index=True)
    codes, names = texts(column, "rows")
    again, same = texts(many, "rows")
    assert len(many) > SHORT >= len(column)
    assert names == same and np.array_equal(np.tile(codes, times), again)
    assert codes.dtype == again.dtype


@pytest.mark.parametrize("rows", [3, SHORT + 3])
def test_cells_that_hold_several_values_are_refused(rows):
    column = pd.Series(["a"] * (rows - 1) + [["b", "c"]], name="tags")
    with pytest.raises(InputError, match=rf"'tags' of the rows, got \['b', 'c'\] in row {rows}"):
        texts(column, "rows")


def test_amid_numbers_the_text_is_what_is_wrong_with_times():
    with pytest.raises(InputError, match="'noon' in row 3"):
        ranks(pd.Series(["1", "2", "noon"], name="day"), "rows")
    with pytest.raises(InputError, match="'1' in row 2"):
        ranks(pd.Series(["2024-01-01", "1"], name="day"), "rows")
