"""Fitting methods on pictures: which classes to train on, and one configuration trained on them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from warmstart.core import InputError
from warmstart.core.trees import Tree, to_device
from warmstart.engine.device import fast_products
from warmstart.engine.loop import Report
from warmstart.engine.ranks import join_ranks
from warmstart.engine.stage import TRACED
from warmstart.estimators.choosing import Record, Run, replay
from warmstart.estimators.picture_judging import validator
from warmstart.estimators.picture_methods import ANY_CLASSES, Design, assemble, design_for
from warmstart.models.conv4 import fastest_stage
from warmstart.tasks.class_split import split_classes, take_classes
from warmstart.tasks.images import Images, sampler, with_rotations
from warmstart.tasks.split import Split
from warmstart.tasks.warps import SLIGHT, Warp
from warmstart.training.sources import divided, from_family
from warmstart.training.train import Plan, train

VALIDATION_TASKS = 40
MORE = 2  # times as many, to choose between the best state and the last, and to say how well it does
VALIDATION_QUERY = 2  # pictures judged of a class
HELD = 64 * 2**20  # bytes of episodes drawn ahead


class PictureProblem(NamedTuple):
    """What is to be learned: tasks of `way` classes that show `shot` pictures of each."""

    train: Images
    validation: Images
    way: int
    shot: int
    warp: Warp | None = None  # of the pictures that are trained on

    @property
    def design(self) -> Design:
        return design_for(self.train.shape)


class FittedPictures(NamedTuple):
    """A trained configuration."""

    theta: Tree
    value: float  # log loss on the validation classes
    sharpness: float  # of the probabilities, which made that loss least


def split_for(images: Images, way: int, seed: int) -> Split:
    """Classes to train on, to stop by and to judge on: 70, 10 and 20 %, but a part has `way` classes where there
    are enough for three such parts, and at least two to stop by and two to judge on."""
    count = len(images.names)
    if way < 2:
        raise InputError("at least two ways", f"{way}", "raise the way")
    if count < way + 4:
        raise InputError(
            f"at least {way + 4} classes: {way} to train on, two to stop by and two to judge on",
            f"{count}",
            "lower the way, or add classes",
        )
    least = min(way, (count - way) // 2)
    validation, test = max(least, round(0.1 * count)), max(least, round(0.2 * count))
    return split_classes(images, (count - validation - test, validation, test), seed)


def problem_for(
    images: Images, split: Split, way: int, shot: int, rotations: bool, warp: bool, device: torch.device
) -> PictureProblem:
    """The training and validation classes on the device. Only classes to train on are turned and warped: what a model
    is chosen by stays as it came."""
    training, validation = (take_classes(images, part).to(device) for part in split[:2])
    turned = with_rotations(training) if rotations else training
    return PictureProblem(turned, validation, way, shot, SLIGHT if warp else None)


def fit_method(
    name: str,
    cfg: Any,
    problem: PictureProblem,
    plan: Plan,
    seed: int,
    folder: Path | None,
    progress: Report,
    record: Record | None = None,
) -> FittedPictures:
    """Train one configuration with early stopping on tasks of the validation classes, and judge it on others."""
    images, validation, way, shot, warp = problem
    design, device = problem.design, images.pixels.device
    if hasattr(cfg, "outer_decay") and cfg.outer_decay == 0:
        cfg = dataclasses.replace(cfg, outer_decay=plan.steps)
    pictures = plan.tasks * way * (shot + plan.query)
    stage = fastest_stage(device, design.strided, plan.steps, pictures)
    if name in ANY_CLASSES:  # whose update is one program, of the whole stack or, on a CPU, of one task
        stage, plan = TRACED, dataclasses.replace(plan, chunk=1 if device.type == "cpu" else plan.chunk)
    learner, state = assemble(name, cfg, images.shape, design, way, stage, seed)
    judged = min(way, len(validation.names))
    asked = min(VALIDATION_QUERY, plan.query)
    # for as many classes as there are to judge
    seen, _ = assemble(name, cfg, images.shape, design, way, stage, seed, judged)
    look = validator(seen, validation, judged, shot, asked, VALIDATION_TASKS, seed)
    others = validator(seen, validation, judged, shot, asked, MORE * VALIDATION_TASKS, seed + 1)
    rank, world = join_ranks()
    if folder is not None:
        folder = folder / f"rank{rank}" if world > 1 else folder
        if record is not None:
            replay(folder, record)
    block = blocks(plan, way * (shot + plan.query) * images.pixels[0].numel())
    draw = sampler(images, way, shot, plan.query, warp=warp)
    with fast_products(device):
        found = train(
            learner,
            to_device(state, device),
            divided(from_family(draw, plan.tasks, seed, learner.noise, device, block), rank, world),
            plan,
            lambda state: look(state).value,
            stage=stage,
            folder=folder,
            progress=progress,
            record=record,
        )
    # the luckiest of many looks is not the best state: it has to beat the last one on other tasks
    states = (found.last,) if found.step == plan.steps else (found.last, found.state)
    choice, theta = min(((others(state), state.theta) for state in states), key=lambda one: one[0].value)
    return FittedPictures(theta, *choice)


def runner(problem: PictureProblem, plan: Plan, seed: int) -> Run:
    """What `choose` calls to train a configuration on these pictures."""

    def run(name: str, cfg: Any, folder: Path | None, progress: Report, record: Record | None = None) -> FittedPictures:
        return fit_method(name, cfg, problem, plan, seed, folder, progress, record)

    return run


def blocks(plan: Plan, numbers: int) -> int:
    """Updates whose episodes are drawn at once: one draw is a handful of operations, but they must fit."""
    return int(max(1, min(100, HELD // (4 * plan.tasks * numbers))))


def fingerprint(problem: PictureProblem, plan: Plan, seed: int) -> str:
    """A name that changes with anything but the method that changes a run."""
    words: list[Any] = [dataclasses.asdict(plan), problem.way, problem.shot, problem.warp, seed]
    words += [(part.names, part.offsets.tolist()) for part in problem[:2]]
    digest = hashlib.blake2b(json.dumps(words).encode(), digest_size=6)
    for part in problem[:2]:
        digest.update(part.pixels.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
