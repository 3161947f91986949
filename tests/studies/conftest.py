"""Transfers whose truth is known, for the studies of selection."""

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.tasks.acs_income import CODES, INCOME, NUMBERS, STATE
from warmstart.tasks.transfer import Rows, make_transfer

STATES = ["CA", "HI", "NY", "OH", "PA", "TX"]


@pytest.fixture(scope="session")
def census():
    """A table of people as in ACSIncome."""
    rows = 1300
    draw = np.random.default_rng(1)
    count = rows * len(STATES)
    table = pd.DataFrame({name: draw.integers(1, 9, count) for name in CODES})
    table["RAC1P"] = np.where(draw.random(count) < 0.9, 1, 2)
    for name in NUMBERS:
        table[name] = draw.integers(17, 90, count)
    score = table["SCHL"] - 4.5 + np.where(table["OCCP"] % 2, 2.0, -2.0) - (table["RAC1P"] == 2)
    table[INCOME] = score + draw.normal(size=count) > 0
    table[STATE] = np.repeat(STATES, rows)
    return table


@pytest.fixture(scope="session")
def planted():
    """Seven sources, of which the last three contradict the target."""
    draw = torch.Generator().manual_seed(0)
    rule = torch.randn(4, generator=draw)

    def sample(count, sign):
        x = torch.randn(count, 4, generator=draw)
        y = (sign * (x @ rule) + 0.5 * torch.randn(count, generator=draw) > 0.3).float()
        return Rows(x, y, torch.zeros(count, dtype=torch.long))

    sources = [sample(200, sign) for sign in (1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0)]
    return make_transfer(sources, sample(40, 1.0), sample(400, 1.0), sample(50, 1.0))
