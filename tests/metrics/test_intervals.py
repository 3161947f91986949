"""Intervals against scipy, hand computation, and the coverage they promise."""

from math import ceil

import pytest
import torch
from scipy import stats

from warmstart.core import Batch, InputError
from warmstart.metrics import intervals


def skewed(n=60):
    return torch.distributions.Exponential(0.5).icdf((torch.arange(n) + 0.5) / n)


def test_normal_interval_is_scipys():
    values = skewed()
    mean, low, high, n = intervals.over_tasks(values, level=0.9)
    expected = stats.norm.interval(0.9, values.mean().item(), stats.sem(values.numpy()))
    assert (low, high) == pytest.approx(expected, rel=1e-5)
    assert (mean, n) == (pytest.approx(values.mean().item()), 60)


def test_bootstrap_is_scipys_percentile_interval():
    values = skewed()
    ours = intervals.bootstrap(values, draws=20_000)
    theirs = stats.bootstrap(
        (values.numpy(),), lambda v, axis: v.mean(axis), n_resamples=20_000, method="percentile", rng=0
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.02)
    assert ours.high - ours.mean > ours.mean - ours.low  # skewed like the values
    assert ours == intervals.bootstrap(values, draws=20_000)


def test_unscored_tasks_are_left_out():
    values = torch.cat([skewed(), torch.tensor([torch.nan] * 3)])
    assert intervals.over_tasks(values) == intervals.over_tasks(skewed())
    assert intervals.bootstrap(values) == intervals.bootstrap(skewed())


def test_paired_difference_is_far_narrower_than_its_parts():
    first = skewed()
    second = first + 0.1 + 0.01 * torch.sin(torch.arange(60.0))
    result = intervals.paired(first, second)
    assert result.high < 0
    assert result.mean == pytest.approx((first - second).mean().item())
    assert result.high - result.low < 0.02 * (intervals.over_tasks(first).high - intervals.over_tasks(first).low)


def test_bad_scores_are_told():
    with pytest.raises(InputError, match="same tasks"):
        intervals.paired(torch.ones(3), torch.ones(2))
    with pytest.raises(InputError, match="two scored tasks"):
        intervals.over_tasks(torch.tensor([1.0, torch.nan]))


def test_coverage_and_width_by_hand():
    y = torch.tensor([[0.0, 1.0, 2.0], [5.0, 9.0, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    w = torch.tensor([[1.0, 1.0, 2.0], [3.0, 1.0, 1.0]])
    batch = Batch(y[..., None], y, w, mask)
    low, high = torch.full_like(y, 0.5), torch.tensor([[1.5, 1.0, 3.5], [4.5, 99.0, 99.0]])
    assert intervals.coverage(low, high, batch).tolist() == [0.75, 0.0]
    assert intervals.width(low, high, batch).tolist() == [(1 + 0.5 + 6) / 4, 4.0]


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_gaussian_interval_holds_its_level(level):
    mean, variance = torch.tensor(1.0), torch.tensor(4.0)
    low, high = intervals.gaussian(mean, variance, level)
    assert (low.item(), high.item()) == pytest.approx(stats.norm(1, 2).interval(level), rel=1e-5)


@pytest.mark.parametrize("count", [9, 10, 19, 57])
def test_one_row_per_task_is_split_conformal(count):
    scores = torch.rand(count, 1, generator=torch.Generator().manual_seed(count))
    rank = ceil((count + 1) * 0.9)
    expected = scores.flatten().sort().values[rank - 1].item()
    assert intervals.conformal_quantile(scores, torch.ones(count, 1)) == pytest.approx(expected)


def test_too_few_tasks_promise_nothing():
    assert intervals.conformal_quantile(torch.rand(8, 50), torch.ones(8, 50)) == float("inf")


def test_padding_and_empty_tasks_do_not_move_the_quantile():
    scores = torch.rand(30, 4, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([torch.cat([scores, torch.full((30, 2), 9.0)], 1), torch.full((5, 6), 9.0)])
    mask = torch.zeros(35, 6)
    mask[:30, :4] = 1
    plain = intervals.conformal_quantile(scores, torch.ones(30, 4))
    assert intervals.conformal_quantile(padded, mask) == plain


def test_rows_of_new_tasks_are_covered_as_promised():
    """Rows of one task share its scale, and long tasks are the hard ones: pooling all rows would mislead."""
    g = torch.Generator().manual_seed(0)
    covered, pooled = [], []
    for _ in range(400):
        scale = torch.rand(40, 1, generator=g) + 0.1
        scores = scale * torch.randn(40, 12, generator=g).abs()
        mask = (torch.arange(12) < torch.where(scale > 0.8, 12, 2)).float()
        quantile = intervals.conformal_quantile(scores[:-1], mask[:-1], 0.8)
        naive = torch.quantile(scores[:-1][mask[:-1] > 0], 0.8)
        last = scores[-1][mask[-1] > 0]
        covered.append((last <= quantile).float().mean())
        pooled.append((last <= naive).float().mean())
    assert 0.8 - 0.02 <= torch.stack(covered).mean() <= 0.8 + 1 / 40 + 0.03
    assert torch.stack(pooled).mean() > 0.85  # too wide, as it listens to the long tasks
