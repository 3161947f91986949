"""Task and pooled ridge against scikit-learn, fitted task by task."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from warmstart.baselines import pooled_ridge, task_ridge
from warmstart.core import Columns
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.tasks.pool import episodes, make_pool

NONE = Columns()
CFG = task_ridge.Config(penalty=0.7, offset=2.5, newton=20)


def pool(tasks=12, rows=9, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(tasks * rows, 2, generator=g)
    slope = torch.randn(tasks, 2, generator=g).repeat_interleave(rows, 0)
    y = (x * slope).sum(-1) + 2 + 0.2 * torch.randn(tasks * rows, generator=g)
    return make_pool((x - x.mean(0)) / x.std(0, correction=0), y, torch.full((tasks,), rows))


def split(train):
    return episodes(train, torch.arange(train.count), 5, 3)


def free(x):
    """Rows with the intercept as one more column, scaled so that a plain penalty is the one of `offset`."""
    return np.concatenate([x.numpy(), np.full((len(x), 1), CFG.offset**0.5)], 1)


def test_task_ridge_is_ridge_per_task():
    train = pool()
    task = split(train)
    mean = task_ridge.fit(train, NONE, NONE, squared, 0, CFG, 0)(task).mean
    mu = train.y.mean().item()
    for t in range(train.count):
        x, y = free(task.support.x[t]), task.support.y[t].numpy() - mu
        slope = np.linalg.solve(x.T @ x + CFG.penalty * np.eye(3), x.T @ y)
        np.testing.assert_allclose(mean[t], mu + free(task.query.x[t]) @ slope, rtol=1e-3, atol=1e-4)


def test_task_ridge_is_logistic_regression_per_task():
    train = pool()
    train = train._replace(y=(train.y > 2).float())
    task = split(train)
    mean = task_ridge.fit(train, NONE, NONE, binary, 0, CFG, 0)(task).mean
    share = train.y.mean()
    slope = per_task_logistic(task.support.x[0], task.support.y[0], torch.logit(share))
    expected = torch.sigmoid(torch.logit(share) + torch.from_numpy(free(task.query.x[0])).double() @ slope)
    torch.testing.assert_close(mean[0].double(), expected, atol=1e-4, rtol=1e-3)


def per_task_logistic(x, y, centre):
    """sum logistic loss + penalty / 2 |b|^2, minimised by a general optimiser."""
    rows = torch.from_numpy(free(x)).double()
    slope = torch.zeros(rows.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([slope], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            centre.double() + rows @ slope, y.double(), reduction="sum"
        )
        loss = loss + CFG.penalty / 2 * (slope**2).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return slope.detach()


def test_without_support_the_global_mean():
    train = pool()
    none = split(train)
    none = none._replace(support=none.support._replace(mask=none.support.mask * 0))
    mean = task_ridge.fit(train, NONE, NONE, squared, 0, CFG, 0)(none).mean
    torch.testing.assert_close(mean, train.y.mean().expand(12, 3))
    labels = train._replace(y=torch.arange(len(train.y)) % 3)
    shares = task_ridge.fit(labels, NONE, NONE, multiclass, 3, CFG, 0)(none).mean
    torch.testing.assert_close(shares, torch.full((12, 3, 3), 1 / 3))


def test_pooled_ridge_finds_a_linear_rule_exactly():
    g = torch.Generator().manual_seed(0)
    x, about = torch.randn(400, 2, generator=g), torch.randn(40, 1, generator=g)
    y = 1 + x @ torch.tensor([2.0, -1.0]) + 3 * about[:, 0].repeat_interleave(10)
    train = make_pool(x, y, torch.full((40,), 10), about)
    task = split(train)
    mean = pooled_ridge.fit(train, NONE, NONE, squared, 0, pooled_ridge.Config(penalty=1e-6), 0)(task).mean
    torch.testing.assert_close(mean, task.query.y, atol=1e-3, rtol=1e-3)


def test_pooled_ridge_is_logistic_regression_when_a_support_is_never_shown():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=g)
    y = (x[:, 0] - 2 * x[:, 1] + 0.5 * torch.randn(600, generator=g) > 0.3).float()
    train = make_pool(x, y, torch.ones(600, dtype=torch.long))
    cfg = pooled_ridge.Config(penalty=5.0, draws=1, support=0, query=1)
    mean = pooled_ridge.fit(train, NONE, NONE, binary, 0, cfg, 0)(episodes(train, torch.arange(600), 0, 1)).mean
    scaled = ((x - x.mean(0)) / x.std(0, correction=0)).double().numpy()
    peer = LogisticRegression(C=0.2).fit(scaled, y.numpy()).predict_proba(scaled)[:, 1]
    assert mean[:, 0].numpy() == pytest.approx(peer, abs=2e-3)
