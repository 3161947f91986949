"""Calibration errors against a plain loop and against probabilities whose calibration is known."""

import math

import pytest
import torch
from scipy.stats import binom

from warmstart.core import Batch, InputError, make_batch
from warmstart.metrics.calibration import (
    Reliability,
    expected_calibration_error,
    maximum_calibration_error,
    maximum_error_by_chance,
    reliability,
)


def stack(classes=3, seed=0):
    """Weighted tasks of uneven length; padded rows hold NaN."""
    g = torch.Generator().manual_seed(seed)
    probability = (2 * torch.randn(4, 30, classes, generator=g)).softmax(-1)
    y = torch.randint(classes, (4, 30), generator=g)
    mask = (torch.arange(30) < torch.tensor([30, 7, 0, 19])[:, None]).float()
    batch = Batch(torch.zeros(4, 30, 1), y, torch.rand(4, 30, generator=g) + 0.2, mask)
    return torch.where(mask.bool()[..., None], probability, torch.nan), batch


def by_loop(probability, batch, bins):
    kept = [[] for _ in range(bins)]
    for t in range(len(batch.y)):
        for i in range(batch.y.shape[1]):
            if batch.mask[t, i]:
                row = probability[t, i].double().tolist()
                sure = max(row)
                place = next(b for b in range(bins) if sure <= (b + 1) / bins)
                kept[place].append((sure, float(row.index(sure) == batch.y[t, i]), float(batch.w[t, i])))
    return kept


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_agrees_with_a_plain_loop(bins):
    probability, batch = stack()
    found, kept = reliability(probability, batch, bins), by_loop(probability, batch, bins)
    total = sum(w for rows in kept for _, _, w in rows)
    expected, widest = 0.0, 0.0
    for b, rows in enumerate(kept):
        count = sum(w for _, _, w in rows)
        assert float(found.rows[b]) == pytest.approx(count)
        if rows:
            confidence, accuracy = (sum(row[k] * row[2] for row in rows) / count for k in (0, 1))
            assert float(found.confidence[b]) == pytest.approx(confidence)
            assert float(found.accuracy[b]) == pytest.approx(accuracy)
            expected += count / total * abs(accuracy - confidence)
            widest = max(widest, abs(accuracy - confidence)) if count >= 2.5 else widest
    assert expected_calibration_error(found) == pytest.approx(expected)
    assert maximum_calibration_error(found, least=2.5) == pytest.approx(widest)


def test_by_chance_one_bin_is_off_by_the_mean_deviation_of_a_binomial():
    rows, p = 30, 0.37
    expected = sum(binom.pmf(k, rows, p) * abs(k / rows - p) for k in range(rows + 1))
    numbers = (torch.tensor(column, dtype=torch.float64) for column in ([0.9, p, 0.5], [0.1, 0.2, 0.5], [5, rows, 0]))
    found = maximum_error_by_chance(Reliability(*numbers), draws=100_000)
    assert found == pytest.approx(expected, rel=0.01)


def test_by_chance_the_widest_of_several_gaps_counts():
    """Two bins in a hundred times as many rows are normal: the mean of the larger of two deviations."""
    rows, p = torch.tensor([40_000.0, 10_000.0]).double(), torch.tensor([0.3, 0.8]).double()
    g = torch.Generator().manual_seed(0)
    away = (torch.randn(200_000, 2, generator=g, dtype=torch.float64) * (p * (1 - p) / rows).sqrt()).abs().amax(1)
    found = maximum_error_by_chance(Reliability(p, p, rows), draws=100_000)
    assert found == pytest.approx(float(away.mean()), rel=0.01)
    assert math.isnan(maximum_error_by_chance(Reliability(p, p, 0 * rows)))


def test_calibrated_draws_have_a_small_error():
    g = torch.Generator().manual_seed(1)
    probability = (1.5 * torch.randn(20, 2000, 5, generator=g)).softmax(-1)
    y = torch.multinomial(probability.flatten(0, 1), 1, generator=g).reshape(20, 2000)
    found = reliability(probability, make_batch(torch.zeros(20, 2000, 1), y))
    assert expected_calibration_error(found) < 0.01
    assert maximum_calibration_error(found, least=500) < 0.05


def test_always_sure_and_wrong_is_one():
    probability = torch.tensor([1.0, 0.0]).expand(3, 4, 2)
    found = reliability(probability, make_batch(torch.zeros(3, 4, 1), torch.ones(3, 4, dtype=torch.long)))
    assert expected_calibration_error(found) == 1
    assert maximum_calibration_error(found) == 1
    assert found.rows.tolist() == [0.0] * 14 + [12.0]
    assert found.accuracy.isnan().sum() == 14


def test_one_probability_is_that_of_the_class_one():
    probability, batch = stack(classes=2)
    two, one = reliability(probability, batch), reliability(probability[..., 1], batch)
    for left, right in zip(two, one, strict=True):
        torch.testing.assert_close(left, right, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_few_rows_do_not_make_the_maximum():
    found = Reliability(torch.tensor([0.2, 0.5, 0.9]), torch.tensor([1.0, 0.4, 0.6]), torch.tensor([2.0, 40, 10]))
    assert maximum_calibration_error(found) == pytest.approx(0.3)
    assert maximum_calibration_error(found, least=0) == pytest.approx(0.8)
    assert math.isnan(maximum_calibration_error(found, least=41))


def test_no_rows_score_nan_and_no_bins_are_refused():
    probability, batch = stack()
    nothing = reliability(probability, batch._replace(mask=torch.zeros(4, 30)))
    assert math.isnan(expected_calibration_error(nothing)) and math.isnan(maximum_calibration_error(nothing))
    with pytest.raises(InputError, match="at least one bin"):
        reliability(probability, batch, 0)
