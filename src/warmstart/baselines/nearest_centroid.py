"""The nearest class mean on pixels: what pictures say without any network.

    p(y = k | x) = softmax_k(-|x - mean of the support pictures of class k|^2 / temperature)

The temperature is the likeliest one on tasks drawn from the training classes, so that the probabilities mean
something. Only it is learned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from warmstart.baselines.centroids import among_seen, means, nearness, nothing, observe, sharpness
from warmstart.core import Prediction, Task
from warmstart.core.trees import take
from warmstart.engine.meta import chunks
from warmstart.tasks.images import Images, draw_episodes
from warmstart.tasks.pool import pad_safe

AT_ONCE = 100  # tasks


@dataclass(frozen=True)
class Config:
    temperature: float | None = None  # None: chosen on tasks of the training classes, drawn as below
    tasks: int = 200
    way: int = 5  # classes
    shot: int = 5  # support pictures of each, at most
    least: int | None = None  # and at least; None: always `shot`
    query: int = 15


def fit(train: Images, classes: int, cfg: Config = Config(), seed: int = 0) -> Callable[[Task], Prediction]:
    """`classes` is the most that a task has, and how many probabilities a row gets."""
    temperature = cfg.temperature
    if temperature is None:
        generator = torch.Generator().manual_seed(seed)
        sizes = [len(range(cfg.tasks)[part]) for part in chunks(cfg.tasks, AT_ONCE)]
        drawn = [draw_episodes(train, n, cfg.way, cfg.shot, cfg.query, generator, cfg.least) for n in sizes]
        found = torch.cat([scores(task, cfg.way) for task in drawn])
        temperature = 1 / sharpness(found, torch.cat([task.query.y for task in drawn]))

    def predict(task: Task) -> Prediction:
        parts = [scores(take(task, part), classes) / temperature for part in chunks(len(task.key), AT_ONCE)]
        return Prediction(torch.cat(parts).softmax(-1))

    return predict


def scores(task: Task, classes: int) -> Tensor:
    """[t, q, classes]: minus the squared distance to each class's mean, less what all classes share."""
    support, query = pad_safe(task.support), pad_safe(task.query)
    shown, asked = support.x["pixels"].flatten(-3), query.x["pixels"].flatten(-3)
    sums = observe(nothing(classes, shown), shown, support)
    return among_seen(nearness(asked, means(sums)), sums.weight > 0)
