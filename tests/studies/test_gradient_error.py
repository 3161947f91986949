"""The exact gradient is exact, and both estimators approach it."""

import pytest
import torch

from warmstart.core import InputError
from warmstart.engine.noise import generator
from warmstart.engine.stage import PLAIN
from warmstart.studies import gradient_error
from warmstart.studies.gradient_error import BOUND, GEM, NOISE, SIZE, Preset, all_rows, draw_task, errors, log_marginal


def test_the_marginal_likelihood_is_an_integral_over_weights():
    source = generator(3)
    mean, log_sd = torch.randn(SIZE, dtype=torch.float64), torch.randn(SIZE, dtype=torch.float64) / 3 - 1
    batch = all_rows(draw_task(mean, log_sd, True, source))
    draws = mean + log_sd.exp() * torch.randn(400_000, SIZE, dtype=torch.float64)
    few = batch._replace(x=batch.x[:, :2], y=batch.y[:, :2])  # with more rows hardly a draw counts
    rows = torch.distributions.Normal(draws @ few.x[0].T, NOISE).log_prob(few.y[0]).sum(-1)
    estimate = rows.logsumexp(0) - torch.tensor(400_000.0).log()
    torch.testing.assert_close(log_marginal(mean, log_sd, few), estimate, atol=0.02, rtol=0)


@pytest.mark.parametrize("correlated", [False, True], ids=["axes", "correlated"])
def test_more_inner_steps_come_closer_and_gradient_em_is_closer_throughout(correlated):
    few, more = (errors([GEM, BOUND], steps, 6, correlated, 0) for steps in (2, 60))
    for name in (GEM, BOUND):
        assert more[name].mean() < few[name].mean()
    assert few[GEM].mean() < few[BOUND].mean() and more[GEM].mean() < more[BOUND].mean()


def test_the_study_says_who_is_closer(monkeypatch):
    monkeypatch.setitem(gradient_error.PRESETS, "quick", Preset((1, 3), 4))
    monkeypatch.setattr(gradient_error, "TRACED", PLAIN)  # few steps: recording them takes longer
    outcome = gradient_error.run(seeds=(0, 1))
    assert len(outcome.results.rows) == 8 and all(len(section.table.lines) == 2 for section in outcome.sections)
    assert "4 of 4 settings" in outcome.verdict
    assert "run both" in gradient_error.run(only=[GEM]).verdict
    with pytest.raises(InputError, match="methods among"):
        gradient_error.run(only=["maml"])
