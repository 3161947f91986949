"""The sine study from end to end, small: what needs no training by other routes, and a learner that diverges."""

import math

import numpy as np
import pytest
import torch

from warmstart.core import InputError
from warmstart.engine.loop import Diverged
from warmstart.engine.noise import generator
from warmstart.models.mlp import MLP, seeded
from warmstart.report.results import load, save
from warmstart.studies import sine as study
from warmstart.studies.sine import FAMILIAR, KERNEL, SHOTS, STEPS, ZERO
from warmstart.tasks import sine

TESTS = 12


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(study.PRESETS, "quick", study.Preset(3, TESTS, tasks=2, query=4))


def rows_of(outcome):
    return {(row.method, row.setting["shot"], row.setting["steps"]): row for row in outcome.results.rows}


def smoothed(x, y, at):
    """Kernel ridge by least squares on stacked rows, in numpy."""
    near = lambda a, b: np.exp(-0.5 * (a[:, None] - b) ** 2)  # noqa: E731
    return near(at, x) @ np.linalg.lstsq(near(x, x) + 1e-3 * np.eye(len(x)), y, rcond=None)[0]


def test_the_study_trains_judges_and_resumes(tmp_path):
    outcome = study.run(seeds=(0, 1), only=["scratch", "maml"], device="cpu", folder=tmp_path)
    at = rows_of(outcome)
    methods = ["scratch", "maml", ZERO, KERNEL, FAMILIAR]
    assert set(at) == {(name, shot, steps) for name in methods for shot in SHOTS for steps in STEPS}
    for shot in SHOTS:
        task = sine.draw(sine.DEFAULT, TESTS, shot, 100, generator(study.TEST, shot))
        truth = task.query.y.double().numpy()
        assert at[ZERO, shot, 5].mean == pytest.approx(np.mean(truth**2), rel=1e-5)
        x, y, asked = (leaf.double().numpy() for leaf in (task.support.x[..., 0], task.support.y, task.query.x[..., 0]))
        said = np.stack([smoothed(x[i], y[i], asked[i]) for i in range(TESTS)])
        assert at[KERNEL, shot, 0].mean == pytest.approx(np.mean((said - truth) ** 2), rel=1e-2)
        assert at[FAMILIAR, shot, 10].mean < 1e-6
        for i, seed in enumerate((0, 1)):
            with seeded(seed), torch.no_grad():
                untrained = MLP(1, (40, 40), 1)(task.query.x).squeeze(-1).double().numpy()
            assert at["scratch", shot, 0].values[i] == pytest.approx(np.mean((untrained - truth) ** 2), rel=1e-5)
            assert at["maml", shot, 0].values[i] != at["scratch", shot, 0].values[i]  # three updates away
        assert len({at["maml", shot, steps].mean for steps in STEPS}) == len(STEPS)
    assert at["maml", 5, 1].peer == "paper 0.67" and not at["maml", 10, 1].peer and not at["maml", 5, 0].peer
    best = min(("scratch", "maml"), key=lambda name: at[name, 5, 10].mean)
    assert f"{best} reaches an MSE of {at[best, 5, 10].mean:.3f}" in outcome.verdict
    assert len(outcome.sections) == 3 and all(section.svg for section in outcome.sections)
    again = study.run(seeds=(0, 1), only=["scratch", "maml"], device="cpu", folder=tmp_path)
    assert again.results.rows == outcome.results.rows
    with pytest.raises(InputError, match="methods among"):
        study.run(only=["nobody"])


def test_conditioning_is_done_once_however_many_steps_the_others_take():
    at = rows_of(study.run(only=["empirical_bayes"], device="cpu"))
    for shot in SHOTS:
        none, *some = (at["empirical_bayes", shot, steps].mean for steps in STEPS)
        assert len(set(some)) == 1 and some[0] != none


def test_a_learner_that_diverged_is_shown_as_not_finite_and_is_never_the_best(monkeypatch, tmp_path):
    fit = study.fit

    def breaks(build, config, training, seed, *rest):
        if config is study.ENTRIES["pretrain"].config and seed == 1:
            raise Diverged("nan before step 2", "lower the learning rates", ())
        return fit(build, config, training, seed, *rest)

    monkeypatch.setattr(study, "fit", breaks)
    outcome = study.run(seeds=(0, 1), only=["pretrain", "scratch"], device="cpu")
    at = rows_of(outcome)
    for shot in SHOTS:
        for steps in STEPS:
            row = at["pretrain", shot, steps]
            assert row.seeds == (0, 1) and math.isfinite(row.values[0]) and math.isnan(row.values[1])
            assert math.isnan(row.mean) and math.isfinite(at["scratch", shot, steps].mean)
    assert "scratch reaches" in outcome.verdict and "nan" not in outcome.verdict
    for section in outcome.sections:
        line = next(line for line in section.table.lines if line.label == "pretrain")
        assert {cell.text for cell in line.cells} == {"not finite"} and section.svg
    save(outcome.results, tmp_path / "results.json")
    assert "NaN" not in (tmp_path / "results.json").read_text()
    kept = rows_of(outcome._replace(results=load(tmp_path / "results.json")))
    assert math.isnan(kept["pretrain", 5, 10].mean) and kept["pretrain", 5, 10].seeds == (0, 1)
    alone = study.run(seeds=(1,), only=["pretrain"], device="cpu")
    assert alone.verdict == "Nothing was trained to the end."
