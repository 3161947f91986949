"""A number of samples is claimed only of tasks that have shown as many."""

import pytest
import torch

from warmstart.core import Prediction
from warmstart.estimators.comparison import judge
from warmstart.estimators.judging import calibrate, errors, held_out, interval, mean_error, sizes_up_to
from warmstart.models.likelihoods import squared
from warmstart.tasks.pool import make_pool

NAN = float("nan")


def tasks(lengths, support=20, query=4):
    """Tasks of so many rows, all with y = 1, of which two thirds can be shown."""
    lengths = torch.tensor(lengths)
    rows = int(lengths.sum())
    return held_out(make_pool(torch.zeros(rows, 1), torch.ones(rows), lengths), support, query, seed=0)


def count(task):
    """Predicts how many rows were shown."""
    shown = task.support.mask.sum(-1, keepdim=True)
    return Prediction(shown.expand_as(task.query.y), torch.full_like(task.query.y, 4.0))


def test_errors_of_tasks_that_can_show_as_many():
    found = errors(count, tasks([3, 10, 18]), squared, sizes_up_to(20))  # 2, 7 and 14 rows to show
    expected = {0: [1, 1, 1], 1: [0, 0, 0], 2: [1, 1, 1], 5: [NAN, 16, 16], 10: [NAN, NAN, 81]}
    assert list(found) == list(expected)
    for size, values in expected.items():
        torch.testing.assert_close(found[size], torch.tensor(values, dtype=torch.float), equal_nan=True)


def test_the_mean_error_is_over_sizes_that_are_reached():
    assert mean_error(count, tasks([3, 10, 18]), squared, [0, 1, 5, 10, 20]) == (1 + 0 + 16 + 81) / 4


def test_judged_only_where_reached():
    task = tasks([3, 10, 18])
    task = task._replace(query=task.query._replace(y=torch.arange(12.0).reshape(3, 4) * task.query.mask))
    calibration = calibrate(count, task, sizes_up_to(20))
    found = judge({"count": count}, {"count": calibration}, task, torch.zeros(3), squared, sizes_up_to(20))
    for part in (found.errors, found.inside, found.width):
        absent = {size: values.isnan().tolist() for size, values in part["count"].items()}
        no, one, two = [False] * 3, [True, False, False], [True, True, False]
        assert absent == {0: no, 1: no, 2: no, 5: one, 10: two}


def test_intervals_are_calibrated_by_tasks_that_showed_as_many():
    """Scores |1 - shown| / 2 of six tasks with 7 rows to show and four with 14."""
    calibration = calibrate(count, tasks([10] * 6 + [18] * 4), sizes_up_to(20))
    assert calibration.sizes.tolist() == [0, 1, 2, 5, 10]
    assert calibration.scores.isfinite().all(), "folders keep finite numbers only"
    said = Prediction(torch.zeros(5, 1), torch.full((5, 1), 4.0))
    shown = torch.tensor([0, 4, 7, 10, 30])
    _, high = interval(calibration, said, shown, 0.75)
    assert high.squeeze(-1).tolist() == pytest.approx([1, 1, 4, 9, 9])
    _, high = interval(calibration, said, shown, 0.85)  # four tasks cannot claim it: those that showed 5 do
    assert high.squeeze(-1).tolist() == pytest.approx([1, 1, 4, 4, 4])
    _, high = interval(calibration, said, shown, 0.95)  # ten cannot: its own standard deviation of 2 is all there is
    assert high.squeeze(-1).tolist() == pytest.approx([2 * 1.959964] * 5)
    wrong = calibration._replace(scores=calibration.scores.clamp(min=3))  # it is further off than it says
    assert interval(wrong, said, shown, 0.95)[1].squeeze(-1).tolist() == pytest.approx([2 * 3] * 5)
    _, high = interval(calibration, said._replace(variance=()), shown, 0.95)
    assert high.isinf().all()
