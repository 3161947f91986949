"""The recipe, and the exact Bayes prediction against brute force and against its own claims."""

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from warmstart.tasks.pool import episodes, limit_support
from warmstart.tasks.population import SHARES, draw_truth, exact_bayes, features, frames, population


@pytest.fixture(scope="module")
def people():
    return population(seed=3, train=600, validation=50, test=300)


def everyone(pool, support=20):
    return episodes(pool, torch.arange(pool.count), support, 10)


def test_rows_follow_the_recipe(people):
    x = people.train.x
    assert x["numeric"].shape == (18_000, 5)
    assert x["categorical"].min() == 2 and x["categorical"].max() == 21
    tags = x["bag"][:, 0]
    counts = (tags > 0).sum(1)
    assert_close(torch.bincount(counts)[1:] / 18_000, torch.full((4,), 0.25), atol=0.02, rtol=0)
    assert all(len(set(row)) == n for row, n in zip(tags[:200].tolist(), (counts + (counts < 4))[:200], strict=True))
    assert people.columns == (5, (22,), (32,)) and people.descriptor_columns == (3, (8,), ())


def test_features_are_the_two_layers_on_the_one_hot_form(people):
    truth = people.truth
    row = {"numeric": torch.arange(5.0), "categorical": torch.tensor([7]), "bag": torch.tensor([[4, 31, 0, 0]])}
    z = torch.zeros(55, dtype=torch.float64)
    z[:5] = torch.arange(5.0)
    z[[5 + 7 - 2, 25 + 4 - 2, 25 + 31 - 2]] = 1
    assert_close(features(truth, row), torch.tanh(torch.tanh(z @ truth.w1 + truth.b1) @ truth.w2 + truth.b2))


def test_moments_follow_the_recipe():
    wide = population(seed=1, train=6000, validation=1, test=1, rows=4)
    truth, pool = wide.truth, wide.train
    assert_close(torch.bincount(pool.group) / 6000, torch.tensor(SHARES), atol=0.02, rtol=0)
    wrong = (pool.descriptor["categorical"][:, 0] - 2 != pool.group).float().mean()
    assert_close(wrong, torch.tensor(0.2 * 5 / 6), atol=0.015, rtol=0)
    assert_close(pool.descriptor["numeric"].var(0), torch.ones(3), atol=0.06, rtol=0)
    # noise has 0.3 of the signal's standard deviation, so 0.09 / 1.09 of the target's variance
    assert truth.noise / pool.y.var() == pytest.approx(0.09 / 1.09, rel=0.06)
    assert [float(w.std()) for w in (truth.w1, truth.w2, truth.b1)] == pytest.approx([8**-0.5, 1.5 / 8, 0.5], rel=0.2)


def test_a_seed_draws_groups_and_tasks_but_not_features():
    a, b = draw_truth(0), draw_truth(1)
    assert_close(a.w1, b.w1)
    assert not torch.allclose(a.centres, b.centres)
    small, large = population(2, train=5, test=4), population(2, train=50, test=4)
    assert_close(small.test.y, large.test.y)
    assert not torch.allclose(population(7, train=1, test=4).test.y, small.test.y)
    assert len(torch.cat([p.key for p in small[:3]]).unique()) == 5 + 200 + 4


def test_exact_bayes_is_dense_conditioning_of_each_group(people):
    """The joint density of projections, support and one query row, written out group by group."""
    truth, task = people.truth, limit_support(everyone(people.test), 4)
    found = exact_bayes(truth, task)
    for t in range(0, 300, 60):
        a = torch.cat([truth.projection, features(truth, {k: v[t, :4] for k, v in task.support.x.items()})])
        a = torch.cat([a, features(truth, {k: v[t, :1] for k, v in task.query.x.items()})])
        seen = torch.cat([task.descriptor["numeric"][t].double(), task.support.y[t, :4].double()])
        noise = torch.tensor([truth.blur] * 3 + [truth.noise] * 5, dtype=torch.float64)
        covariance = a @ (truth.spread * torch.eye(64, dtype=torch.float64)) @ a.T + noise.diag()
        inside, cross = covariance[:7, :7], covariance[7, :7]
        weights, means = [], []
        for g, share in enumerate(SHARES):
            centre = a @ truth.centres[g]
            claimed = int(task.descriptor["categorical"][t, 0]) - 2
            gate = 0.8 * (claimed == g) + 0.2 / 6
            weights.append(share * gate * MultivariateNormal(centre[:7], inside).log_prob(seen).exp())
            means.append(centre[7] + cross @ torch.linalg.solve(inside, seen - centre[:7]))
        weights, means = torch.stack(weights) / sum(weights), torch.stack(means)
        variance = covariance[7, 7] - cross @ torch.linalg.solve(inside, cross)
        assert_close(found.mean[t, 0], weights @ means)
        assert_close(found.variance[t, 0], variance + weights @ means**2 - (weights @ means) ** 2)


def test_exact_bayes_is_as_sure_as_it_is_right_and_improves_with_samples(people):
    task = everyone(people.test)
    errors = []
    for rows in (0, 5, 20):
        found = exact_bayes(people.truth, limit_support(task, rows))
        square = (found.mean - task.query.y) ** 2
        assert float((square / found.variance).mean()) == pytest.approx(1, abs=0.1)
        errors.append(float(square.mean() / people.test.y.var()))
    assert 0.55 > errors[0] > errors[1] + 0.1 and errors[1] > errors[2] + 0.03
    assert errors[2] > people.truth.noise / float(people.test.y.var())


def test_frames_hold_the_same_rows_and_descriptors(people):
    rows, tasks = frames(people)
    assert len(rows) == 950 * 30 and len(tasks) == 950 and rows["task"].isin(tasks["task"]).all()
    last = people.test
    assert rows["target"].iloc[-1] == pytest.approx(float(last.y[-1]))
    assert rows["tags"].iloc[-1] == "|".join(f"t{i - 2:02d}" for i in last.x["bag"][-1, 0].tolist() if i)
    assert rows["category"].iloc[-1] == f"c{int(last.x['categorical'][-1, 0]) - 2:02d}"
    assert tasks["group"].iloc[-1] == f"g{int(last.descriptor['categorical'][-1, 0]) - 2}"
    assert tasks["p3"].iloc[-1] == pytest.approx(float(last.descriptor["numeric"][-1, 2]))
    assert tasks["split"].value_counts().to_dict() == {"train": 600, "test": 300, "validation": 50}
