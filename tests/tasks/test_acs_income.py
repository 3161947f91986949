"""ACSIncome from a Parquet copy and from the cache of folktables."""

import numpy as np
import pandas as pd
import pytest

from warmstart.core import InputError
from warmstart.tasks.acs_income import CODES, FIPS, INCOME, NUMBERS, STATE, read_acs_income
from warmstart.tasks.transfer import read_transfer


def survey(rows=30):
    draw = np.random.default_rng(0)
    table = pd.DataFrame({name: draw.integers(1, 5, rows) for name in (*NUMBERS, *CODES)})
    table["AGEP"] = [16, *[30] * (rows - 1)]
    table["WKHP"] = [40, 0, *[40] * (rows - 2)]
    table["PINCP"] = [60_000, 60_000, 100, *[50_000] * 5, *[50_001] * (rows - 8)]
    table["PWGTP"], table["ST"] = 1, 15
    return table


def test_the_cache_is_filtered_as_folktables_does(tmp_path):
    folder = tmp_path / "2018" / "1-Year"
    folder.mkdir(parents=True)
    survey().to_csv(folder / "psam_p15.csv", index=False)
    survey(40).assign(ST=72).to_csv(folder / "psam_p72.csv", index=False)
    found = read_acs_income(tmp_path)
    assert list(found.columns) == [STATE, *NUMBERS, *CODES, INCOME]
    assert found[STATE].value_counts().to_dict() == {"HI": 27, "PR": 37}
    assert found[INCOME].sum() == 22 + 32


def test_a_saved_web_page_is_recognised(tmp_path):
    folder = tmp_path / "2018" / "1-Year"
    folder.mkdir(parents=True)
    (folder / "psam_p15.csv").write_text("\n<!DOCTYPE html><html>Not found</html>")
    with pytest.raises(InputError, match="a web page, saved by a failed download"):
        read_acs_income(tmp_path)


def test_a_folder_without_either_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"psam_p\*.csv"):
        read_acs_income(tmp_path)


def test_codes_of_states():
    assert (FIPS[1], FIPS[15], FIPS[36], FIPS[56], FIPS[72]) == ("AL", "HI", "NY", "WY", "PR") and len(FIPS) == 51


def test_the_real_table(shared_data):
    if not (shared_data / "acs_income_2018.parquet").exists():
        pytest.skip("no acs_income_2018.parquet there")
    from warmstart.tasks.acs_income import ROLES

    found = read_acs_income(shared_data)
    assert len(found) == 1_434_979 and found[STATE].nunique() == 51
    small = found.groupby(STATE).head(300)
    transfer = read_transfer(small, ROLES, "HI")
    assert transfer.sources == 50 and transfer.columns.numeric == 2 and len(transfer.columns.categorical) == 8
