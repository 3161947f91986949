"""What a practitioner does: one network as a classifier of all training classes, a new linear head for every task.

    theta = argmin sum over training pictures of -log softmax(head f(x))_y
    W_t = argmin mean over the support of -log softmax(W z)_y + strength / 2 |W|^2,    z = (f - c) / |f - c|, 1

or, with `head="centroid"`, the nearest class mean of z with a temperature. Strength and temperature are chosen on
tasks of the validation classes. A task's support and query pictures pass through the network together, query rows as
they come: both are normalised by the batch statistics of all of them. c is the mean of the support's features.

Tian, Wang, Krishnan, Tenenbaum and Isola, 2020, without distillation; Wang, Chao, Weinberger and van der Maaten,
2019, for the centroids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value

from warmstart.baselines.centroids import among_seen, means, nearness, nothing, observe, sharpness
from warmstart.core import Batch, InputError, Model, Params, Prediction, Task, functional, task_loss
from warmstart.core.trees import take, tree_map
from warmstart.engine.capture import capture
from warmstart.engine.loop import Report, run, silent
from warmstart.engine.meta import chunks
from warmstart.engine.noise import generator
from warmstart.engine.stage import TRACED, Stage, over_tasks
from warmstart.maths.classes import of_class
from warmstart.maths.outer import Delta, Info, State, outer
from warmstart.metrics.errors import log_loss
from warmstart.models.conv4 import Conv4
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import seeded
from warmstart.tasks.images import Images, as_batch, check_enough, draw_episodes, scaled
from warmstart.tasks.pool import pad_safe
from warmstart.tasks.warps import NUMBERS, Warp, check_warp, warped

AT_ONCE = 50  # tasks


@dataclass(frozen=True)
class Config:
    filters: int = 64
    strided: bool = True
    steps: int = 5000  # of training the network
    batch: int = 128  # pictures in each
    lr: float = 1e-3  # at first; falls to zero as a cosine
    weight_decay: float = 0.0
    every: int = 500  # steps between log lines and checkpoints
    head: str = "logistic"  # or centroid
    head_steps: int = 100  # of accelerated gradient descent
    strengths: tuple[float, ...] = (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3)  # to choose from
    tasks: int = 200  # of the validation classes, drawn as below
    way: int = 5  # classes
    shot: int = 5  # support pictures of each, at most
    least: int | None = None  # and at least; None: always `shot`
    query: int = 15


class Embedded(NamedTuple):
    """What a head is fitted to and asked, for a stack of tasks."""

    shown: Tensor  # [t, n, d]
    asked: Tensor  # [t, q, d]
    support: Batch


def fit(
    train: Images,
    validation: Images,
    classes: int,
    cfg: Config = Config(),
    seed: int = 0,
    *,
    warp: Warp | None = None,
    stage: Stage = TRACED,
    folder: Path | None = None,
    progress: Report = silent,
) -> Callable[[Task], Prediction]:
    """`classes` is the most that a task has, and how many probabilities a row gets. With `warp` the network is trained
    on warped pictures.

    Training in a folder that holds a checkpoint goes on from there.
    """
    if cfg.head not in ("logistic", "centroid"):
        raise InputError("a head logistic or centroid", repr(cfg.head), "use one of these names")
    check_enough(validation, cfg.way, cfg.shot + cfg.query)
    check_warp(warp)
    model, theta = train_network(train, cfg, seed, warp, stage, folder, progress)
    scores = centroid_scores if cfg.head == "centroid" else partial(logistic_scores, cfg.head_steps)

    def embed(task: Task) -> Embedded:
        clean = task._replace(support=pad_safe(task.support), query=pad_safe(task.query))
        shown, asked = over_tasks(partial(embedded, model))(theta, clean.support, clean.query)
        return Embedded(shown, asked, clean.support)

    def scored(rows: Embedded, strength: float, classes: int) -> Tensor:
        found: Tensor = torch.func.vmap(partial(scores, classes, strength))(*rows)
        return found

    def chosen() -> float:
        source = torch.Generator().manual_seed(seed)
        sizes = [len(range(cfg.tasks)[part]) for part in chunks(cfg.tasks, AT_ONCE)]
        drawn = [draw_episodes(validation, n, cfg.way, cfg.shot, cfg.query, source, cfg.least) for n in sizes]
        rows, query = [embed(task) for task in drawn], [task.query for task in drawn]
        if cfg.head == "centroid":
            return sharpness(torch.cat([scored(part, 1.0, cfg.way) for part in rows]), torch.cat([q.y for q in query]))

        def loss(strength: float) -> float:
            chances = [scored(part, strength, cfg.way).softmax(-1) for part in rows]
            return sum(float(log_loss(p, q).sum()) for p, q in zip(chances, query, strict=True))

        return min(cfg.strengths, key=loss)

    with torch.no_grad():
        strength = chosen()

    def predict(task: Task) -> Prediction:
        with torch.no_grad():
            parts = [scored(embed(take(task, part)), strength, classes) for part in chunks(len(task.key), AT_ONCE)]
            return Prediction(torch.cat(parts).softmax(-1))

    return predict


def train_network(
    train: Images, cfg: Config, seed: int, warp: Warp | None, stage: Stage, folder: Path | None, progress: Report
) -> tuple[Model, Params]:
    """The network and its parameters after `steps` minibatches."""
    with seeded(seed):
        model = functional(Conv4(train.shape, len(train.names), cfg.filters, cfg.strided))
    loss = task_loss(model, multiclass)
    out = outer(cfg.lr, cfg.steps, cfg.weight_decay)

    def advance(state: State, batch: Batch) -> tuple[State, Info]:
        grads, value = grad_and_value(loss)(state.theta, batch)
        return out.update(state, Delta(grads), torch.ones_like(value)), Info(value)

    update: Any = stage.run(advance)
    device = train.pixels.device
    state = out.init(tree_map(lambda leaf: leaf.to(device), model.params))
    if device.type == "cuda":
        update = capture(update, state)
    source = minibatches(train, cfg.batch, seed, warp)
    state, _ = run(update, state, source, cfg.steps, folder=folder, every=cfg.every, progress=progress)
    return model, state.theta


def minibatches(train: Images, size: int, seed: int, warp: Warp | None = None) -> Callable[[int], Batch]:
    """Step -> pictures: all of them in a new order, again and again; what does not fill a batch waits for another."""
    device, count = train.pixels.device, len(train.pixels)
    size = min(size, count)
    label = torch.arange(len(train.names), device=device).repeat_interleave(train.lengths)
    each = count // size
    kept: dict[int, Tensor] = {}  # the order of the round that is under way

    def source(step: int) -> Batch:
        lap, place = divmod(step, each)
        if lap not in kept:
            kept.clear()
            order = torch.Generator().manual_seed(seed * 1_000_003 + lap)
            kept[lap] = torch.randperm(count, generator=order).to(device)
        rows = kept[lap][place * size : (place + 1) * size]
        pixels = scaled(train, rows)
        if warp is not None:
            drawn = torch.rand(size, NUMBERS, generator=generator(seed, step, device=device), device=device)
            pixels = warped(pixels, warp, drawn)
        return as_batch(pixels, label[rows])

    return source


def embedded(model: Model, theta: Params, support: Batch, query: Batch) -> tuple[Tensor, Tensor]:
    """Features of one task's support and query rows, less the support's mean, of length one."""
    features = model.features(theta, tree_map(lambda s, q: torch.cat([s, q]), support.x, query.x))
    shown = features[: len(support.y)]
    centre = support.mask @ shown / support.mask.sum().clamp(min=1.0)
    unit = F.normalize(features - centre, dim=-1)
    return unit[: len(support.y)], unit[len(support.y) :]


def centroid_scores(classes: int, strength: float, shown: Tensor, asked: Tensor, support: Batch) -> Tensor:
    """[q, classes] of one task: nearness to the class means, times `strength`."""
    sums = observe(nothing(classes, shown), shown, support)
    return strength * among_seen(nearness(asked, means(sums)), sums.weight > 0)


def logistic_scores(steps: int, classes: int, strength: float, shown: Tensor, asked: Tensor, support: Batch) -> Tensor:
    """[q, classes] of one task: multinomial logistic regression by Nesterov's accelerated gradient descent.

    A row is of length one with a constant 1, and the curvature of a row's loss in its scores is at most 1 / 2, so
    that of the mean is at most 1 + strength: the step is its inverse. It is at least `strength`: so the momentum.
    """
    x, at = (torch.cat([rows, torch.ones_like(rows[:, :1])], -1) for rows in (shown, asked))
    weight = support.w * support.mask
    share = (weight / torch.where(weight.sum() > 0, weight.sum(), 1.0)).unsqueeze(-1)
    label = of_class(support.y, classes).to(x.dtype)
    seen = (label * share).sum(0) > 0
    largest = 1 + strength
    momentum = (largest**0.5 - strength**0.5) / (largest**0.5 + strength**0.5)
    head = ahead = x.new_zeros(x.shape[-1], classes)
    for _ in range(steps):
        wrong = among_seen(x @ ahead, seen).softmax(-1) - label
        new = ahead - (x.mT @ (share * wrong) + strength * ahead) / largest
        ahead = new + momentum * (new - head)
        head = new
    return among_seen(at @ head, seen)
