"""What the sine studies share: one learner, trained on fresh sines."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from warmstart.core import Learner, Likelihood, Model, functional
from warmstart.core.trees import to_device
from warmstart.engine.kernels import FUSED
from warmstart.engine.loop import Diverged, Report, conclude, silent
from warmstart.engine.stage import COMPILED, TRACED, Stage
from warmstart.learners import empirical_bayes
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP, seeded
from warmstart.tasks import sine
from warmstart.training.sources import from_family
from warmstart.training.train import Plan, train

LOOKS = 70  # at a training, for its log and checkpoints
TOGETHER = 50  # updates in one CUDA graph
LONG = 2_000  # updates that make up for compiling on a CPU
NOISY = 5  # updates drawn at a time on a CPU for a learner that takes noise, of which there is much


class Training(NamedTuple):
    """On what and how long."""

    family: sine.Family
    shot: int
    iterations: int
    tasks: int = 25
    query: int = 10
    hidden: tuple[int, ...] = (40, 40)  # of the network


def conditioned(model: Model, likelihood: Likelihood, config: empirical_bayes.Config, stage: Stage) -> Learner:
    """Empirical Bayes as the others are built: sines have no descriptor."""
    return empirical_bayes.build(model, likelihood, config, None, stage)


def fit(
    build: Callable[..., Learner],
    config: Any,
    training: Training,
    seed: int,
    device: torch.device,
    bar: Report = silent,
    folder: Path | None = None,
    fast: str = "*",
    stage: Stage | None = None,
    validate: Callable[[Learner, Any], float] | None = None,
) -> tuple[Learner, Any]:
    """A trained learner and its state; no test task is looked at. With a folder it goes on where it stopped.

    With `validate` the state is the one that it found best, also of a training that diverged later.
    """
    on_gpu = device.type == "cuda"
    stage = stage or (FUSED if on_gpu else COMPILED if training.iterations >= LONG else TRACED)
    with seeded(seed):
        model = functional(MLP(1, training.hidden, 1), fast)
    if hasattr(config, "outer_decay"):
        config = replace(config, outer_decay=training.iterations)
    learner = build(model, squared, config, stage)
    state = to_device(learner.init(model.params), device)
    if not hasattr(config, "outer_lr"):  # nothing to train
        return learner, state
    together = TOGETHER if on_gpu else 1
    source = from_family(
        lambda count, draw: sine.draw(training.family, count, training.shot, training.query, draw),
        training.tasks,
        seed,
        learner.noise,
        device,
        block=NOISY if learner.noise.train and not on_gpu else TOGETHER,
        together=on_gpu,
    )
    steps = training.iterations // together
    plan = Plan(steps, training.tasks, every=max(steps // LOOKS, 10), patience=2 * LOOKS, together=together)
    watched = None if validate is None else partial(validate, learner)
    if folder is not None:  # a checkpoint counts steps, and these are of other lengths on other devices
        folder = folder.with_name(f"{folder.name}-{together}")
    try:
        return learner, train(learner, state, source, plan, watched, stage=stage, folder=folder, progress=bar).state
    except Diverged as stop:
        if watched is None or not math.isfinite(stop.memo.value):
            raise
        if folder is not None:
            conclude(folder)
        return learner, stop.memo.state
