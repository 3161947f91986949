"""The benchmark of the number of sources: small, and its sums."""

import pytest

from warmstart.benches import source_count
from warmstart.benches.source_count import DRAW, EACH, FIT, GROWTH, TRAIN, WHOLE


def test_parts_add_up_and_are_told_by_source(monkeypatch):
    monkeypatch.setattr(source_count, "TIMES", 2)
    results = source_count.run("cpu", counts=(10, 20), rounds=2, models=4, steps=3)
    at = {(row.method, row.metric, row.setting["sources"]): row.values for row in results.rows}
    for count in (10, 20):
        parts = [at[part, EACH, count] for part in (DRAW, TRAIN, FIT)]
        assert at[WHOLE, EACH, count] == pytest.approx([sum(turn) for turn in zip(*parts, strict=True)])
        assert min(at[TRAIN, EACH, count]) > 0
    ratio = [b / a for a, b in zip(at[WHOLE, EACH, 10], at[WHOLE, EACH, 20], strict=True)]
    assert at[WHOLE, GROWTH, 20] == pytest.approx(ratio) and at[WHOLE, GROWTH, 10] == pytest.approx([1.0, 1.0])
    assert "10 sources" in source_count.sections(results)[0].prose


def test_only_some_parts():
    results = source_count.run("cpu", only=[FIT], counts=(12,), rounds=1, models=2, steps=2)
    assert {row.method for row in results.rows} == {FIT}
