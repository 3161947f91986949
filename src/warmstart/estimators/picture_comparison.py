"""A model of pictures beside baselines on tasks of classes that no training saw, every picture judged alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.baselines import linear_head, nearest_centroid
from warmstart.core import Batch, Task
from warmstart.core.trees import concat, take, to_device, tree_map
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator
from warmstart.engine.stage import PLAIN
from warmstart.estimators.choosing import choose
from warmstart.estimators.picture_fitting import PictureProblem, fingerprint, problem_for, runner
from warmstart.estimators.picture_judging import predict_alone
from warmstart.estimators.picture_learner import PictureLearner
from warmstart.estimators.picture_methods import assemble, find
from warmstart.estimators.powers import sharpen
from warmstart.metrics.calibration import expected_calibration_error, reliability
from warmstart.metrics.errors import accuracy, log_loss
from warmstart.models.conv4 import fastest_stage
from warmstart.report import Column, Results, Row, Table, make_row, table
from warmstart.tasks.class_split import take_classes
from warmstart.tasks.images import Images, sampler

BASELINES = ("nearest_centroid", "linear_head", "protonet")
ACCURACY, LOSS, ECE = "accuracy", "log loss", "ECE"
SHOTS = (1, 2, 5, 10)  # pictures shown of a class, as far as there are so many
PART = 10  # tasks drawn and judged at once
Teller: TypeAlias = Callable[[Task], Tensor]  # probabilities [t, n, way], each picture seen alone with the support


class Found(NamedTuple):
    """What every method said of the same pictures, on the CPU."""

    chances: dict[tuple[str, int], Tensor]  # method and shots -> [t, n, way]
    query: Batch  # [t, n] without its pictures
    example: Task  # the first of the tasks with its pictures, at the model's own number of shots
    names: tuple[str, ...]  # of its classes
    way: int
    shot: int  # of the model
    unseen: int  # classes that tasks were drawn from

    @property
    def methods(self) -> list[str]:
        """The model first."""
        return list(dict.fromkeys(name for name, _ in self.chances))


def judge(
    model: PictureLearner,
    pictures: Images | str | Path,
    baselines: Sequence[str] = ("nearest_centroid",),
    several: bool = False,
    *,
    tasks: int = 100,
    trials: int = 1,
    folder: Path | None = None,
    progress: Callable[[str], Report] | None = None,
) -> Found:
    """The model and baselines on tasks of the unseen classes of the pictures given to fit.

    Tasks have `way` classes, or all unseen ones where they are fewer. They show the model's number of pictures of
    each, or `several` numbers; the pictures that are judged are the same.
    """
    trained, device, query = model.fitted, choose_device(model.device), model.plan.query
    images, _ = model.read(pictures)
    unseen = take_classes(images, trained.split.test).to(device)
    way, room = min(trained.way, len(unseen.names)), int(unseen.lengths.min()) - query
    possible = sorted({trained.shot, *(shot for shot in SHOTS if shot <= room)})
    sizes = possible if several else [trained.shot]
    draw = sampler(unseen, way, possible[-1], query)
    problem = problem_for(images, trained.split, trained.way, trained.shot, trained.rotations, trained.warp, device)
    learner, state = trained.learner(way)
    tellers: dict[str, Teller] = {
        trained.name: partial(tell, learner, to_device(state, device), way, trained.sharpness),
        **{
            name: fit_baseline(name, model, problem, way, trials, folder, progress)
            for name in baselines
            if name != trained.name
        },
    }
    report = silent if progress is None else progress("judging")
    parts: list[tuple[dict[tuple[str, int], Tensor], Batch]] = []
    example: Task | None = None
    for first in range(0, tasks, PART):
        drawn = draw(min(PART, tasks - first), generator(model.seed, first, 1))
        shown = {shot: first_shots(drawn, way, shot) for shot in sizes}
        said = {(name, shot): teller(task) for name, teller in tellers.items() for shot, task in shown.items()}
        parts.append(to_device((said, drawn.query._replace(x=())), "cpu"))
        example = take(shown[trained.shot], 0) if example is None else example
        report(min(first + PART, tasks), tasks, "")
    chances, judged = concat(parts)
    assert example is not None
    names = class_names(example.support, unseen)
    return Found(chances, judged, to_device(example, "cpu"), names, way, trained.shot, len(unseen.names))


def tell(learner: Any, state: Any, way: int, sharpness: float, tasks: Task) -> Tensor:
    return sharpen(predict_alone(learner, state, tasks, way), sharpness)


def fit_baseline(
    name: str,
    model: PictureLearner,
    problem: PictureProblem,
    way: int,
    trials: int,
    folder: Path | None,
    progress: Callable[[str], Report] | None,
) -> Teller:
    """A baseline on the classes that the model was trained on, for tasks like those that it was trained for."""
    plan, seed, design, device = model.plan, model.seed, problem.design, problem.train.pixels.device
    bar = progress or (lambda label: silent)
    place = None if folder is None else folder / fingerprint(problem, plan, seed)
    drawn: dict[str, Any] = {"shot": problem.shot, "query": plan.query}
    if name == "nearest_centroid":
        near = nearest_centroid.fit(problem.train, way, nearest_centroid.Config(way=way, **drawn), seed)
        return lambda task: near(task).mean
    if name == "linear_head":
        pictures = plan.steps * plan.tasks * problem.way * (problem.shot + plan.query)  # in the model's training
        steps = max(1, pictures // linear_head.Config.batch)
        most = min(way, len(problem.validation.names))
        cfg = linear_head.Config(*design, steps=steps, every=max(1, steps // 20), way=most, **drawn)
        head = linear_head.fit(
            problem.train,
            problem.validation,
            way,
            cfg,
            seed,
            warp=problem.warp,
            stage=fastest_stage(device, design.strided, steps, linear_head.Config.batch),
            folder=None if place is None else place / name,
            progress=bar(f"training {name}"),
        )
        return lambda task: head(each_alone(task)).mean.view(*task.query.y.shape, way)
    run, methods = runner(problem, plan, seed), {name: find(name, design)}
    found = choose(methods, {}, run, trials, seed=seed, folder=place, progress=bar)
    learner, state = assemble(name, found.config, problem.train.shape, design, problem.way, PLAIN, seed, way)
    state = to_device(state._replace(theta=found.found.theta), device)
    return partial(tell, learner, state, way, found.found.sharpness)


def first_shots(tasks: Task, way: int, shot: int) -> Task:
    """The same tasks when a class shows only its first pictures."""
    rows = torch.arange(tasks.support.y.shape[1], device=tasks.key.device).view(way, -1)[:, :shot].flatten()
    return tasks._replace(support=tree_map(lambda leaf: leaf[:, rows], tasks.support))


def each_alone(tasks: Task) -> Task:
    """A task of its own for every query picture."""
    count = tasks.query.y.shape[1]
    alone = tree_map(lambda leaf: leaf.flatten(0, 1).unsqueeze(1), tasks.query)
    support, about, key = tree_map(
        lambda leaf: leaf.repeat_interleave(count, 0), (tasks.support, tasks.descriptor, tasks.key)
    )
    return Task(support, alone, about, key)


def class_names(support: Batch, images: Images) -> tuple[str, ...]:
    """Of a task's classes, by a picture of each: no two pictures are the same."""
    shown = (255 * support.x["pixels"]).round().to(torch.uint8)
    first = [shown[support.y == c][0] for c in range(int(support.y.max()) + 1)]
    rows = [int((images.pixels == picture).flatten(1).all(1).nonzero()[0]) for picture in first]
    return tuple(images.names[int((images.offsets[1:] <= row).sum())] for row in rows)


def rows_of(found: Found, seed: int) -> list[Row]:
    """Accuracy in percent and log loss over tasks, calibration over all pictures."""
    rows = []
    for (name, shot), chances in found.chances.items():
        where = {"way": found.way, "shot": shot}
        error = expected_calibration_error(reliability(chances, found.query))
        rows += [
            make_row(name, where, ACCURACY, {seed: (100 * accuracy(chances, found.query)).tolist()}, "%"),
            make_row(name, where, LOSS, {seed: log_loss(chances, found.query).tolist()}),
            make_row(name, where, ECE, {seed: error}),
        ]
    return rows


def main_table(found: Found, results: Results) -> Table:
    where: dict[str, Any] = {"way": found.way, "shot": found.shot}
    columns = [
        Column("accuracy (%)", ACCURACY, where, 1, "higher"),
        Column("log loss", LOSS, where, 3, "lower"),
        Column("calibration error", ECE, where, 3, "lower"),
    ]
    count = len(found.query.y)
    caption = (
        f"{count} tasks of {found.unseen} unseen classes, {found.way}-way {found.shot}-shot, each judged alone; "
        "intervals are over tasks, not over other classes"
    )
    return table(results, columns=columns, baselines=found.methods[1:], caption=caption)
