"""The study of convergence on a planted transfer, and its rows from hand-made values."""

import pytest
import torch

from warmstart.core import InputError
from warmstart.selection import task_model, training
from warmstart.studies import select_convergence
from warmstart.studies.select_convergence import (
    CEILING,
    COST,
    ERROR,
    ESTIMATE,
    LINEAR,
    MEAN,
    NEEDED,
    OURS,
    OVERLAP,
    RANK,
    SHARE,
    Preset,
    judge,
    remembered,
    rows_of,
    verdict,
)

SHORT = training.Config(hidden=(8,), steps=60, batch=64, balance=0.0)
CFG = task_model.Config(starts=2, held_out=8, training=SHORT)


def test_more_subsets_come_closer_and_linearised_ones_rank_alike(planted, tmp_path):
    chosen = Preset(("A",), (6, 20), 3, {}, CFG)
    found = remembered(tmp_path / "kept.json", planted, chosen, 3, (6, 20), 0)
    assert found[f"{LINEAR}; {OVERLAP}; 3; 20"] == 7.0 and f"{OURS}; {OVERLAP}; 3; 20" not in found  # of seven sources
    assert found[f"{OURS}; {ERROR}; 3; 20"] < found[f"{OURS}; {ERROR}; 3; 6"]
    for name in (OURS, LINEAR, ESTIMATE, CEILING):
        assert found[f"{name}; {RANK}; 3; 20"] > 0.7
    share = found[f"{OURS}; {RANK}; 3; 20"] / found[f"{CEILING}; {RANK}; 3; 20"]
    assert found[f"{OURS}; {SHARE}; 3; 20"] == pytest.approx(share)
    far = found[f"{OURS}; {ERROR}; 3; 6"] > 1.1 * found[f"{OURS}; {ERROR}; 3; 20"]
    assert found[f"{OURS}; {NEEDED}; 3; 20"] == (20 / 7 if far else 6 / 7)
    assert f"{ESTIMATE}; {COST}; 3; 20" in found
    assert remembered(tmp_path / "kept.json", None, chosen, 3, (6, 20), 0) == found  # nothing is run again


def test_what_does_not_differ_ranks_nothing(planted, monkeypatch):
    monkeypatch.setattr(select_convergence, "cross_entropy", lambda out, rows: torch.ones(len(out)))
    found = judge(planted, CFG, 2, (12,), 0)
    assert all(found[f"{name}; {RANK}; 2; 12"] == 0 for name in (OURS, LINEAR, ESTIMATE, CEILING))
    assert not any(SHARE in key for key in found)


def test_one_count_has_no_subsets_needed(planted):
    assert not any(NEEDED in key for key in judge(planted, CFG, 2, (12,), 0))


def test_states_are_averaged_at_the_usual_size_only():
    chosen = Preset(("A", "B"), (50, 100), 5, {2: 80}, CFG)
    part = {f"{OURS}; {RANK}; 5; 50": 0.4, f"{OURS}; {RANK}; 5; 100": 0.6, f"{OURS}; {NEEDED}; 5; 100": 2.0}
    found = {
        "A": {0: part | {f"{OURS}; {RANK}; 2; 80": 0.1, f"{LINEAR}; {RANK}; 5; 100": 0.2}},
        "B": {0: {key: value + 0.2 for key, value in part.items()}},
    }
    rows = rows_of(found, [OURS], chosen)
    at = {(row.metric, *row.setting.values()): row.mean for row in rows}
    assert at[RANK, MEAN, 5, 100] == pytest.approx(0.7) and at[RANK, MEAN, 5, 50] == pytest.approx(0.5)
    assert (RANK, MEAN, 2, 80) not in at and at[RANK, "A", 2, 80] == 0.1
    assert {row.method for row in rows} == {OURS}
    assert "task_model 0.70; 2.1 subsets" in verdict(rows, 100)


def test_the_study_from_end_to_end(monkeypatch, tmp_path, census):
    cfg = task_model.Config(starts=2, held_out=2, training=SHORT)
    monkeypatch.setitem(select_convergence.PRESETS, "quick", Preset(("HI", "NY"), (2, 4), 2, {1: 2}, cfg))
    census.to_parquet(tmp_path / "acs_income_2018.parquet")
    outcome = select_convergence.run(data=tmp_path, device="cpu", folder=tmp_path / "kept")
    rows = outcome.results.rows
    assert {row.setting["target"] for row in rows} == {"HI", "NY", MEAN}
    assert {row.setting["target"] for row in rows if row.setting["size"] == 1} == {"HI"}
    assert len(outcome.sections) == 6 and "subsets per source are enough" in outcome.verdict
    again = select_convergence.run(data=tmp_path, device="cpu", folder=tmp_path / "kept")
    assert again.results.rows == rows
    with pytest.raises(InputError, match="methods or states among"):
        select_convergence.run(only=["nobody"])
