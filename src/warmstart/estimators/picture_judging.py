"""What is said of pictures one by one, and how that is judged on classes that no training saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from warmstart.baselines.centroids import sharpness
from warmstart.core import Learner, Prediction, Task
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.estimators.powers import log_of, sharpen
from warmstart.metrics.errors import log_loss
from warmstart.tasks.images import Images, sampler

STACK, AT_ONCE = 20, 2  # tasks adapted and judged at once on a GPU: every query picture comes with its own support


def predict_alone(learner: Learner, state: Any, tasks: Task, way: int) -> Tensor:
    """Probabilities [t, n, way]; a head's outputs beyond `way` are left out."""
    stack, at_once = (1, 1) if tasks.key.is_cpu else (STACK, AT_ONCE)
    said: Prediction = predict_stack(learner, state, tasks, chunk=stack, alone=True, at_once=at_once)
    kept = said.mean[..., :way]
    return kept / kept.sum(-1, keepdim=True)


class Choice(NamedTuple):
    """How a state does on the validation tasks."""

    value: float  # log loss at the best sharpness
    sharpness: float


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
