"""Boosting: cross-fitting leaks nothing, long columns are told by their mean, both stages do their part."""

import pytest
import torch
from sklearn.dummy import DummyRegressor

from warmstart.baselines import boosting
from warmstart.core import Columns, InputError
from warmstart.models.likelihoods import squared
from warmstart.tasks.pool import episodes, make_pool

NONE = Columns()
SMALL = boosting.Config(trees=40, smallest_leaf=10, draws=3)


def test_cross_fitting_never_uses_a_row_s_own_fold():
    """A first stage that tells the mean target it was fitted on."""

    def first(rows, y, w):
        mean = DummyRegressor().fit(y[:, None].numpy(), y.numpy()).constant_.item()
        return lambda rows: torch.cat([rows["known"], torch.full_like(rows["known"], mean)], -1)

    fold = torch.tensor([2, 0, 1, 0, 2])
    y = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    told = boosting._cross_fit(first, {"known": torch.arange(5.0)[:, None]}, y, torch.ones(5), fold)
    assert told[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert told[:, 1].tolist() == pytest.approx([(2 + 4 + 8) / 3, 7, 6.75, 7, (2 + 4 + 8) / 3])


def test_second_stage_uses_residuals_of_the_support():
    """y = step(x) + level of the task: one shown row gives the level, once the step is taken off."""
    g = torch.Generator().manual_seed(0)
    level, x = 3 * torch.randn(300, generator=g), torch.randn(3000, 1, generator=g)
    y = 4 * (x[:, 0] > 0) + level.repeat_interleave(10)
    pool = make_pool(x, y, torch.full((300,), 10))
    train, test = pool.select(torch.arange(250)), pool.select(torch.arange(250, 300))
    predict = boosting.fit(train, NONE, NONE, squared, 0, SMALL, 0)
    errors = {}
    for rows in (0, 1, 5):
        task = episodes(test, torch.arange(50), 5, 5, support_rows=torch.full((50,), rows))
        errors[rows] = ((predict(task).mean - task.query.y) ** 2).mean().item()
    assert errors[0] == pytest.approx(level[250:].var().item(), rel=0.35)
    # without the residual a single row leaves the step, of variance 4, in the level
    assert errors[1] < 1.5
    assert errors[5] < 0.6


def test_a_long_column_is_told_by_its_mean_target():
    """400 values, far more than have columns of their own; the mean target of a value is all there is to know."""
    g = torch.Generator().manual_seed(0)
    effect = torch.randn(400, generator=g)
    item = torch.randint(400, (8000,), generator=g)
    y = effect[item] + 0.1 * torch.randn(8000, generator=g)
    rest = {"numeric": torch.zeros(8000, 0), "bag": torch.zeros(8000, 0, 1, dtype=torch.long)}
    pool = make_pool({"categorical": item[:, None] + 2, **rest}, y, torch.full((400,), 20))
    train, test = pool.select(torch.arange(350)), pool.select(torch.arange(350, 400))
    cfg = boosting.Config(trees=40, smallest_leaf=10, draws=1)
    predict = boosting.fit(train, Columns(0, (402,)), NONE, squared, 0, cfg, 0)
    task = episodes(test, torch.arange(50), 0, 20)
    assert ((predict(task).mean - task.query.y) ** 2).mean() < 0.1


def test_one_task_is_too_few():
    pool = make_pool(torch.zeros(5, 1), torch.zeros(5), torch.tensor([5]))
    with pytest.raises(InputError, match="at least two training tasks"):
        boosting.fit(pool, NONE, NONE, squared, 0, SMALL, 0)
