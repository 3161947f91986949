"""Training: the engine's loop with early stopping on validation tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Learner, Tree
from warmstart.core.trees import leaves, tree_map
from warmstart.engine.capture import capture
from warmstart.engine.loop import NO_WATCH, Report, Watch, run, silent
from warmstart.engine.meta import in_turn, meta_update
from warmstart.engine.stage import PLAIN, Stage
from warmstart.training.sources import Source


@dataclass(frozen=True)
class Plan:
    """How long and how to train."""

    steps: int = 2000
    tasks: int = 32  # in a meta-batch
    support: int = 20  # rows shown at most; training shows 0 to so many
    query: int = 10  # rows judged at most
    every: int = 100  # steps between looks at the validation tasks, log lines and checkpoints
    patience: int = 10  # looks without improvement before training stops
    chunk: int | None = None  # tasks at once, to bound memory; None: the whole meta-batch
    together: int = 1  # meta-updates that count as one step, from a source that draws as many


class Trained(NamedTuple):
    state: Any
    value: float  # on the validation tasks; nan without any
    step: int  # where that was reached
    last: Any  # the state that training ended with


class Best(NamedTuple):
    """What early stopping remembers, as tensors: it travels in the checkpoint."""

    state: Any
    value: Tensor
    step: Tensor
    looks: Tensor  # since the best


def train(
    learner: Learner,
    state: Any,
    source: Source,
    plan: Plan,
    validate: Callable[[Any], float] | None = None,
    *,
    stage: Stage = PLAIN,
    folder: Path | None = None,
    progress: Report = silent,
    record: Callable[[int, dict[str, float]], None] | None = None,
) -> Trained:
    """Train and give the state that did best on the validation tasks, or the last one without them.

    On a CUDA device the whole update is captured in a graph.
    """
    update = meta_update(learner, plan.chunk, stage)
    if plan.together > 1:
        update = in_turn(update, plan.together)
    if learner.capturable and leaves(state) and leaves(state)[0].is_cuda:
        update = capture(update, state)
    watch = NO_WATCH if validate is None else early_stopping(state, validate, plan.patience)
    last, memo = run(
        update,
        state,
        source,
        plan.steps,
        folder=folder,
        every=plan.every,
        watch=watch,
        progress=progress,
        record=record,
    )
    if validate is None:
        return Trained(last, float("nan"), plan.steps, last)
    return Trained(memo.state, float(memo.value), int(memo.step), last)


def early_stopping(state: Any, validate: Callable[[Any], float], patience: int) -> Watch:
    """Remember the state with the lowest validation value; stop after `patience` looks without a lower one."""

    def look(memo: Tree, step: int, state: Any) -> tuple[Tree, bool, dict[str, float]]:
        value = validate(state)
        if value < float(memo.value):
            kept = tree_map(lambda leaf: leaf.detach().clone(), state)
            new = Best(kept, torch.tensor(value, dtype=torch.float64), torch.tensor(step), torch.tensor(0))
        else:
            new = memo._replace(looks=memo.looks + 1)
        return new, int(new.looks) >= patience, {"validation": value}

    none = Best(state, torch.tensor(float("inf"), dtype=torch.float64), torch.tensor(0), torch.tensor(0))
    return Watch(none, look)
