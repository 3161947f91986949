"""The benchmark of subset trainings: small, from end to end."""

import pytest

from warmstart.benches import subset_training
from warmstart.benches.timing import Plan


def test_all_ways_are_timed_and_compared(monkeypatch):
    monkeypatch.setattr(subset_training, "ROWS", 50)
    results = subset_training.run("cpu", plan=Plan(rounds=2, repeats=1, seconds=0.0), models=6, steps=4)
    found = {(row.method, row.metric): row for row in results.rows}
    loop, *others = (found[way, subset_training.TIME] for way in subset_training.WAYS)
    for way, own in zip(subset_training.WAYS[1:], others, strict=True):
        ratio = found[way, subset_training.SPEED]
        assert ratio.values == pytest.approx([a / b for a, b in zip(loop.values, own.values, strict=True)])
    (section,) = subset_training.sections(results)
    assert "400 trainings of 1,500 steps" in section.prose
