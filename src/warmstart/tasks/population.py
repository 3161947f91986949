"""A simulated population with known truth: six unequal groups of tasks over shared nonlinear features.

    phi(x) = tanh(W2' tanh(W1' z + b1) + b2)        z: the row as numbers, one-hot and multi-hot
    y = (w_g + d_t) . phi(x) + e                    task t of group g
    descriptor = a group that is wrong now and then, and three noisy projections of w_g + d_t

Given phi and the groups this is linear-Gaussian with six components, so `exact_bayes` is the best
prediction there is. phi is the same for every seed; a seed draws the groups' weights, tasks and rows.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from warmstart.core import Columns, Prediction, Task
from warmstart.tasks.pool import Pool, make_pool

SHARES = (0.50, 0.20, 0.12, 0.09, 0.06, 0.03)
SMALL = (2, 3, 4, 5)  # the groups that a pooled model forgets
NUMBERS, LEVELS, TAGS, MOST_TAGS, WIDTH, PROJECTIONS = 5, 20, 30, 4, 64, 3
FIRST = 2  # index of the first value of a category; 0 is missing, 1 unseen
WRONG_GROUP = 0.2


class Truth(NamedTuple):
    """The parameters of the population, in float64; what `exact_bayes` knows and no learner sees."""

    w1: Tensor  # [55, 64]
    b1: Tensor
    w2: Tensor  # [64, 64]
    b2: Tensor
    centres: Tensor  # [6, 64] w_g
    spread: float  # variance of d_t in each direction
    noise: float  # variance of e
    projection: Tensor  # [3, 64], scaled so that a descriptor's numbers have variance 1
    blur: float  # variance of the noise on them


class Population(NamedTuple):
    train: Pool
    validation: Pool
    test: Pool
    columns: Columns
    descriptor_columns: Columns
    truth: Truth


def population(seed: int = 0, train: int = 2000, validation: int = 200, test: int = 500, rows: int = 30) -> Population:
    """Training, validation and test tasks; a split does not change when another one's size does."""
    truth = draw_truth(seed)

    def draw(split: int, count: int, first_key: int) -> Pool:
        return _draw_tasks(truth, count, rows, torch.Generator().manual_seed(4 * seed + split), first_key)

    return Population(
        draw(1, train, 0),
        draw(2, validation, train),
        draw(3, test, train + validation),
        Columns(NUMBERS, (LEVELS + FIRST,), (TAGS + FIRST,)),
        Columns(PROJECTIONS, (len(SHARES) + FIRST,)),
        truth,
    )


def draw_truth(seed: int) -> Truth:
    """Features by seed 0, groups and projections by `seed`."""
    fixed = torch.Generator().manual_seed(0)
    inputs = NUMBERS + LEVELS + TAGS
    w1 = _normal(fixed, inputs, WIDTH) * 0.125**0.5
    w2 = _normal(fixed, WIDTH, WIDTH) * 1.5 / 8
    b1, b2 = _normal(fixed, WIDTH) / 2, _normal(fixed, WIDTH) / 2
    drawn = torch.Generator().manual_seed(4 * seed)
    centres = _normal(drawn, len(SHARES), WIDTH) / 8
    projection = _normal(drawn, PROJECTIONS, WIDTH)
    truth = Truth(w1, b1, w2, b2, centres, 1 / 256, 0.0, projection, 0.8)
    # the exact second moments of w over tasks; those of phi from a large sample of rows
    share = torch.tensor(SHARES, dtype=torch.float64)
    mean = share @ centres
    second = centres.T @ (share[:, None] * centres) + truth.spread * torch.eye(WIDTH, dtype=torch.float64)
    phi = features(truth, _draw_rows(20_000, fixed))
    signal = ((phi @ second) * phi).sum(1).mean() - (phi @ mean).mean() ** 2
    variance = ((projection @ (second - mean.outer(mean))) * projection).sum(1, keepdim=True)
    # noise of twice the projection's standard deviation: variance 1/5 of signal, 4/5 of noise
    return truth._replace(noise=0.09 * float(signal), projection=projection * (0.2 / variance) ** 0.5)


def features(truth: Truth, x: dict[str, Tensor]) -> Tensor:
    """phi(x), [..., 64]."""
    # an identity whose two special slots are cut off turns an index into its one-hot form
    category = torch.eye(LEVELS + FIRST, dtype=torch.float64)[:, FIRST:][x["categorical"][..., 0]]
    tags = torch.eye(TAGS + FIRST, dtype=torch.float64)[:, FIRST:][x["bag"][..., 0, :]].sum(-2)
    z = torch.cat([x["numeric"].double(), category, tags], -1)
    return torch.tanh(torch.tanh(z @ truth.w1 + truth.b1) @ truth.w2 + truth.b2)


def exact_bayes(truth: Truth, task: Task) -> Prediction:
    """The posterior predictive of a stack of tasks given descriptor and support: no method can do better."""
    support, query, descriptor = task.support, task.query, task.descriptor
    count = support.y.shape[0]
    rows = features(truth, support.x) * support.mask[..., None].double()
    judged = features(truth, query.x)
    # everything seen is one linear observation of w: a @ w + noise; a padded row is 0 @ w + noise = 0
    a = torch.cat([truth.projection.expand(count, -1, -1), rows], 1)
    seen = torch.cat([descriptor["numeric"].double(), support.y.double() * support.mask], 1)
    noise = torch.full_like(seen, truth.noise)
    noise[:, :PROJECTIONS] = truth.blur
    chol = torch.linalg.cholesky(truth.spread * a @ a.mT + torch.diag_embed(noise))
    residual = seen[:, None] - truth.centres @ a.mT  # [t, groups, seen]
    white = torch.linalg.solve_triangular(chol, residual.mT, upper=False)
    claimed = descriptor["categorical"] - FIRST == torch.arange(len(SHARES))
    share = torch.tensor(SHARES, dtype=torch.float64)
    prior = share * (claimed * (1 - WRONG_GROUP) + WRONG_GROUP / len(SHARES))
    weight = torch.softmax(prior.log() - 0.5 * (white**2).sum(1), 1)  # the covariance is the same for every group
    gain = torch.linalg.solve_triangular(chol, truth.spread * a @ judged.mT, upper=False)  # [t, seen, query]
    means = truth.centres @ judged.mT + white.mT @ gain  # [t, groups, query]
    mean = (weight[..., None] * means).sum(1)
    within = truth.spread * (judged**2).sum(-1) - (gain**2).sum(1) + truth.noise
    return Prediction(mean, within + (weight[..., None] * (means - mean[:, None]) ** 2).sum(1))


def frames(population: Population) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows and the task table as a user would have them; values of `tags` are joined by `|`."""
    rows, tasks = [], []
    for split, pool in zip(("train", "validation", "test"), population[:3], strict=True):
        names = [f"{split}-{i:04d}" for i in range(pool.count)]
        bags = pool.x["bag"][:, 0].tolist()
        numbers = {f"x{i + 1}": pool.x["numeric"][:, i].numpy() for i in range(NUMBERS)}
        category = [f"c{i - FIRST:02d}" for i in pool.x["categorical"][:, 0].tolist()]
        tags = ["|".join(f"t{i - FIRST:02d}" for i in bag if i) for bag in bags]
        owner = [name for name, length in zip(names, pool.lengths.tolist(), strict=True) for _ in range(length)]
        rows.append(
            pd.DataFrame({"task": owner, **numbers, "category": category, "tags": tags, "target": pool.y.numpy()})
        )
        group = [f"g{i - FIRST}" for i in pool.descriptor["categorical"][:, 0].tolist()]
        hints = {f"p{i + 1}": pool.descriptor["numeric"][:, i].numpy() for i in range(PROJECTIONS)}
        tasks.append(pd.DataFrame({"task": names, "split": split, "group": group, **hints}))
    return pd.concat(rows, ignore_index=True), pd.concat(tasks, ignore_index=True)


def _draw_tasks(truth: Truth, count: int, rows: int, generator: torch.Generator, first_key: int) -> Pool:
    share = torch.tensor(SHARES)
    group = torch.multinomial(share, count, replacement=True, generator=generator)
    w = truth.centres[group] + truth.spread**0.5 * _normal(generator, count, WIDTH)
    random = torch.randint(len(SHARES), (count,), generator=generator)
    claimed = torch.where(torch.rand(count, generator=generator) < WRONG_GROUP, random, group)
    hints = w @ truth.projection.T + truth.blur**0.5 * _normal(generator, count, PROJECTIONS)
    x = _draw_rows(count * rows, generator)
    signal = (features(truth, x).reshape(count, rows, WIDTH) @ w[..., None]).flatten()
    y = signal + truth.noise**0.5 * _normal(generator, count * rows)
    descriptor = {
        "numeric": hints.float(),
        "categorical": claimed[:, None] + FIRST,
        "bag": torch.zeros(count, 0, 1, dtype=torch.long),
    }
    key = first_key + torch.arange(count)
    return make_pool(x, y.float(), torch.full((count,), rows), descriptor, key=key, group=group)


def _draw_rows(count: int, generator: torch.Generator) -> dict[str, Tensor]:
    tags = torch.rand(count, TAGS, generator=generator).argsort(1)[:, :MOST_TAGS] + FIRST
    length = torch.randint(1, MOST_TAGS + 1, (count, 1), generator=generator)
    return {
        "numeric": torch.randn(count, NUMBERS, generator=generator),
        "categorical": torch.randint(LEVELS, (count, 1), generator=generator) + FIRST,
        "bag": torch.where(torch.arange(MOST_TAGS) < length, tags, 0)[:, None],
    }


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
