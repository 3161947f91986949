"""The cost of fusing, made tiny: every row is there and adds up."""

import pytest

from warmstart.estimators.model_fusion import WAYS
from warmstart.fusion import function_gp, hypernetwork, meta_model, weight_gp
from warmstart.studies import fusion_cost


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(fusion_cost.PRESETS, "quick", fusion_cost.Preset((6, 9), (2,), 2, 2, 2, 6, 3))
    monkeypatch.setattr(meta_model, "START", weight_gp.Config(rounds=1))
    monkeypatch.setitem(WAYS, "weight_gp", WAYS["weight_gp"]._replace(config=weight_gp.Config(rounds=1)))
    fast = hypernetwork.Config(hidden=(4,), steps=1)
    monkeypatch.setitem(WAYS, "hypernetwork", WAYS["hypernetwork"]._replace(config=fast))
    monkeypatch.setitem(WAYS, "function_gp", WAYS["function_gp"]._replace(config=function_gp.Config(steps=2)))


def test_every_part_is_timed(tiny):
    outcome = fusion_cost.run()
    at = {(row.method, row.metric, *row.setting.values()): row.mean for row in outcome.results.rows}
    for count in (6, 9):
        parts = sum(at[name, fusion_cost.FUSE, count] for name in WAYS)
        assert at["auto", fusion_cost.FUSE, count] == pytest.approx(parts)
        assert at["auto", fusion_cost.PER_MODEL, count] == pytest.approx(1000 * parts / count)
        assert at["function_gp", fusion_cost.GENERATE, count] > 0
    assert at["meta_model", fusion_cost.RATIO, 2, 2, 2] > 1
    for kind in ("units", "none"):
        first, last = (at["meta_model", fusion_cost.PASSED, 2, kind, epoch] for epoch in (1, 2))
        assert 0 < first < last and ("meta_model", fusion_cost.BOUND, 2, kind, 2) in at
    assert "All ways together" in outcome.verdict and len(outcome.sections) == 5


def test_one_way_can_be_timed_alone(tiny):
    outcome = fusion_cost.run(only=["nearest"])
    assert {row.method for row in outcome.results.rows} == {"nearest"} and "not timed" in outcome.verdict
