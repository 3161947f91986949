"""What the few-shot picture studies share: learners and baselines on episodes of unseen classes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.baselines import linear_head, nearest_centroid, protonet
from warmstart.baselines.centroids import sharpness
from warmstart.core import Learner, Prediction, Task, check_names, functional
from warmstart.core.trees import concat, flatten, leaves, take, to_device, tree_map, unflatten
from warmstart.engine.device import choose_device, fast_products
from warmstart.engine.loop import Diverged, Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.engine.stage import Stage
from warmstart.estimators.powers import log_of, sharpen
from warmstart.learners import scratch
from warmstart.metrics.errors import accuracy, log_loss
from warmstart.models.conv4 import Conv4, fastest_stage
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import seeded
from warmstart.report import called, make_results
from warmstart.report.page import Outcome
from warmstart.studies.few_shot_rows import BASELINES, Entry, Setting, plain_name
from warmstart.studies.few_shot_tables import Judged, Said, rows_of, sections, verdict
from warmstart.tasks.images import Images, sampler
from warmstart.training.sources import from_family
from warmstart.training.train import Plan, train

SPLIT = "split.json"  # the classes of each part, beside the results; `tasks.class_split.load_split` reads it
TEST, VALIDATION, CHOICE = 30_000, 40_000, 50_000  # seeds of the episodes
CHUNK = {"cpu": 1, "cuda": 25}  # test tasks at once: on a CPU a stack gains nothing, on a GPU more fill the memory
SINGLE = 10_000  # pictures at once where every query picture is seen alone, each with the support
SEEN_ALONE = 75  # query pictures of a task that are, spread evenly: 20-way there are 300, and each needs a support
MORE = 2  # times the validation tasks, to choose between the best state and the last
BLOCK = 4  # meta-batches drawn at a time
Predictor: TypeAlias = Callable[[Task], Prediction]


class Parts(NamedTuple):
    """Pictures of classes to train on, to stop by and to judge on."""

    train: Images
    validation: Images
    test: Images


class Size(NamedTuple):
    """How much is done."""

    methods: tuple[str, ...]
    settings: tuple[Setting, ...]
    plan: Plan
    tests: int  # test tasks
    looks: int  # validation tasks
    query: int  # pictures of a class judged in a task
    tasks: Mapping[int, int]  # in a meta-batch, by way
    asked: Mapping[int, int]  # pictures of a class that a training task is judged by, by way
    classifier: int  # steps that train the network of the linear head
    many: int = 0  # hundreds of test tasks drawn for calibration alone
    calibrated: tuple[str, ...] = ()  # methods that are judged on these too; warped ones by their plain name


class Network(NamedTuple):
    filters: int
    strided: bool


class Cell(NamedTuple):
    """Where a row is run."""

    learners: Mapping[str, Entry]
    parts: Parts
    setting: Setting
    size: Size
    network: Network
    seed: int
    device: torch.device


def run_study(
    study: str,
    preset: str,
    size: Size,
    pictures: Parts,
    network: Network,
    learners: Mapping[str, Entry],
    published: Mapping[tuple[str, int, int], float],
    seeds: Sequence[int],
    only: Sequence[str],
    device: str,
    progress: Callable[[str], Report] | None,
    folder: Path | None,
) -> Outcome:
    """Train every method on the training classes, stop on the validation classes, judge on the test classes."""
    where = choose_device(device)
    bar = progress or (lambda label: silent)
    known = [*BASELINES, *(name for name in learners if name not in BASELINES)]
    may = [*known, *(setting.short for setting in size.settings)]
    check_names(only, may, "methods or settings")
    names = [name for name in only if name in known] or list(size.methods)
    settings = [setting for setting in size.settings if setting.short in only] or list(size.settings)
    parts = Parts(*(part.to(where) for part in pictures))
    found: dict[tuple[str, Setting], dict[int, Judged]] = {}
    for setting, name, seed in itertools.product(settings, names, seeds):
        draw, draw_apart = (sampler(parts.test, *setting, size.query, apart=apart) for apart in (False, True))
        test = draw(size.tests, generator(TEST, setting.way))
        report = bar(f"{name}, {setting.label}, seed {seed}")
        cell = Cell(learners, parts, setting, size, network, seed, where)
        kept = None if folder is None else folder / kept_name(name, cell)
        try:
            with fast_products(where):
                predict, alone = fit(name, cell, report, kept)
                factor = settle(predict, validation(cell, size.query))
                judged = judge(predict, alone, test, factor)
                if parts.test.turns > 1:
                    apart = draw_apart(size.tests, generator(TEST, setting.way))
                    judged = judged._replace(apart=right(predict, apart))
                if plain_name(name) in size.calibrated:
                    each = (draw(100, generator(TEST, setting.way, place)) for place in range(size.many))
                    judged = judged._replace(many=concat([say(predict, tasks, factor) for tasks in each]))
        except Diverged:
            judged = diverged(test, parts.test.turns > 1)
        found.setdefault((name, setting), {})[seed] = judged
    rows = [row for key, by_seed in found.items() for row in rows_of(*key, by_seed, published)]
    results = make_results(study, preset, str(where), called(), rows)
    return Outcome(results, sections(results, settings, found), verdict(rows, settings[0]))


def kept_name(name: str, cell: Cell) -> str:
    """Of the checkpoints of a row: other settings have another name, and start afresh."""
    learners, _, setting, size, network, seed, _ = cell
    way, config = setting.way, learners[name].config(setting) if name in learners else size.classifier
    told: list[Any] = [size.plan, size.looks, size.tasks[way], size.asked[way], network, config]
    if name in learners:
        entry = learners[name]
        after = entry.after and kept_name(entry.after, cell)
        told += [part for part, usual in ((entry.warp, None), (after, ""), (entry.share, 1.0)) if part != usual]
    return f"{name}-{setting.short}-{seed}-{blake2b(repr(tuple(told)).encode(), digest_size=4).hexdigest()}"


def fit(name: str, cell: Cell, report: Report, folder: Path | None) -> tuple[Predictor, Predictor]:
    """A trained method as it predicts a task's query pictures together, and each alone."""
    _, parts, (way, shot), size, network, seed, device = cell
    stage = fastest_stage(device, network.strided, size.plan.steps, size.tasks[way] * way * (shot + size.asked[way]))
    if name == "nearest_centroid":
        drawn = nearest_centroid.Config(way=way, shot=shot, query=size.query)
        predict = nearest_centroid.fit(parts.train, way, drawn, seed)
        return predict, predict
    if name == "linear_head":
        cfg = linear_head.Config(
            network.filters,
            network.strided,
            steps=size.classifier,
            every=max(size.classifier // 20, 1),
            way=way,
            shot=shot,
            query=size.query,
        )
        predict = linear_head.fit(
            parts.train, parts.validation, way, cfg, seed, stage=stage, folder=folder, progress=report
        )
        return predict, one_by_one(predict)
    learner, state = trained(name, cell, stage, report, folder)
    chunk = tasks_at_once(learner, device)

    def together(task: Task) -> Prediction:
        return predict_stack(learner, state, task, chunk=chunk)

    def alone(task: Task) -> Prediction:
        each = task.query.y.shape[1] * (task.support.y.shape[1] + 1) * draws_of(learner)
        return predict_stack(learner, state, task, chunk=chunk, alone=True, at_once=max(1, SINGLE // each))

    return together, alone


def trained(name: str, cell: Cell, stage: Stage, report: Report, folder: Path | None) -> tuple[Learner, Any]:
    """A learner and its state after training: from a fresh network, or from that of the row it comes after."""
    learners, parts, setting, size, network, seed, device = cell
    entry, way = learners[name], setting.way
    plan = portion(size.plan, entry.share)
    config = entry.config(setting)
    if hasattr(config, "outer_decay"):
        config = replace(config, outer_decay=plan.steps)
    with seeded(seed):
        net = Conv4(parts.train.shape, way, network.filters, network.strided).to(device)
        model = functional(net, entry.fast)
    params = model.params
    if entry.after:
        beside = None if folder is None else folder.parent / kept_name(entry.after, cell)
        first = trained(entry.after, cell, stage, report, beside)
        params = first[1].theta
    judged_by: Any = way if entry.build is protonet.build else multiclass
    learner = entry.build(model, judged_by, config, stage)
    state = to_device(learner.init(params), device)
    if entry.build is scratch.build:
        return learner, state

    def wrong(state: Any, tasks: Task) -> float:
        chunk = tasks_at_once(learner, device)
        return 1 - float(right(lambda some: predict_stack(learner, state, some, chunk=chunk), tasks).mean())

    draw = sampler(parts.train, way, setting.shot, size.asked[way], warp=entry.warp)
    source = from_family(draw, size.tasks[way], seed, learner.noise, device, block=BLOCK)
    look = partial(wrong, tasks=validation(cell))
    found = train(learner, state, source, plan, look, stage=stage, folder=folder, progress=report)
    if found.step == plan.steps:
        return learner, found.last
    # the luckiest of many looks is not the best state: it has to beat the last one on more tasks
    others = validation(cell, size.query, MORE, CHOICE)
    return learner, min(found.last, found.state, key=partial(wrong, tasks=others))


def draws_of(learner: Learner) -> int:
    """Networks that a prediction needs of a task."""
    return next(iter(learner.noise.predict), 1)


def tasks_at_once(learner: Learner, device: torch.device) -> int:
    """Tasks whose predictions are made together."""
    return max(1, CHUNK[device.type] // draws_of(learner))


def portion(plan: Plan, share: float) -> Plan:
    """So many times the updates, with as many looks at the validation tasks."""
    return replace(plan, steps=max(1, round(share * plan.steps)), every=max(1, round(share * plan.every)))


def validation(cell: Cell, query: int = 5, times: int = 1, seed: int = VALIDATION) -> Task:
    """Tasks to stop by; to calibrate on, with as many query pictures as are judged; `times` as many by another seed."""
    draw = sampler(cell.parts.validation, *cell.setting, query)
    return draw(times * cell.size.looks, generator(seed, cell.seed))


def settle(predict: Predictor, validation: Task) -> float:
    """The power of all probabilities that is best for these tasks."""
    return sharpness(log_of(predict(validation).mean), validation.query.y)


def diverged(test: Task, apart: bool = False) -> Judged:
    """Training that ended in numbers that are not finite is a result: its cells say so, also of tasks `apart`."""
    nothing = torch.full((len(test.key),), float("nan"))
    query = to_device(test.query._replace(x=()), "cpu")
    none = torch.full((*query.y.shape, int(query.y.max()) + 1), float("nan"))
    return Judged(nothing, nothing, nothing, Said(none, none, query), nothing if apart else nothing[:0])


def one_by_one(predict: Predictor) -> Predictor:
    """As if every query picture of a task came alone."""

    def call(task: Task) -> Prediction:
        rows = zip(*(leaf.split(1, 1) for leaf in leaves(task.query)), strict=True)
        singles = [task._replace(query=unflatten(list(row), flatten(task.query)[1])) for row in rows]
        return Prediction(torch.cat([predict(single).mean for single in singles], 1))

    return call


def judge(predict: Predictor, alone: Predictor, test: Task, factor: float = 1.0) -> Judged:
    """Every test task."""
    found = []
    for task in some_at_a_time(test):
        every = max(1, task.query.y.shape[1] // SEEN_ALONE)
        some = task._replace(query=tree_map(lambda leaf, every=every: leaf[:, ::every], task.query))
        said, single = say(predict, task, factor), alone(some).mean.cpu()
        right, loss = accuracy(said.probability, said.query), log_loss(said.probability, said.query)
        found.append(Judged(right, accuracy(single, to_device(some.query, "cpu")), loss, said))
    judged: Judged = concat(found)
    return judged


def say(predict: Predictor, tasks: Task, factor: float) -> Said:
    """Of these tasks, all probabilities to a power too."""
    said = predict(tasks).mean
    found: Said = to_device(Said(said, sharpen(said, factor), tasks.query._replace(x=())), "cpu")
    return found


def right(predict: Predictor, tasks: Task) -> Tensor:
    """The share of query pictures of each task that are put in the right class, [t]."""
    return torch.cat([accuracy(predict(task).mean, task.query).cpu() for task in some_at_a_time(tasks)])


def some_at_a_time(tasks: Task, chunk: int = 100) -> Iterator[Task]:
    """So that memory stays bounded."""
    return (take(tasks, slice(first, first + chunk)) for first in range(0, len(tasks.key), chunk))
