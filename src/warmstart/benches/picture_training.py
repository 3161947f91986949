"""A whole training of MAML on pictures: minutes from the first compilation to the last look, and memory held.

60,000 updates on a GPU, some on a CPU: the four-block network with 64 filters, 5-way 1-shot, 32 tasks of 75 query
pictures, one inner step, as many classes as Omniglot has, and validation tasks as the study looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from warmstart.benches.timing import describe, seconds
from warmstart.core import check_names, functional
from warmstart.engine.device import choose_device, fast_products
from warmstart.engine.loop import Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.learners import maml
from warmstart.maths.outer import State
from warmstart.metrics.errors import accuracy
from warmstart.models.conv4 import Conv4, fastest_stage
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import seeded
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.page import Section
from warmstart.tasks.images import Images, make_images, sampler
from warmstart.training.sources import from_family
from warmstart.training.train import Plan, train

TASKS, WAY, SHOT, QUERY, SIDE, FILTERS = 32, 5, 1, 15, 28, 64
CLASSES, DRAWINGS = 4400, 20  # 1,100 characters, each in four turns
UPDATES = {"cuda": 60_000, "cpu": 60}
LOOKS, LOOKED_AT = 60, 200  # at so many validation tasks
MAML = "maml, 1 step"
MINUTES, SPEED, HELD = "minutes in all", "updates a second", "memory held"


def noise_pictures(classes: int) -> Images:
    """What they show does not change how long they take."""
    pixels = torch.randint(
        256, (classes * DRAWINGS, 1, SIDE, SIDE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    return make_images(pixels, torch.full((classes,), DRAWINGS), tuple(map(str, range(classes))))


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    only: Sequence[str] = (),
    updates: int | None = None,
    classes: int = CLASSES,
    tasks: int = TASKS,
    looked_at: int = LOOKED_AT,
) -> Results:
    check_names(only, [MAML], "trainings")
    where = choose_device(device)
    steps = updates or UPDATES[where.type]
    report = (progress or (lambda label: silent))(f"{steps:,} updates")
    images = noise_pictures(classes).to(where)
    with seeded(0):
        model = functional(Conv4((1, SIDE, SIDE), WAY, FILTERS).to(where))
    stage = fastest_stage(where, strided=True, updates=steps, pictures=tasks * WAY * (SHOT + QUERY))
    learner = maml.build(model, multiclass, maml.Config(inner_lr=0.4, inner_steps=1, test_steps=3), stage)
    judged = sampler(images, WAY, SHOT, 5)(looked_at, generator(1))
    source = from_family(sampler(images, WAY, SHOT, QUERY), tasks, 0, learner.noise, where, block=4)
    plan = Plan(steps=steps, every=max(1, steps // LOOKS), patience=LOOKS)

    def validate(state: State) -> float:
        said = predict_stack(learner, state, judged, chunk=100 if where.type == "cuda" else 1)
        return 1 - float(accuracy(said.mean, judged.query).mean())

    def whole() -> None:
        train(learner, learner.init(model.params), source, plan, validate, stage=stage, progress=report)

    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats(where)
    with fast_products(where):
        took = seconds(whole, where)
    setting = {"updates": steps, "device": where.type}
    rows: list[Row] = [
        make_row(MAML, setting, MINUTES, {0: took / 60}),
        make_row(MAML, setting, SPEED, {0: steps / took}),
    ]
    if where.type == "cuda":
        rows.append(make_row(MAML, setting, HELD, {0: torch.cuda.max_memory_reserved(where) / 2**30}, "GiB"))
    return make_results("picture_training", "full", describe(where), called(), rows)


def sections(results: Results) -> list[Section]:
    columns = [Column(MINUTES, MINUTES, {}, 2), Column(SPEED, SPEED, {}, 1), Column(f"{HELD} (GiB)", HELD, {}, 2)]
    updates = ", ".join(f"{row.setting['updates']:,}" for row in results.rows if row.metric == MINUTES)
    return [Section("A whole training", f"{updates} updates", table(results, columns=columns))]
