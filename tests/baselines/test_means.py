"""Global and task means: closed forms on tiny data, variance components on data with known variances."""

import pytest
import torch

from warmstart.baselines import global_mean, task_mean
from warmstart.core import Columns, make_batch, make_task
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.tasks.pool import make_pool

NONE = Columns()


def pool(y, lengths, w=None):
    y = torch.tensor(y)
    return make_pool(torch.zeros(len(y), 1), y, torch.tensor(lengths), w=None if w is None else torch.tensor(w))


def shown(y):
    y = torch.tensor([y])
    return make_task(make_batch(torch.zeros(*y.shape, 1), y), make_batch(torch.zeros(1, 2, 1), torch.zeros(1, 2)))


@pytest.mark.parametrize(("by_task", "expected"), [(True, (1 + 5) / 2), (False, (2 * 1 + 4 + 6) / 4)])
def test_global_mean_counts_tasks_or_weighted_rows(by_task, expected):
    train = pool([1.0, 4.0, 6.0], [1, 2], [2.0, 1.0, 1.0])
    predict = global_mean.fit(train, NONE, NONE, squared, 0, global_mean.Config(by_task), 0)
    assert predict(shown([9.0])).mean.tolist() == [[expected] * 2]


def test_global_frequencies():
    predict = global_mean.fit(pool([0, 2, 2, 1], [4]), NONE, NONE, multiclass, 3, global_mean.Config(), 0)
    assert predict(shown([0])).mean[0, 0].tolist() == [0.25, 0.25, 0.5]


def test_task_mean_by_hand():
    """k = 2; mu weighs the two tasks by 1 / 3 and 2 / 4."""
    train = pool([3.0, 6.0, 8.0], [1, 2])
    predict = task_mean.fit(train, NONE, NONE, squared, 0, task_mean.Config(2.0), 0)
    mu = (3 / 3 + 7 / 2) / (1 / 3 + 1 / 2)
    assert predict(shown([1.0, 2.0, 6.0])).mean[0].tolist() == pytest.approx([(9 + 2 * mu) / 5] * 2)
    assert predict(shown([])).mean[0].tolist() == pytest.approx([mu] * 2)


def test_shrunk_frequencies_are_probabilities():
    predict = task_mean.fit(pool([0, 2, 2, 1], [2, 2]), NONE, NONE, multiclass, 3, task_mean.Config(1.0), 0)
    assert predict(shown([1])).mean[0, 0].tolist() == pytest.approx([0.125, 0.5 + 0.125, 0.25])


def test_variance_ratio_is_the_anova_estimate_by_hand():
    """Two tasks, 1, 3 and 6, 8, 10: MSW = (2 + 8) / 3, MSB = 2 * 3.6^2 + 3 * 2.4^2, n0 = 5 - 13 / 5."""
    within, between, typical = 10 / 3, 2 * 3.6**2 + 3 * 2.4**2, 5 - 13 / 5
    train = pool([1.0, 3, 6, 8, 10], [2, 3])
    ratio = task_mean.variance_ratio(train, train.y[:, None])
    assert ratio == pytest.approx(within / ((between - within) / typical), rel=1e-5)


def test_variance_ratio_finds_the_truth_on_ragged_tasks():
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 20, (4000,), generator=g)
    means = 1.5 * torch.randn(4000, generator=g) + 7
    y = means.repeat_interleave(lengths) + 3 * torch.randn(int(lengths.sum()), generator=g)
    ratio = task_mean.variance_ratio(make_pool(y[:, None], y, lengths), y[:, None])
    assert ratio == pytest.approx(3**2 / 1.5**2, rel=0.1)


def test_tasks_alike_are_shrunk_completely():
    train = pool([0.0, 1, 0, 1, 1, 0], [2, 2, 2])
    predict = task_mean.fit(train, NONE, NONE, binary, 0, task_mean.Config(), 0)
    assert predict(shown([1.0] * 5)).mean[0].tolist() == pytest.approx([0.5] * 2, abs=1e-6)
