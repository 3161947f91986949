"""The study of affinities on a planted transfer, where half of the sources contradict the target."""

import pandas as pd

from warmstart.selection import task_model, training
from warmstart.studies import select_affinity
from warmstart.studies.select_affinity import (
    AVERAGE,
    CLEAN,
    HARMED,
    MAJORITY,
    OURS,
    RANK,
    SIGN,
    SIZES,
    Preset,
    helps,
)


def test_signs_and_ranks_are_found_where_sources_differ(planted):
    short = training.Config(hidden=(8,), steps=60, batch=64, balance=0.0)
    cfg = task_model.Config(size=3, starts=1, held_out=8, training=short)
    chosen = Preset(8, 6, cfg)
    found = helps(planted, chosen, 0)
    both = {(name, metric, size) for name in (OURS, AVERAGE) for metric in (SIGN, RANK) for size in SIZES}
    assert set(found) == both | {(MAJORITY, SIGN, size) for size in SIZES}
    assert all(0.5 <= found[MAJORITY, SIGN, size] <= 1 for size in SIZES)
    assert sum(found[OURS, SIGN, size] for size in SIZES) / 4 > 0.7
    assert sum(found[OURS, RANK, size] for size in SIZES) / 4 > 0.7


def test_sources_as_they_are_and_corrupted_have_tables_and_pictures(planted, monkeypatch, tmp_path):
    """The rows and the page; transfers are planted, so that no data is needed."""
    short = training.Config(hidden=(8,), steps=5, batch=16, balance=0.0)
    chosen = Preset(4, 3, task_model.Config(size=3, starts=1, held_out=3, training=short))
    asked = []
    monkeypatch.setitem(select_affinity.PRESETS, "quick", chosen)
    monkeypatch.setattr(select_affinity, "read_acs_income", lambda data: pd.DataFrame({"STATE": ["HI", "CA"]}))
    monkeypatch.setattr(select_affinity, "transfer_of", lambda people, kind, seed, most: asked.append(kind) or planted)
    outcome = select_affinity.run(seeds=[0, 1], data=tmp_path, device="cpu", only=[OURS, AVERAGE])
    assert asked == [CLEAN, CLEAN, HARMED, HARMED]
    assert {row.method for row in outcome.results.rows} == {OURS, AVERAGE}
    assert [section.heading.partition(", ")[2] for section in outcome.sections] == [f"sources {CLEAN}"] * 2 + [
        f"sources {HARMED}"
    ] * 2
    assert all(section.svg.startswith("<svg") for section in outcome.sections)
    assert f"sources {HARMED}: {SIGN}" in outcome.verdict
    only = select_affinity.run(data=tmp_path, device="cpu", only=[HARMED])
    assert {row.setting["sources"] for row in only.results.rows} == {HARMED}
