"""The checks of the paper's claims are themselves checked: closed forms against draws."""

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from warmstart.core import InputError
from warmstart.engine.noise import generator
from warmstart.maths.mean_field import Gaussian
from warmstart.studies import theory
from warmstart.studies.theory import (
    BOUND,
    EXACT,
    GRADIENT,
    MEASURED,
    VARIANCE,
    WITHIN,
    Preset,
    approximations,
    divergence,
    error_to_bound,
    estimates,
    information,
    posteriors,
)


def test_error_and_bound_match_draws():
    source = generator(4)
    exact = posteriors(3, source)
    q = approximations(exact, source)["strays"]
    full, diagonal = MultivariateNormal(exact.mean, exact.covariance), Normal(q.mean, q.log_sd.exp())
    torch.testing.assert_close(
        divergence(q, exact),
        kl_divergence(MultivariateNormal(q.mean, torch.diag_embed(torch.exp(2 * q.log_sd))), full),
    )

    def score(theta):
        z = (theta - exact.prior.mean) / exact.prior.log_sd.exp()
        return torch.cat([z / exact.prior.log_sd.exp(), z**2 - 1], -1)

    torch.manual_seed(0)
    of_q, of_p = score(diagonal.sample((200_000,))), score(full.sample((200_000,)))
    error = (of_q.mean(0) - of_p.mean(0)).norm(dim=-1)
    bound = 2**0.5 * (of_p**2).sum(-1).mean(0).sqrt() * divergence(q, exact).sqrt()
    torch.testing.assert_close(error_to_bound(q, exact), error / bound, rtol=0.02, atol=0)


def test_the_bound_of_the_paper_can_be_exceeded():
    """A q that is the posterior, five times as wide: on paper, c - 1 > 2 sqrt(3) sqrt((c - 1 - log c) / 4)."""
    wide = 25.0
    one = torch.ones(1, theory.SIZE, dtype=torch.float64)
    exact = theory.Posterior(Gaussian(0 * one, 0 * one), 0 * one, torch.eye(theory.SIZE, dtype=torch.float64)[None])
    q = Gaussian(0 * one, torch.full_like(one, wide).log() / 2)
    size, each = theory.SIZE, torch.tensor(wide, dtype=torch.float64)
    expected = (size**0.5 * (each - 1)) / (2**0.5 * (3 * size) ** 0.5 * (size * (each - 1 - each.log()) / 2) ** 0.5)
    torch.testing.assert_close(error_to_bound(q, exact), expected[None])
    assert float(expected) > 1


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_estimators_of_the_prior_mean_have_the_variance_of_their_information(spread):
    one, two = estimates(5, spread, 20_000, generator(1))
    full = information(theory.TOTAL, spread)
    assert float(one.var()) * theory.TASKS == pytest.approx(1 / full, rel=0.05)
    assert float(two.var()) * theory.TASKS == pytest.approx(1 / (full - information(5, spread)), rel=0.05)
    assert abs(float(two.mean())) < 0.01


def test_a_study_of_all_three(monkeypatch):
    monkeypatch.setitem(theory.PRESETS, "quick", Preset(400))
    outcome = theory.run(seeds=(0, 1))
    at = {(row.method, row.metric): row for row in outcome.results.rows}
    assert at[BOUND, WITHIN].seeds == (0, 1) and {MEASURED, EXACT} <= {row.method for row in outcome.results.rows}
    assert at["gem_bml_plus", theory.ERROR].mean < 1e-12
    assert len(outcome.sections) == 3 and "A.2" in outcome.verdict
    alone = theory.run(only=[GRADIENT])
    assert len(alone.sections) == 1 and VARIANCE not in {row.metric for row in alone.results.rows}
    with pytest.raises(InputError, match="error bound"):
        theory.run(only=["maml"])
