"""Scores per task against scikit-learn and scipy, task by task, with weights and padding."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk

from warmstart.core import Batch
from warmstart.metrics import errors

LENGTHS = [4, 1, 6]


def stack(kind="real", seed=0):
    """Three tasks of different lengths; padded rows hold NaN predictions."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randn(3, 6, generator=g) * 2 + 1
    prediction = torch.randn(3, 6, generator=g)
    if kind == "binary":
        y, prediction = (y > 1).float(), prediction.sigmoid()
    if kind == "classes":
        y, prediction = torch.randint(4, (3, 6), generator=g), torch.randn(3, 6, 4, generator=g).softmax(-1)
    mask = (torch.arange(6) < torch.tensor(LENGTHS)[:, None]).float()
    w = torch.rand(3, 6, generator=g) + 0.5
    padding = mask.bool() if prediction.dim() == 2 else mask.bool()[..., None]
    return torch.where(padding, prediction, torch.nan), Batch(torch.zeros(3, 6, 1), y, w, mask)


def rows(prediction, batch):
    for t, n in enumerate(LENGTHS):
        yield batch.y[t, :n].numpy(), prediction[t, :n].numpy(), batch.w[t, :n].numpy()


@pytest.mark.parametrize(
    ("kind", "ours", "reference"),
    [
        ("real", errors.squared_error, lambda y, p, w: sk.mean_squared_error(y, p, sample_weight=w)),
        ("real", errors.absolute_error, lambda y, p, w: sk.mean_absolute_error(y, p, sample_weight=w)),
        ("binary", errors.log_loss, lambda y, p, w: sk.log_loss(y, p.astype(float), sample_weight=w, labels=[0, 1])),
        ("binary", errors.accuracy, lambda y, p, w: sk.accuracy_score(y, p > 0.5, sample_weight=w)),
        (
            "classes",
            errors.log_loss,
            lambda y, p, w: np.average(-np.log(p[np.arange(len(y)), y]), weights=w),
        ),
        ("classes", errors.accuracy, lambda y, p, w: sk.accuracy_score(y, p.argmax(-1), sample_weight=w)),
    ],
)
def test_agrees_with_scikit_learn_task_by_task(kind, ours, reference):
    prediction, batch = stack(kind)
    expected = [reference(y, p, w) for y, p, w in rows(prediction, batch)]
    assert ours(prediction, batch).tolist() == pytest.approx(expected, rel=1e-5)


def test_relative_error_of_the_constant_mean_is_one_over_the_stack():
    prediction, batch = stack()
    joined = [np.concatenate(part) for part in zip(*rows(prediction, batch), strict=True)]
    mean = np.average(joined[0], weights=joined[2])
    variance = np.average((joined[0] - mean) ** 2, weights=joined[2])
    assert float(errors.target_variance(batch)) == pytest.approx(variance, rel=1e-5)
    relative = errors.relative_squared_error(torch.full_like(batch.y, mean), batch)
    total = (batch.w * batch.mask).sum(-1)
    assert float((relative * total).sum() / total.sum()) == pytest.approx(1, rel=1e-5)
    halved = errors.relative_squared_error(prediction, batch, 2.0)
    torch.testing.assert_close(halved, errors.squared_error(prediction, batch) / 2)


def test_gaussian_nll_is_scipys_density():
    prediction, batch = stack()
    variance = batch.w + 0.3
    expected = [
        np.average(-stats.norm(p, (w + 0.3) ** 0.5).logpdf(y), weights=w) for y, p, w in rows(prediction, batch)
    ]
    assert errors.gaussian_nll(prediction, variance, batch).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_sure_mistake_costs_a_finite_loss():
    batch = Batch(torch.zeros(1, 1, 1), torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1))
    assert 10 < float(errors.log_loss(torch.zeros(1, 1), batch)) < 20


def test_a_task_without_rows_scores_nan():
    prediction, batch = stack()
    mask = batch.mask.clone()
    mask[1] = 0
    scores = errors.squared_error(prediction, batch._replace(mask=mask))
    assert scores.isnan().tolist() == [False, True, False]
