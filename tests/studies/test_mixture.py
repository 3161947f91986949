"""The study of the mixture prior, with a training of a few updates."""

import pytest
import torch

from warmstart.core import InputError
from warmstart.engine.noise import generator
from warmstart.engine.stage import PLAIN
from warmstart.metrics.errors import squared_error
from warmstart.report import make_row
from warmstart.studies import mixture
from warmstart.studies.mixture import FAMILIAR, KERNEL, LESS, MIXTURE, MSE, ONE, ZERO, Preset, trivial
from warmstart.tasks import modes


def test_rows_of_both_priors_and_families_with_their_paired_difference(monkeypatch, tmp_path):
    monkeypatch.setitem(mixture.PRESETS, "quick", Preset(3, 6, 2))
    monkeypatch.setattr(mixture, "STEPS", (0, 2))
    monkeypatch.setattr(mixture, "TRACED", PLAIN)  # three updates are over before they would be recorded
    outcome = mixture.run(only=[ONE, MIXTURE], seeds=(0, 1), device="cpu", folder=tmp_path)
    rows = {(row.method, row.setting["family"], row.setting["steps"], row.metric): row for row in outcome.results.rows}
    assert {key[0] for key in rows} == {ONE, MIXTURE, ZERO, KERNEL, FAMILIAR}
    for family in mixture.FAMILIES:
        apart = rows[MIXTURE, family, 2, LESS]
        for seed in (0, 1):
            both = [rows[name, family, 2, MSE].values[seed] for name in (MIXTURE, ONE)]
            assert apart.values[seed] == pytest.approx(both[0] - both[1], rel=1e-5)
    assert (
        "lower than that of one by" in outcome.verdict
        and "three times" not in outcome.verdict
        and len(outcome.sections) == 2
    )
    again = mixture.run(only=[ONE, MIXTURE], seeds=(0, 1), device="cpu", folder=tmp_path)  # from what was kept
    assert [row.values for row in again.results.rows] == [row.values for row in outcome.results.rows]
    alone = mixture.run(only=[ONE, "sines alone"], seeds=(0, 1), device="cpu", folder=tmp_path).results.rows
    assert {row.setting["family"] for row in alone} == {"sines alone"}
    with pytest.raises(InputError, match="sines alone, got gem;"):
        mixture.run(only=["gem"])


def test_the_verdict_is_about_equal_cost_too():
    errors = {mixture.ONE: 2.0, mixture.LONGER: 1.6, mixture.MIXTURE: 1.2}
    rows = [
        make_row(name, {"family": family, "steps": 10}, MSE, {0: value})
        for name, value in errors.items()
        for family in mixture.FAMILIES
    ]
    said = mixture.verdict(rows)
    assert "by 40 % on three modes and 40 % on sines alone, and than" in said
    assert "times the updates by 25 % on three modes and 25 % on sines alone." in said
    assert "run both" in mixture.verdict(rows[:2])


def test_knowing_the_family_beats_a_smoother_beats_nothing():
    test = modes.draw(modes.THREE, 300, 10, 50, generator(4))
    errors = {name: float(squared_error(predict(test), test.query).mean()) for name, predict in trivial().items()}
    assert errors[FAMILIAR] < errors[KERNEL] < errors[ZERO]
    assert errors[FAMILIAR] < 0.6 and torch.isfinite(torch.tensor(errors[ZERO]))
