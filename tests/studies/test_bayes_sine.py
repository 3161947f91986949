"""The scores of the sine study against draws and a hand-made predictor, and the studies from end to end."""

import math
from functools import partial

import pytest
import torch

from warmstart.core import InputError, Prediction
from warmstart.engine.loop import Diverged, silent
from warmstart.engine.noise import generator
from warmstart.engine.stage import COMPILED, PLAIN, TRACED
from warmstart.learners import reptile
from warmstart.metrics.errors import squared_error
from warmstart.studies import bayes_sine, inner_steps, sines
from warmstart.studies.bayes_sine import COVERAGE, MSE, NLL, OWN_COVERAGE, OWN_NLL, TUNING, WIDTH, judge, score_rows
from warmstart.studies.bayes_sine_rows import ENTRIES, GP, Smoother, smooth
from warmstart.tasks import sine
from warmstart.training.search import Trial


@pytest.fixture(scope="module")
def tasks():
    return [sine.draw(sine.CHALLENGING, 300, 10, 40, generator(seed)) for seed in (1, 2)]


def test_the_smoother_is_a_gaussian_process(tasks):
    """Against the joint normal of support and query rows, conditioned by its precision matrix."""
    cfg = Smoother(length=0.8, amplitude=2.0, noise=0.2)
    one = tasks[0].support.x[0, :, 0].double(), tasks[0].query.x[0, :, 0].double()
    x = torch.cat(one)
    joint = 4 * torch.exp(-0.5 * ((x[:, None] - x) / 0.8) ** 2) + 0.04 * torch.eye(len(x))
    for row in (0, 7):
        keep = [*range(10), 10 + row]
        precision = torch.linalg.inv(joint[keep][:, keep])
        variance = 1 / precision[-1, -1]
        mean = -variance * precision[-1, :-1] @ tasks[0].support.y[0].double()
        said = smooth(cfg, tasks[0])
        torch.testing.assert_close(said.mean[0, row].double(), mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(said.variance[0, row].double(), variance, rtol=1e-4, atol=1e-4)


def test_scores_do_not_depend_on_the_unit_of_a_methods_spread(tasks):
    """Predictions that are the truth plus noise of 0.7, with a spread that is right up to a factor."""
    validation, test = tasks

    def predict(factor):
        def call(task, steps):
            e = torch.randn(task.query.y.shape, generator=generator(int(task.key[0]) % 1000))
            return Prediction(task.query.y + 0.7 * e, torch.full_like(e, (0.7 * factor) ** 2))

        return call

    honest, boastful = (judge(predict(factor), validation, test) for factor in (1.0, 0.5))
    for metric in (MSE, NLL, COVERAGE, WIDTH):
        torch.testing.assert_close(honest[metric, 10], boastful[metric, 10], rtol=1e-3, atol=1e-3)
    assert float(honest[NLL, 10].mean()) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 0.49), abs=0.02)
    assert float(honest[COVERAGE, 10].mean()) == pytest.approx(90, abs=1.5)
    assert float(honest[WIDTH, 10].mean()) == pytest.approx(2 * 1.645 * 0.7, rel=0.03)
    assert float(honest[OWN_COVERAGE, 10].mean()) == pytest.approx(90, abs=1.5)
    assert float(boastful[OWN_COVERAGE, 10].mean()) == pytest.approx(58.9, abs=1.5)  # of 0.82 standard deviations
    assert float(boastful[OWN_NLL, 10].mean()) > float(honest[OWN_NLL, 10].mean()) + 0.5


def test_a_point_method_gets_its_spread_from_validation_tasks_and_divergence_is_a_result(tasks):
    found = judge(lambda task, steps: Prediction(torch.zeros_like(task.query.y)), *tasks)
    assert (OWN_NLL, 10) not in found
    spread = squared_error(torch.zeros_like(tasks[0].query.y), tasks[0].query).mean()
    expected = 0.5 * (torch.log(2 * math.pi * spread) + found[MSE, 0] / spread)
    torch.testing.assert_close(found[NLL, 0], expected)
    assert judge(None, *tasks)[MSE, 10].isnan().all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_seed_that_diverged_is_not_left_out_of_any_score(tasks, order):
    said = Prediction(torch.zeros_like(tasks[1].query.y), torch.ones_like(tasks[1].query.y))
    found = {0: judge(None, *tasks), 1: judge(lambda task, steps: said, *tasks)}
    rows = score_rows("bmaml", "challenging", {seed: found[seed] for seed in order})
    at = {row.metric: row for row in rows if row.setting["steps"] == 5}
    assert set(at) == {MSE, NLL, COVERAGE, WIDTH, OWN_NLL, OWN_COVERAGE}
    for row in at.values():
        assert sorted(row.seeds) == [0, 1] and math.isnan(row.mean)


def test_every_trial_is_a_configuration_of_its_learner():
    for entry in ENTRIES.values():
        assert all(hasattr(entry.config, key) for key in entry.space)


def test_the_study_tunes_trains_and_pairs(monkeypatch, tmp_path):
    size = bayes_sine.Preset(("gem_bml_plus", "maml"), ("default",), 4, 2, 2, 8, 3, finalists=2)
    monkeypatch.setitem(bayes_sine.PRESETS, "quick", size)
    monkeypatch.setattr(bayes_sine, "STEPS", (0, 2))
    for module in (bayes_sine, sines):  # so few updates are over before they would be recorded
        monkeypatch.setattr(module, "TRACED", PLAIN)
    outcome = bayes_sine.run(seeds=(0, 1), device="cpu", folder=tmp_path)
    rows = outcome.results.rows
    trials = [row for row in rows if row.metric == TUNING and row.method == "maml"]
    assert len(trials) == 2 and sum(bool(row.setting["kept"]) for row in trials) == 1
    assert {row.method for row in rows} >= {"gem_bml_plus", "maml", GP, "gem_bml_plus less maml"}
    pair = next(row for row in rows if row.metric == "MSE difference")
    ours, theirs = (
        next(r for r in rows if r.method == name and r.metric == MSE and r.setting["steps"] == 2)
        for name in ("gem_bml_plus", "maml")
    )
    assert pair.mean == pytest.approx(ours.mean - theirs.mean, abs=1e-5) and pair.seeds == (0, 1)
    assert bayes_sine.run(seeds=(0, 1), device="cpu", folder=tmp_path).results.rows == rows
    for name in ("nobody", "challenging"):  # which this preset has not
        with pytest.raises(InputError, match="methods or families among"):
            bayes_sine.run(only=[name])


def test_the_finalist_that_lasts_is_kept(monkeypatch, tasks):
    """Of four trials the third predicts the truth once trained in full; the others diverged, explode or are off."""
    size = bayes_sine.PRESETS["quick"]._replace(finalists=4)
    away = {"explodes": torch.nan, "lasts": 0.0, "is off": 1.0}
    said = {name: lambda task, steps, by=by: Prediction(task.query.y + by) for name, by in away.items()}
    monkeypatch.setattr(bayes_sine, "trained", lambda *args: said.get(args[1]))
    trials = [Trial(name, 0.1) for name in ("explodes", "diverged", "lasts", "is off")]
    chosen = partial(bayes_sine.final, "maml", trials, "challenging")
    assert chosen(size, 5, tasks[0], lambda label: silent, None) == 2
    assert chosen(size._replace(finalists=1), 5, tasks[0], lambda label: silent, None) == 0


def test_inner_steps_are_those_of_training(monkeypatch):
    monkeypatch.setitem(inner_steps.PRESETS, "quick", inner_steps.Preset(3, 20, 2))
    outcome = inner_steps.run(only=["fomaml"], device="cpu")
    at = {(row.setting["inner_steps"], row.setting["steps"]): row.mean for row in outcome.results.rows}
    assert len(at) == 18 and at[1, 10] != at[2, 10] != at[3, 10]
    assert float(inner_steps.FAMILY.bounds[0, 2, 1]) == 1.0 and inner_steps.FAMILY.noise == 0
    with pytest.raises(InputError, match="methods among"):
        inner_steps.run(only=["nobody"])


def breaking(after):
    """Reptile whose state is not finite after some updates."""

    def build(*args):
        learner = reptile.build(*args)

        def update(state, delta, count):
            new = learner.update(state, delta, count)
            broken = {name: torch.where(state.done >= after, torch.nan, leaf) for name, leaf in new.theta.items()}
            return new._replace(theta=broken)

        return learner._replace(update=update)

    return build


@pytest.mark.parametrize("after", [5, 25])
def test_a_training_that_diverges_keeps_the_state_that_was_best_before(after, tmp_path):
    config, training = reptile.Config(inner_steps=1), sines.Training(sine.DEFAULT, 5, 40, tasks=2)
    fit = partial(sines.fit, breaking(after), config, training, 3, torch.device("cpu"), stage=PLAIN)
    seen = []

    def validate(learner, state):
        seen.append({name: leaf.clone() for name, leaf in state.theta.items()})
        return -float(len(seen))  # every look is better than the one before

    with pytest.raises(Diverged):
        fit()
    if after < 10:  # before a look
        with pytest.raises(Diverged):
            fit(validate=validate)
        return
    _, kept = fit(validate=validate)
    assert len(seen) == 2
    fit(folder=tmp_path, validate=validate)
    looks = len(seen)
    _, again = fit(folder=tmp_path, validate=validate)  # it is not run again
    assert len(seen) == looks == 4 and int(again.done) == 20
    for name, leaf in seen[-1].items():
        torch.testing.assert_close(kept.theta[name], leaf, rtol=0, atol=0)


def test_a_checkpoint_of_longer_steps_is_left_alone(tmp_path):
    config, training = reptile.Config(inner_steps=1), sines.Training(sine.DEFAULT, 5, 40, tasks=2)
    fit = partial(sines.fit, reptile.build, config, training, 3, torch.device("cpu"), stage=PLAIN)
    fit(folder=tmp_path / "row")
    (tmp_path / "row-1").rename(tmp_path / "row-50")  # as of a GPU, whose step is fifty updates
    before = (tmp_path / "row-50" / "checkpoint.safetensors").read_bytes()
    _, state = fit(folder=tmp_path / "row")
    assert int(state.done) == 40
    assert (tmp_path / "row-50" / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize(("iterations", "expected"), [(sines.LONG - 1, TRACED), (sines.LONG, COMPILED)])
def test_long_trainings_are_compiled_on_a_cpu(iterations, expected):
    class Built(Exception):
        pass

    def build(model, likelihood, config, stage):
        assert stage is expected
        raise Built

    with pytest.raises(Built):
        sines.fit(build, reptile.Config(), sines.Training(sine.DEFAULT, 10, iterations), 0, torch.device("cpu"))
