"""What every baseline must do: ignore padding, treat tasks alike, answer without a support, give probabilities."""

import importlib

import pytest
import torch

from warmstart.core import Batch, Columns
from warmstart.core.trees import take, tree_map
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.tasks.pool import episodes, limit_support, make_pool

NAMES = ["global_mean", "task_mean", "task_ridge", "pooled_ridge", "boosting"]
SMALL = {"boosting": {"trees": 5, "smallest_leaf": 5, "draws": 2}, "pooled_ridge": {"draws": 2}}
COLUMNS, ABOUT = Columns(2, (6,), (5,)), Columns(1, (4,))
LIKELIHOODS = [squared, binary, multiclass]


def table(likelihood, tasks=24, plain=False):
    """Ragged tasks; the target depends on row, descriptor and task."""
    g = torch.Generator().manual_seed(3)
    lengths = torch.randint(4, 12, (tasks,), generator=g)
    total = int(lengths.sum())
    owner = torch.repeat_interleave(torch.arange(tasks), lengths)
    numbers = torch.randn(total, 2, generator=g)
    level = torch.randint(2, 6, (total, 1), generator=g)
    tags = torch.randint(0, 5, (total, 1, 2), generator=g)
    hint = torch.randn(tasks, 1, generator=g)
    own = torch.randn(tasks, generator=g)
    score = numbers[:, 0] + (level[:, 0] - 3) * hint[owner, 0] + own[owner] + 0.3 * torch.randn(total, generator=g)
    y = {"squared": score, "binary": (score > 0).float(), "multiclass": (score > -1).long() + (score > 1).long()}
    if plain:
        return make_pool(numbers, y[likelihood.name], lengths)
    x = {"numeric": numbers, "categorical": level, "bag": tags}
    kind = torch.randint(2, 4, (tasks, 1), generator=g)
    descriptor = {"numeric": hint, "categorical": kind, "bag": torch.zeros(tasks, 0, 1, dtype=torch.long)}
    return make_pool(x, y[likelihood.name], lengths, descriptor, w=torch.rand(total, generator=g) + 0.5)


def fitted(name, pool, likelihood, seed=0):
    module = importlib.import_module(f"warmstart.baselines.{name}")
    return module.fit(pool, COLUMNS, ABOUT, likelihood, 3, module.Config(**SMALL.get(name, {})), seed)


def dirty(batch: Batch) -> Batch:
    """The same rows with rubbish in the padding."""
    padding = batch.mask == 0

    def spoil(leaf):
        rubbish = 1 if not leaf.is_floating_point() else torch.nan
        return torch.where(padding.reshape(padding.shape + (1,) * (leaf.dim() - padding.dim())), rubbish, leaf)

    return Batch(tree_map(spoil, batch.x), spoil(batch.y), spoil(batch.w), batch.mask)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", NAMES)
def test_contract(name, likelihood):
    pool = table(likelihood)
    predict = fitted(name, pool, likelihood)
    task = episodes(pool, torch.arange(pool.count), 5, 4)
    real = task.query.mask > 0
    mean = predict(task).mean
    assert mean.shape == ((24, 4, 3) if likelihood is multiclass else (24, 4))
    assert mean.dtype == torch.float32

    # padding never matters, nor does it matter how much of it there is
    assert torch.equal(
        predict(task._replace(support=dirty(task.support), query=dirty(task.query))).mean[real], mean[real]
    )
    wider = episodes(pool, torch.arange(pool.count), 5, 4, support_rows=task.support.mask.sum(-1).long())
    wide = [
        torch.cat([leaf, torch.zeros_like(leaf)], 1) for leaf in (wider.support.y, wider.support.w, wider.support.mask)
    ]
    x = tree_map(lambda leaf: torch.cat([leaf, torch.zeros_like(leaf)], 1), wider.support.x)
    torch.testing.assert_close(predict(wider._replace(support=Batch(x, *wide))).mean, mean, atol=1e-5, rtol=1e-4)

    # tasks do not see each other
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(predict(take(task, order)).mean, mean[order], atol=1e-5, rtol=1e-4)

    # without support: the same for tasks that differ in the support only, and the width 0 is allowed
    nothing = predict(limit_support(task, 0)).mean
    assert nothing.isfinite().all()
    narrow = task._replace(support=take(task.support, (slice(None), slice(0))))
    torch.testing.assert_close(predict(narrow).mean, nothing, atol=1e-6, rtol=1e-5)

    if likelihood is not squared:
        assert mean.min() >= 0
        assert mean.max() <= 1
    if likelihood is multiclass:
        torch.testing.assert_close(mean.sum(-1), torch.ones(24, 4))


@pytest.mark.parametrize("name", NAMES)
def test_reproducible_and_fits_plain_numbers(name):
    pool = table(squared, plain=True)
    task = episodes(pool, torch.arange(pool.count), 5, 4)
    first, second = (fitted(name, pool, squared, seed=4)(task).mean for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_support_helps(name):
    """On new tasks that share the rule but not the level."""
    pool = table(squared, tasks=200)
    train, test = pool.select(torch.arange(150)), pool.select(torch.arange(150, 200))
    predict = fitted(name, train, squared)
    task = episodes(test, torch.arange(50), 5, 3)
    errors = [
        ((predict(limit_support(task, rows)).mean - task.query.y) ** 2)[task.query.mask > 0].mean() for rows in (0, 5)
    ]
    assert errors[1] < 0.95 * errors[0]


@pytest.mark.parametrize("name", ["pooled_ridge", "boosting"])
@pytest.mark.parametrize("likelihood", [binary, multiclass], ids=lambda kind: kind.name)
def test_a_class_that_never_came_has_no_chance(name, likelihood):
    pool = table(likelihood)
    only = pool._replace(y=torch.ones_like(pool.y))
    mean = fitted(name, only, likelihood)(episodes(only, torch.arange(5), 3, 2)).mean
    assert torch.equal(
        mean, torch.tensor([0.0, 1, 0]).expand(5, 2, 3) if likelihood is multiclass else torch.ones(5, 2)
    )


@pytest.mark.parametrize("name", NAMES)
def test_space_names_the_configuration(name):
    module = importlib.import_module(f"warmstart.baselines.{name}")
    for key, values in module.SPACE.items():
        assert getattr(module.Config(), key) in values
