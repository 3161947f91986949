"""Side tables as numbers."""

import numpy as np
import pandas as pd
import pytest

from warmstart.core import InputError
from warmstart.tasks.profiles import fit_table, numbers_of


def ages(values, names):
    return pd.DataFrame({"age": values}, index=names)


@pytest.mark.parametrize("names", [["ann", "bob"], [7, 9]], ids=["text", "numbers"])
def test_a_cell_that_cannot_be_read_is_named_by_whose_row_it_is(names):
    """Its number in the file is not known: rows were sorted, and some left out."""
    known = fit_table(ages(np.linspace(20, 60, 18), list(range(18))), "users")
    assert numbers_of(known, ages([20.0, 60.0], names), "users").shape[0] == 2
    with pytest.raises(InputError, match=f"in column 'age' of the users, got inf in the row of {names[1]};"):
        numbers_of(known, ages([20.0, np.inf], names), "users")
    with pytest.raises(InputError, match=f"got 'old' in the row of {names[0]};"):
        numbers_of(known, ages(["old", 20.0], names), "users")
