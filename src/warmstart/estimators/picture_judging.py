"""How well new classes are told apart: accuracy on classes that no training saw, beside nearest centroid on pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.baselines import nearest_centroid
from warmstart.baselines.centroids import sharpness
from warmstart.core import Learner, Prediction, Task
from warmstart.engine.loop import Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.metrics.errors import accuracy, log_loss
from warmstart.metrics.intervals import Interval, over_tasks, paired
from warmstart.tasks.images import Images, sampler

PART = 10  # tasks drawn at once
AT_ONCE = 2  # tasks judged at once on a GPU: every query picture comes with a support of its own


class Judged(NamedTuple):
    """Accuracy over tasks, each with a 95 % interval. Every query picture is judged alone with the support."""

    accuracy: Interval
    centroid: Interval  # of nearest centroid on pixels, on the same tasks
    difference: Interval
    way: int
    shot: int
    query: int  # pictures judged of a class


def predict_alone(learner: Learner, state: Any, tasks: Task, way: int) -> Tensor:
    """Probabilities [t, n, way]; a head's outputs beyond `way` are left out."""
    said: Prediction = predict_stack(learner, state, tasks, chunk=1 if tasks.key.is_cpu else AT_ONCE, alone=True)
    kept = said.mean[..., :way]
    return kept / kept.sum(-1, keepdim=True)


def judge(
    learner: Learner,
    state: Any,
    images: Images,
    way: int,
    shot: int,
    query: int,
    tasks: int,
    seed: int,
    progress: Report = silent,
) -> Judged:
    """Accuracy on tasks of these classes, drawn a few at a time."""
    draw = sampler(images, way, shot, query)
    ours, theirs = [], []
    for part in range(-(-tasks // PART)):
        drawn = draw(min(PART, tasks - part * PART), generator(seed, part, 1))
        ours.append(accuracy(predict_alone(learner, state, drawn, way), drawn.query))
        theirs.append(accuracy(nearest_centroid.scores(drawn, way), drawn.query))
        progress(min((part + 1) * PART, tasks), tasks, "")
    first, second = torch.cat(ours).cpu(), torch.cat(theirs).cpu()
    return Judged(over_tasks(first), over_tasks(second), paired(first, second), way, shot, query)


class Choice(NamedTuple):
    """How a state does on the validation tasks."""

    value: float  # log loss at the best sharpness
    sharpness: float


def sharpen(chances: Tensor, factor: float) -> Tensor:
    """p^factor, normalised: below 1 less sure, above 1 surer; the order of the classes stays."""
    return (factor * log_of(chances)).softmax(-1)


def log_of(chances: Tensor) -> Tensor:
    """Finite where a probability was rounded to zero."""
    return chances.clamp(min=torch.finfo(chances.dtype).tiny).log()


def validator(
    learner: Learner, images: Images, way: int, shot: int, query: int, tasks: int, seed: int
) -> Callable[[Any], Choice]:
    """State -> how it does on fixed tasks of these classes."""
    drawn = sampler(images, way, shot, query)(tasks, generator(seed, 0, 2))

    def look(state: Any) -> Choice:
        chances = predict_alone(learner, state, drawn, way)
        factor = sharpness(log_of(chances), drawn.query.y)
        return Choice(float(log_loss(sharpen(chances, factor), drawn.query).mean()), factor)

    return look
