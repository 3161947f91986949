"""The meta-update: sum the contributions of a stack of tasks, in chunks and over processes, then update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from warmstart.core import Learner, Prediction, Task, Tree, adapt
from warmstart.core.trees import add, concat, leaves, take, tree_map
from warmstart.engine.noise import adapt_noise, generator
from warmstart.engine.ranks import sum_over_ranks
from warmstart.engine.stage import PLAIN, Stage


class Feed(NamedTuple):
    """What one meta-update takes."""

    tasks: Task
    noise: Tree = ()


def chunks(count: int, size: int | None) -> list[slice]:
    """Slices of at most `size` tasks; one slice when there is no limit.

    >>> chunks(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    size = size or max(count, 1)
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]


def sum_meta_grad(learner: Learner, state: Any, feed: Feed, chunk: int | None = None) -> tuple[Any, Any]:
    """Delta and Info of a stack, never more than `chunk` tasks at once."""
    parts = chunks(len(feed.tasks.key), chunk)
    total: Any = learner.meta_grad(state, *(feed if len(parts) == 1 else take(tuple(feed), parts[0])))
    for part in parts[1:]:
        total = add(total, learner.meta_grad(state, *take(tuple(feed), part)))
    delta, info = total
    return delta, info


def meta_update(
    learner: Learner, chunk: int | None = None, stage: Stage = PLAIN
) -> Callable[[Any, Feed], tuple[Any, Any]]:
    """(State, Feed) -> (State, Info per task): the function that `loop` runs and `capture` records.

    Under torchrun every process brings its own tasks and all end with the same state.
    """

    def end(state: Any, delta: Any, info: Any, count: torch.Tensor) -> tuple[Any, Any]:
        return learner.update(state, delta, count), type(info)(*(leaf / count for leaf in info))

    update = stage.run(end)

    def run(state: Any, feed: Feed) -> tuple[Any, Any]:
        delta, info = sum_meta_grad(learner, state, feed, chunk)
        like = leaves(info)[0]
        count = torch.full((), float(len(feed.tasks.key)), device=like.device, dtype=like.dtype)
        delta, info, count = sum_over_ranks((delta, info, count))
        found: tuple[Any, Any] = update(state, delta, info, count)
        return found

    return run


def in_turn(update: Callable[[Any, Any], tuple[Any, Any]], count: int) -> Callable[[Any, Any], tuple[Any, Any]]:
    """`count` updates as one, each with its part of a batch that has a leading axis of that length.

    Captured in one graph, they spare the host all but one launch.
    """

    def run(state: Any, batches: Any) -> tuple[Any, Any]:
        found = []
        for k in range(count):
            state, info = update(state, take(batches, k))
            found.append(info)
        return state, tree_map(lambda *parts: torch.stack(parts).mean(0), *found)

    return run


def predict_stack(
    learner: Learner,
    state: Any,
    tasks: Task,
    noise: Tree = (),
    steps: int | None = None,
    chunk: int | None = None,
    alone: bool = False,
    at_once: int | None = None,
) -> Prediction:
    """Adapt to every task's support, `chunk` tasks at a time, and predict its query rows. `noise` is (step noise,
    predict noise); without it a method that needs some gets the same draws every time.

    With `alone` each query row is seen with the support rows only: where rows see each other through batch
    statistics, what is said of one then does not depend on the others. This holds a support for every row, so of the
    tasks adapted together `at_once` are predicted together.
    """

    if not noise:
        source = generator(0, device=tasks.key.device)
        noise = adapt_noise(learner.noise, len(tasks.key), learner.steps if steps is None else steps, source)

    def learn(task: Task, noise: Tree) -> Tree:
        return adapt(learner, state, task.support, task.descriptor, noise[0], steps)

    def say(adapted: Tree, task: Task, noise: Tree) -> Prediction:
        def row(x: Tree) -> Any:
            among = tree_map(lambda shown, own: torch.cat([shown, own.unsqueeze(0)]), task.support.x, x)
            return take(learner.predict(state, adapted, among, noise[1]), -1)

        if alone:
            said: Prediction = torch.func.vmap(row)(task.query.x)
            return said
        return learner.predict(state, adapted, task.query.x, noise[1])

    parts = []
    with torch.no_grad():
        for some in chunks(len(tasks.key), chunk):
            given = take((tasks, noise), some)
            ready = (torch.func.vmap(learn)(*given), *given)
            parts += [torch.func.vmap(say)(*take(ready, few)) for few in chunks(len(given[0].key), at_once)]
        result: Prediction = concat(parts)
    return result
