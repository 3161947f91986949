"""The study of clean sources from end to end on a small census, and group thresholds that close a gap."""

import pytest
import torch

from warmstart.core import InputError
from warmstart.estimators.source_methods import ALL, ALONE, OURS, RANDOM, TREES_ALONE, Plan
from warmstart.selection import final, task_model, training
from warmstart.selection.final import Fitted
from warmstart.studies import select_census
from warmstart.studies.select_rows import ACCURACY, BEST, WORST
from warmstart.tasks.transfer import Rows, make_transfer


def test_the_study_runs_and_ends_with_what_validation_prefers(tmp_path, monkeypatch, census):
    pytest.importorskip("lightgbm", reason="extra boost is not installed")
    pytest.importorskip("fairlearn", reason="extra fairness is not installed")
    small = training.Config(hidden=(8,), steps=60, batch=64, balance=0.0)
    plan = Plan(
        final.Config(training.Config(hidden=(8,), steps=60, batch=64), tuning=0),
        task_model.Config(size=1, subsets=2, held_out=2, starts=1, training=small),
        trials=2,
    )
    names = (ALONE, ALL, RANDOM, TREES_ALONE, OURS)
    monkeypatch.setitem(select_census.PRESETS, "quick", select_census.Preset(("HI",), names, plan))
    census.to_parquet(tmp_path / "acs_income_2018.parquet")
    outcome = select_census.run(data=tmp_path, device="cpu", folder=tmp_path / "kept")
    at = {(row.method, row.metric): row.mean for row in outcome.results.rows if row.setting["target"] == "mean"}
    assert {name for name, _ in at} == {*names, select_census.THRESHOLDS, select_census.PRICED, BEST}
    assert at[BEST, ACCURACY] in [at[name, ACCURACY] for name in names]
    assert at[BEST, WORST] <= 100 and "against random order" in outcome.verdict
    assert not any("CA" in str(path) for path in (tmp_path / "kept").rglob("*"))
    again = select_census.run(data=tmp_path, device="cpu", folder=tmp_path / "kept")
    assert again.results.rows == outcome.results.rows


def test_thresholds_by_group_make_true_positive_rates_equal():
    pytest.importorskip("fairlearn", reason="extra fairness is not installed")
    draw = torch.Generator().manual_seed(0)

    def sample(count):
        group = (torch.rand(count, generator=draw) < 0.5).long()
        y = (torch.rand(count, generator=draw) < 0.5).float()
        score = 2 * y - 1 + torch.randn(count, generator=draw) - 1.5 * group
        return Rows(score[:, None], y, group)

    transfer = make_transfer([sample(50)], sample(50), sample(3000), sample(3000))._replace(groups=("1", "2"))
    fitted = Fitted(lambda x: x["numeric"], torch.zeros(1), 0.0, 1, None)
    before = select_census.gaps(transfer, fitted)
    after = select_census.with_thresholds(transfer, fitted)
    assert before[select_census.OPPORTUNITY] > 30
    assert after[select_census.OPPORTUNITY] < 6
    assert after[ACCURACY] > 70
    priced = select_census.with_price(transfer, fitted)
    assert priced[select_census.OPPORTUNITY] < 6
    assert priced[ACCURACY] > 70  # the scores are no chances here, which it takes them for


def test_data_are_needed():
    with pytest.raises(InputError, match="ACSIncome"):
        select_census.run()
