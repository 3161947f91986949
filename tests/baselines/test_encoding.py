"""Mean targets against a loop over rows."""

import pytest
import torch

from warmstart.baselines.encoding import FOLDS, PRIOR, fit_means


def data(rows=60):
    g = torch.Generator().manual_seed(0)
    return (
        torch.randint(2, 9, (rows,), generator=g),
        torch.randn(rows, 2, generator=g),
        torch.rand(rows, generator=g) + 1,
    )


def test_new_rows_get_the_shrunk_mean_of_all_rows():
    index, values, w = data()
    _, tell = fit_means(index, 10, values, w, seed=1)
    centred = values - (w[:, None] * values).sum(0) / w.sum()
    for level in range(2, 9):
        own = index == level
        expected = (w[own, None] * centred[own]).sum(0) / (w[own].sum() + PRIOR)
        torch.testing.assert_close(tell(torch.tensor([[level]]))[0, 0], expected)
    assert tell(torch.tensor([0, 9])).tolist() == [[0, 0], [0, 0]]  # never seen


def test_a_training_row_gets_the_mean_of_other_folds():
    index, values, w = data()
    told, _ = fit_means(index, 10, values, w, seed=1)
    centred = values - (w[:, None] * values).sum(0) / w.sum()
    fold = torch.randperm(60, generator=torch.Generator().manual_seed(1)) % FOLDS
    for i in range(60):
        others = [j for j in range(60) if index[j] == index[i] and fold[j] != fold[i]]
        total = sum((w[j] * centred[j] for j in others), torch.zeros(2))
        torch.testing.assert_close(told[i], total / (sum(w[j] for j in others) + PRIOR), atol=1e-6, rtol=1e-5)


def test_a_value_that_comes_once_tells_nothing_of_its_own_target():
    """With one row per value, the told means are zero and cannot betray the targets."""
    told, tell = fit_means(torch.arange(50), 50, torch.linspace(-1, 1, 50)[:, None], torch.ones(50), seed=0)
    assert told.abs().max() < 1e-6
    assert tell(torch.tensor(49)).item() == pytest.approx(1 / (1 + PRIOR))
