"""Support statistics against a loop over tasks and rows, and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge

from warmstart.baselines.support import kernel, regress, statistics, targets, task_sums
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.tasks.pool import make_pool


def stack(seed=0, tasks=3, shown=4, asked=2, width=3, channels=2):
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    weight = torch.rand(tasks, shown, generator=g, dtype=torch.float64) + 0.5
    weight[0, 2:] = 0
    weight[1] = 0
    return draw(tasks, shown, width), draw(tasks, asked, width), draw(tasks, shown, channels), weight


def test_statistics_against_a_plain_loop():
    support, query, values, weight = stack()
    spread, ridge = 1.3, 0.4
    ours = statistics(support, query, values, weight, spread, ridge)
    for t in range(3):
        real = [i for i in range(4) if weight[t, i] > 0]
        s, v, w = support[t, real].numpy(), values[t, real].numpy(), weight[t, real].numpy()
        for q, row in enumerate(query[t].numpy()):
            near = np.array([np.exp(-((row - other) ** 2).sum() / (2 * spread**2)) for other in s])
            mean = sum((w[i] * v[i] for i in range(len(real))), np.zeros(2)) / (w.sum() + 1)
            similar = sum((near[i] * w[i] * v[i] for i in range(len(real))), np.zeros(2)) / ((near * w).sum() + 0.1)
            smooth = np.zeros(2)
            if real:
                machine = KernelRidge(alpha=ridge, kernel="rbf", gamma=1 / (2 * spread**2))
                smooth = machine.fit(s, v, sample_weight=w).predict(row[None])[0]
            np.testing.assert_allclose(ours[t, q], np.concatenate([mean, similar, smooth]), rtol=1e-6)


def test_no_support_says_nothing():
    support, query, values, weight = stack()
    assert (statistics(support, query, values, weight * 0, 1.0, 0.5) == 0).all()
    none = statistics(support[:, :0], query, values[:, :0], weight[:, :0], 1.0, 0.5)
    assert torch.equal(none, torch.zeros(3, 2, 6, dtype=torch.float64))


def test_regress_is_weighted_ridge():
    """A linear kernel and integer weights: the primal solution with rows repeated."""
    g = torch.Generator().manual_seed(1)
    x, y, new = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((4, 2), (4, 1), (3, 2)))
    weight = torch.tensor([1, 3, 0, 2])
    many, values = x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0)
    slope = torch.linalg.solve(many.T @ many + 0.7 * torch.eye(2), many.T @ values)
    ours = regress(x @ x.T, new @ x.T, y, weight.double(), 0.7)
    torch.testing.assert_close(ours, new @ slope)


def test_kernel_of_a_row_with_itself_is_one():
    x = 1e3 + torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(torch.diagonal(kernel(x, x, 0.5), dim1=-2, dim2=-1), torch.ones(2, 5).double())


@pytest.mark.parametrize(
    ("likelihood", "expected"),
    [(squared, [[0], [2]]), (binary, [[0], [2]]), (multiclass, [[1, 0, 0], [0, 0, 1]])],
)
def test_targets(likelihood, expected):
    assert targets(torch.tensor([0.0, 2.0]), likelihood, 3).tolist() == expected


def test_task_sums_are_weighted_and_know_empty_tasks():
    pool = make_pool(
        torch.zeros(4, 1), torch.tensor([1.0, 2, 3, 4]), torch.tensor([1, 0, 3]), w=torch.tensor([2.0, 1, 1, 0.5])
    )
    sums, weights = task_sums(pool, pool.y[:, None])
    assert sums.flatten().tolist() == [2, 0, 7]
    assert weights.tolist() == [2, 0, 2.5]
