"""Corruption is as the recipe says, and the study runs from end to end on a small census."""

import numpy as np
import pandas as pd
import pytest

from warmstart.core import InputError
from warmstart.estimators.source_methods import ALL, OURS, RANDOM, TREES, Plan
from warmstart.selection import final, task_model, training
from warmstart.studies import select_harm
from warmstart.studies.select_rows import ACCURACY, EXCLUDED, KEPT, VALIDATION, preferred, rows_of
from warmstart.tasks.acs_income import CODES, INCOME, NUMBERS, STATE

STATES = [f"S{i:02}" for i in range(9)] + ["HI"]


def people(rows=1200, seed=0):
    """Income by a rule of schooling and occupation that all states share."""
    draw = np.random.default_rng(seed)
    count = rows * len(STATES)
    table = pd.DataFrame({name: draw.integers(1, 9, count) for name in CODES})
    table["RAC1P"] = np.where(draw.random(count) < 0.95, 1, 2)
    for name in NUMBERS:
        table[name] = draw.integers(17, 90, count)
    score = table["SCHL"] - 4.5 + np.where(table["OCCP"] % 2, 2.0, -2.0)
    table[INCOME] = score + draw.normal(size=count) > 0
    table[STATE] = np.repeat(STATES, rows)
    return table


def test_a_third_of_the_sources_is_corrupted_a_third_of_each_kind():
    states = [f"{i}" for i in range(50)]
    one, other = select_harm.corruptions(states, 0), select_harm.corruptions(states, 1)
    kinds = np.array(list(one.values()))
    assert list(one) == states and (kinds >= 0).sum() == 17
    assert [(kinds == kind).sum() for kind in range(3)] == [6, 6, 5]
    assert one != other


def test_each_kind_changes_what_it_should_and_nothing_else():
    before = people()
    after = select_harm.corrupt(before, {"S00": 0, "S01": 1, "S02": 2}, seed=3)
    old, new = (dict(list(table.groupby(STATE))) for table in (before, after))
    features = [*CODES, *NUMBERS]
    assert len(after) == len(before)
    for state in STATES[3:]:
        pd.testing.assert_frame_equal(old[state].reset_index(drop=True), new[state].reset_index(drop=True))
    flipped = (old["S00"][INCOME].to_numpy() != new["S00"][INCOME].to_numpy()).mean()
    assert abs(flipped - 0.6) < 0.06
    assert (old["S00"][features].to_numpy() == new["S00"][features].to_numpy()).all()
    for name in features:
        assert sorted(old["S01"][name]) == sorted(new["S01"][name])
        assert (old["S01"][name].to_numpy() != new["S01"][name].to_numpy()).any()
    assert (old["S01"][INCOME].to_numpy() == new["S01"][INCOME].to_numpy()).all()
    for name in CODES:
        pairs = set(zip(old["S02"][name], new["S02"][name], strict=True))
        assert len(pairs) == old["S02"][name].nunique() == new["S02"][name].nunique()
        assert (name in select_harm.BIJECTED) == any(a != b for a, b in pairs)


def test_columns_are_permuted_each_by_itself():
    before = people()
    before["COW"] = before["SCHL"]
    after = select_harm.corrupt(before, {"S01": 1}, seed=0)
    rows = after[after[STATE] == "S01"]
    assert (rows["COW"] != rows["SCHL"]).mean() > 0.5


def test_the_study_finds_planted_corruption(tmp_path, monkeypatch):
    small = training.Config(hidden=(8,), steps=80, batch=64, balance=0.0)
    plan = Plan(
        final.Config(training.Config(hidden=(8,), steps=80, batch=64), tuning=10),
        task_model.Config(size=2, subsets=25, held_out=5, starts=1, training=small),
        trials=2,
    )
    monkeypatch.setitem(select_harm.PRESETS, "quick", select_harm.Preset(("HI",), (ALL, RANDOM, TREES, OURS), plan))
    people().to_parquet(tmp_path / "acs_income_2018.parquet")
    outcome = select_harm.run(data=tmp_path, device="cpu", folder=tmp_path / "kept")
    at = {(row.method, row.metric): row.mean for row in outcome.results.rows if row.setting["target"] == "mean"}
    assert at[OURS, EXCLUDED] == 100 and at[OURS, KEPT] > 80
    assert at[OURS, f"{ACCURACY} minus {ALL}"] == pytest.approx(at[OURS, ACCURACY] - at[ALL, ACCURACY])
    assert at[OURS, f"{ACCURACY} minus {TREES}"] == pytest.approx(at[OURS, ACCURACY] - at[TREES, ACCURACY])
    assert "excludes 100 % of the corrupted sources" in outcome.verdict
    again = select_harm.run(data=tmp_path, device="cpu", folder=tmp_path / "kept")
    assert again.results.rows == outcome.results.rows


def test_rows_are_paired_by_seed_and_target():
    judged = {
        ALL: {(0, "a"): {ACCURACY: 80.0, VALIDATION: 0.5}, (0, "b"): {ACCURACY: 70.0, VALIDATION: 0.4}},
        OURS: {(0, "a"): {ACCURACY: 81.0, VALIDATION: 0.4}, (0, "b"): {ACCURACY: 73.0, VALIDATION: 0.6}},
        "hoa": {(0, "a"): {ACCURACY: 79.0, VALIDATION: 0.7}},  # on one target only
    }
    rows = {(row.method, row.metric, row.setting["target"]): row for row in rows_of(judged)}
    apart = rows[OURS, f"{ACCURACY} minus {ALL}", "mean"]
    assert apart.mean == pytest.approx(2.0) and apart.n == 2
    assert rows[OURS, ACCURACY, "b"].mean == 73.0
    assert [key for key in rows if key[0] == "hoa"] == [("hoa", ACCURACY, "a")]
    for score in (score for scores in judged.values() for score in scores.values()):
        score["worst group"] = score[ACCURACY] - 1
    best = preferred(judged)
    assert best[0, "a"][ACCURACY] == 81.0 and best[0, "b"][ACCURACY] == 70.0


def test_data_are_needed():
    with pytest.raises(InputError, match="ACSIncome"):
        select_harm.run()
