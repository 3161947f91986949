"""Sine families against the plain formula, their ranges, and what each paper wrote down."""

from dataclasses import replace
from math import pi, sin

import pytest
import torch
from scipy import stats

from warmstart.core import InputError
from warmstart.tasks.sine import CHALLENGING, DEFAULT, HARD, POLARISED, Family, curve, draw, observe, parameters


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("family", [DEFAULT, HARD, POLARISED, replace(CHALLENGING, noise=0.0)])
def test_rows_follow_the_plain_formula(family):
    true = parameters(family, 7, seeded())
    task = observe(family, true, 4, 3, seeded(1))
    for batch in (task.support, task.query):
        for t, (a, b, w) in enumerate(true.tolist()):
            expected = [a * sin(w * x + b) for x in batch.x[t, :, 0].tolist()]
            assert batch.y[t].tolist() == pytest.approx(expected, abs=1e-5)


def test_default_family_is_the_published_code_not_the_published_text():
    """A sin(x - b) with b in [0, pi]: the zero of the curve lies at x = b >= 0."""
    true = parameters(DEFAULT, 500, seeded())
    zero = -true[:, 1]
    assert zero.min() >= 0
    assert zero.max() <= pi
    assert zero.std() > 0.8
    torch.testing.assert_close(curve(true, zero[:, None]), torch.zeros(500, 1), atol=1e-6, rtol=0)
    rising = curve(true, zero[:, None] + 0.1)
    assert (rising > 0).all()


@pytest.mark.parametrize(
    ("family", "column", "low", "high"),
    [
        (DEFAULT, 0, 0.1, 5),
        (DEFAULT, 1, -pi, 0),
        (CHALLENGING, 1, 0, 2 * pi),
        (CHALLENGING, 2, 0.5, 2),
        (HARD, 1, 0, pi),
    ],
)
def test_parameters_are_uniform(family, column, low, high):
    drawn = parameters(family, 4000, seeded(3))[:, column]
    assert drawn.min() >= low
    assert drawn.max() <= high
    assert stats.kstest(drawn.numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3


def test_x_is_uniform_and_support_and_query_share_no_row():
    task = draw(replace(DEFAULT, x=(-1.0, 4.0)), 200, 5, 10, seeded())
    x = torch.cat([task.support.x, task.query.x], 1).squeeze(-1)
    assert x.shape == (200, 15)
    assert x.unique().numel() > 2990  # float32 draws may meet
    assert stats.kstest(x.flatten().numpy(), stats.uniform(-1, 5).cdf).pvalue > 1e-3


def test_noise_is_relative_to_the_amplitude():
    true = torch.tensor([[4.0, 0.3, 1.0], [0.5, 0.3, 1.0]])
    task = observe(CHALLENGING, true, 0, 4000, seeded())
    residual = task.query.y - curve(true, task.query.x.squeeze(-1))
    assert residual.std(1).tolist() == pytest.approx([0.04, 0.005], rel=0.05)
    assert residual.mean(1).abs().max() < 0.003


def test_polarised_domains_take_turns():
    true = parameters(POLARISED, 52, seeded())
    phases = [2.94, 2.44, 1.5, 0.91, 0.91]
    ranges = [(4, 5), (3, 4), (2, 3), (1, 2), (0.1, 1)]
    for i, (amplitude, phase, frequency) in enumerate(true.tolist()):
        assert ranges[i % 5][0] <= amplitude <= ranges[i % 5][1]
        assert (phase, frequency) == pytest.approx((phases[i % 5], 1))


def test_same_seed_same_tasks_other_call_other_tasks():
    generator = seeded(5)
    first, second = (draw(CHALLENGING, 3, 2, 2, generator) for _ in range(2))
    again = draw(CHALLENGING, 3, 2, 2, seeded(5), device="cpu")
    assert torch.equal(first.query.y, again.query.y)
    assert torch.equal(first.key, again.key)
    assert not torch.equal(first.query.y, second.query.y)
    assert torch.cat([first.key, second.key]).unique().numel() == 6


def test_descriptor_is_the_truth_or_nothing():
    assert draw(DEFAULT, 3, 2, 2, seeded()).descriptor.shape == (3, 0)
    task = draw(HARD, 3, 2, 2, seeded())
    torch.testing.assert_close(curve(task.descriptor, task.query.x.squeeze(-1)), task.query.y)


@pytest.mark.parametrize("ranges", [{"phase": ((0, 1), (1, 2)), "amplitude": ((1, 2),) * 3}, {"amplitude": (5.0, 0.1)}])
def test_impossible_ranges_are_told(ranges):
    with pytest.raises(InputError):
        parameters(Family(**ranges), 2, seeded())
