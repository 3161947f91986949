"""The small zone: whether any point amid the adapted parameters of tasks is a good start for a new one.

Figure C.3 of Zou and Lu (2020): MAML's learned start is replaced by random convex combinations of the
parameters that test tasks adapted to. With few corners a point lies far out, with many near their mean. Starts
as far from the learned one in a random direction say whether it is the zone or the distance that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from warmstart.core import Learner, Task, adapt, check_names, functional
from warmstart.core.trees import pack, take, tree_map, unpack
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.learners import maml
from warmstart.metrics.errors import accuracy, squared_error
from warmstart.models.conv4 import Conv4, fastest_stage
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import seeded
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.figures import curves, error_curves
from warmstart.report.page import Outcome, Section
from warmstart.studies.sines import Training, fit
from warmstart.tasks import sine
from warmstart.tasks.class_split import take_classes
from warmstart.tasks.data_folder import given
from warmstart.tasks.images import sampler, with_rotations
from warmstart.tasks.omniglot import read_omniglot, split_omniglot
from warmstart.training.sources import from_family
from warmstart.training.train import Plan, train

LEARNED, STRAY = "learned start", "as far in a random direction"
CORNERS = {1: "one adapted", 2: "amid two adapted", 100: "amid 100 adapted"}
STEPS, ADAPTED = (0, 1, 5, 10), 10  # steps judged, and steps to the corners
TEST, CORNER = 20_000, 25_000  # seeds of the tasks judged and of those adapted to
SINES, OMNIGLOT = "sines", "omniglot"
METRICS = {SINES: "MSE", OMNIGLOT: "accuracy"}
WAY, SHOT, QUERY = 5, 1, 5


class Preset(NamedTuple):
    starts: int
    tests: int
    iterations: int
    tasks: int
    pictures: int  # iterations on Omniglot
    filters: int


PRESETS = {"quick": Preset(10, 50, 300, 10, 30, 16), "full": Preset(100, 100, 70_000, 25, 20_000, 64)}


class Trained(NamedTuple):
    learner: Learner
    state: Any
    corners: Task  # tasks whose adapted parameters span the zone
    test: Task
    score: Callable[..., Tensor]


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """Sines, and Omniglot where its folder is given. With a folder an interrupted run goes on where it stopped."""
    size, where = PRESETS[preset], choose_device(device)
    check_names(only, METRICS, "tasks")
    if OMNIGLOT in only:
        data = given(data, "Omniglot")
    bar = progress or (lambda label: silent)
    rows: list[Row] = []
    for kind in list(only) or [SINES, *([OMNIGLOT] if data is not None else [])]:
        found: dict[tuple[str, int], dict[int, list[float]]] = {}
        for seed in seeds:
            report = bar(f"{kind}, seed {seed}")
            if kind == SINES:
                kept = None if folder is None else folder / f"{size.iterations}-{kind}-{seed}"
                made = on_sines(size, seed, where, report, kept)
            else:
                kept = None if folder is None else folder / f"{size.pictures}-{kind}-{seed}"
                made = on_omniglot(size, Path(str(data)), seed, where, report, kept)
            for key, scores in judge(made, size.starts, seed).items():
                found.setdefault(key, {})[seed] = scores
        for (name, steps), by_seed in found.items():
            unit = "%" if kind == OMNIGLOT else ""
            rows.append(make_row(name, {"tasks": kind, "steps": steps}, METRICS[kind], by_seed, unit))
    results = make_results("small_zone", preset, str(where), called(), rows)
    return Outcome(results, sections(results), verdict(rows))


def on_sines(size: Preset, seed: int, device: torch.device, bar: Report, folder: Path | None) -> Trained:
    training = Training(sine.DEFAULT, 10, size.iterations, size.tasks)
    learner, state = fit(maml.build, maml.Config(inner_lr=0.01), training, seed, device, bar, folder)
    corners, test = (sine.draw(sine.DEFAULT, size.tests, 10, 50, generator(s), device) for s in (CORNER, TEST))
    return Trained(learner, state, corners, test, squared_error)


def on_omniglot(size: Preset, data: Path, seed: int, device: torch.device, bar: Report, folder: Path | None) -> Trained:
    images = read_omniglot(data)
    split = split_omniglot(images)
    shown, judged = (with_rotations(take_classes(images, names)).to(device) for names in (split[0], split[2]))
    with seeded(seed):
        model = functional(Conv4((1, 28, 28), WAY, size.filters, strided=True).to(device))
    shown_and_judged = size.tasks * WAY * (SHOT + QUERY)
    stage = fastest_stage(device, strided=True, updates=size.pictures, pictures=shown_and_judged)
    learner = maml.build(model, multiclass, maml.Config(inner_lr=0.4, outer_decay=size.pictures), stage)
    draw = sampler(shown, WAY, SHOT, QUERY)
    source = from_family(draw, size.tasks, seed, learner.noise, device, block=4)
    plan = Plan(steps=size.pictures, tasks=size.tasks, every=max(size.pictures // 70, 10))
    state = train(learner, learner.init(model.params), source, plan, stage=stage, folder=folder, progress=bar).state
    corners, test = (sampler(judged, WAY, SHOT, QUERY)(size.tests, generator(s)) for s in (CORNER, TEST))
    return Trained(learner, state, corners, test, lambda said, query: 100 * accuracy(said, query))


def judge(made: Trained, starts: int, seed: int) -> dict[tuple[str, int], list[float]]:
    """The mean score over test tasks of every start, by kind of start and steps."""
    theta, source = pack(made.state.theta), generator(seed, TEST)
    corners = adapted_vectors(made)
    kinds: dict[str, Tensor] = {LEARNED: theta[None]}
    for count, label in CORNERS.items():
        kinds[label] = combinations(corners, min(count, len(corners)), starts, source)
    far = (kinds[CORNERS[2]] - theta).norm(dim=1, keepdim=True)
    way = torch.randn(starts, len(theta), generator=source).to(theta)
    kinds[STRAY] = theta + far * way / way.norm(dim=1, keepdim=True)
    found: dict[tuple[str, int], list[float]] = {}
    for label, vectors in kinds.items():
        for steps in STEPS:
            found[label, steps] = [
                float(score_from(made, unpack(vector, made.state.theta), steps)) for vector in vectors
            ]
    return found


def adapted_vectors(made: Trained) -> Tensor:
    """Where tasks take the learned start, [tasks, parameters]."""

    def one(task: Task) -> Tensor:
        return pack(adapt(made.learner, made.state, task.support, task.descriptor, (), ADAPTED))

    parts = range(0, len(made.corners.key), 10)
    return torch.cat([vmap(one)(take(made.corners, slice(first, first + 10))) for first in parts])


def combinations(corners: Tensor, count: int, starts: int, source: torch.Generator) -> Tensor:
    """Uniform over the simplex of `count` random corners, [starts, parameters]."""
    which = torch.rand(starts, len(corners), generator=source).argsort(1)[:, :count]
    weights = -torch.rand(starts, count, generator=source).log()
    share = (weights / weights.sum(1, keepdim=True)).to(corners)
    return torch.einsum("sc,scp->sp", share, corners[which.to(corners.device)])


def score_from(made: Trained, start: Any, steps: int) -> Tensor:
    state = made.state._replace(theta=tree_map(torch.clone, start))
    said = predict_stack(made.learner, state, made.test, steps=steps, chunk=50)
    return made.score(said.mean, made.test.query).mean()


def sections(results: Results) -> list[Section]:
    found = []
    for kind in dict.fromkeys(str(row.setting["tasks"]) for row in results.rows):
        metric, better = METRICS[kind], "lower" if kind == SINES else "higher"
        columns = [Column(f"{k} steps", metric, {"tasks": kind, "steps": k}, 3, better) for k in STEPS]
        rows = [row for row in results.rows if row.setting["tasks"] == kind]
        picture = error_curves(curves(rows, metric, "steps"), x_label="gradient steps", y_label=metric)
        made = table(results, columns=columns, baselines=[STRAY], caption=f"{metric} from different starts, {kind}")
        found.append(Section(kind.capitalize(), table=made, svg=picture))
    return found


def verdict(rows: Sequence[Row]) -> str:
    kind = str(rows[0].setting["tasks"])
    at = {row.method: row.mean for row in rows if row.setting == {"tasks": kind, "steps": STEPS[-1]}}
    told = ", ".join(f"{at[name]:.3f} from {name}" for name in (CORNERS[100], CORNERS[2], STRAY))
    return f"On {kind}, {METRICS[kind]} after {STEPS[-1]} steps is {at[LEARNED]:.3f} from the learned start, {told}."
