"""ACSIncome: does a person earn more than 50,000 dollars? One task a state, from the census of 2018.

Read from a Parquet copy of the table, or from the cache that folktables downloads (`2018/1-Year/psam_p15.csv` and so
on), with its filter: older than 16, an income above 100, working hours and a survey weight. Ding et al., 2021.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from warmstart.core import InputError
from warmstart.tasks.roles import Roles, require
from warmstart.tasks.table import read_table

NUMBERS = ("AGEP", "WKHP")
CODES = ("COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "SEX", "RAC1P")
STATE, INCOME, RACE = "STATE", "PINCP", "RAC1P"
ROLES = Roles(task=STATE, target=INCOME, numeric=NUMBERS, categorical=CODES, group=RACE)
PARQUET = "acs_income_2018.parquet"
CACHE = "2018/1-Year"
RICH = 50_000
NAMES = (
    "AL AK ? AZ AR CA ? CO CT DE ? FL GA ? HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND OH"
)
NAMES += " OK OR PA ? RI SC SD TN TX UT VT VA ? WA WV WI WY"
FIPS = {number: name for number, name in enumerate(NAMES.split(), 1) if name != "?"} | {72: "PR"}


def read_acs_income(path: str | Path) -> pd.DataFrame:
    """Every person with state, features and whether the income is high, states in alphabetical order."""
    root = Path(path)
    if (root / PARQUET).is_file():
        found = read_table(root / PARQUET)
        require([STATE, *NUMBERS, *CODES, INCOME], found.columns, f"file {root / PARQUET}")
        found[STATE] = found[STATE].astype(str)
    else:
        files = sorted((root / CACHE).glob("psam_p*.csv"))
        if not files:
            wanted = f"{PARQUET}, or psam_p*.csv in {CACHE}, in {root}"
            raise InputError(wanted, "neither", "pass the folder of the data, or the cache of folktables, with --data")
        found = pd.concat([_read_state(file) for file in files], ignore_index=True)
    found = found[[STATE, *NUMBERS, *CODES, INCOME]]
    return found.sort_values(STATE, kind="stable").reset_index(drop=True)


def _read_state(file: Path) -> pd.DataFrame:
    with file.open("rb") as content:
        if content.read(200).lstrip().startswith(b"<"):
            raise InputError(f"a table in {file}", "a web page, saved by a failed download", "download it again")
    rows = read_table(file)
    require(["ST", "PWGTP", *NUMBERS, *CODES, INCOME], rows.columns, f"file {file}")
    kept = rows[(rows["AGEP"] > 16) & (rows[INCOME] > 100) & (rows["WKHP"] > 0) & (rows["PWGTP"] >= 1)]
    told = kept.copy()
    told[STATE], told[INCOME] = kept["ST"].map(FIPS), kept[INCOME] > RICH
    return told.fillna(dict.fromkeys(CODES, -1)).astype(dict.fromkeys((*NUMBERS, *CODES), int))
