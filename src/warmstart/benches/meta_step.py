"""One meta-update of MAML and Reptile against a loop over tasks and the packages that do it so.

An MLP 1-40-40-1, 25 sine tasks of 10 support and 10 query rows: inner loops, meta-gradient and outer
optimiser, on one batch that lies ready on the device.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from warmstart.benches import peers
from warmstart.benches.timing import Contender, Plan, cold, describe, interleave, one_thread, seconds
from warmstart.core import Learner, functional
from warmstart.core.trees import tree_map
from warmstart.engine.capture import Update, capture
from warmstart.engine.device import choose_device
from warmstart.engine.kernels import FUSED
from warmstart.engine.loop import Report, silent
from warmstart.engine.meta import Feed, meta_update
from warmstart.engine.noise import generator
from warmstart.engine.stage import COMPILED, PLAIN, TRACED, Stage
from warmstart.learners import maml, reptile
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP, seeded
from warmstart.report import Column, Results, Row, make_results, make_row, table
from warmstart.report.page import Section
from warmstart.tasks import sine

CPU = torch.device("cpu")
TASKS, ROWS, HIDDEN = 25, 10, (40, 40)
LOOP = "loop"
TIME, RATIO, FIRST = "microseconds", "ratio", "first call"


class Workload(NamedTuple):
    name: str
    build: Callable[..., Learner]
    config: Any
    peers: Mapping[str, Callable[..., peers.Update]]  # the loop first


_MAML_PEERS = {LOOP: peers.maml_loop, "higher": peers.maml_higher, "torchopt": peers.maml_torchopt}
WORKLOADS = (
    Workload("maml, 1 step", maml.build, maml.Config(inner_steps=1), _MAML_PEERS),
    Workload("maml, 5 steps", maml.build, maml.Config(inner_steps=5), _MAML_PEERS),
    Workload(
        "reptile, 5 Adam steps",
        reptile.build,
        reptile.Config(inner_steps=5, inner="adam"),
        {LOOP: peers.reptile_loop},
    ),
)


def stages(device: torch.device) -> dict[str, Stage]:
    """The ways ours runs on a device."""
    everywhere = {"plain": PLAIN, "traced": TRACED, "compiled": COMPILED}
    return {**everywhere, "fused": FUSED} if device.type == "cuda" else everywhere


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    plan: Plan = Plan(),
    workloads: Sequence[Workload] = WORKLOADS,
) -> Results:
    """Times, first calls and ratios; on a CUDA device also against the loop on the CPU."""
    where = choose_device(device)
    bar = progress or (lambda label: silent)
    rows: list[Row] = []
    with one_thread():
        for workload in workloads:
            rows += measure(workload, where, plan, bar(workload.name))
    command = " ".join(["warmstart", *sys.argv[1:]])
    return make_results("meta_step", "full", describe(where), command, rows)


def measure(workload: Workload, device: torch.device, plan: Plan, progress: Report) -> list[Row]:
    """All rows of one workload."""
    progress(0, plan.rounds * plan.repeats, "compiling")
    setting = {"workload": workload.name, "device": device.type}
    theirs, missing = rivals(workload, device)
    mine, first = (list(parts) for parts in zip(*ours(workload, device), strict=True))
    medians = interleave([*theirs, *mine], plan, progress)
    found = [
        make_row(one.name, setting | {"device": one.device.type}, TIME, _by_round(took, 1e6), "us", one.peer)
        for one, took in zip([*theirs, *mine], medians, strict=True)
    ]
    found += [make_row(name, setting, TIME, {0: math.nan}, "us", "not installed") for name in missing]
    for my, took, began in zip(mine, medians[len(theirs) :], first, strict=True):
        found.append(make_row(my.name, setting, FIRST, {0: began}, "s"))
        for rival, longer in zip(theirs, medians, strict=False):
            against = setting | {"against": f"{rival.name} on {rival.device.type}"}
            times = [a / b for a, b in zip(longer, took, strict=True)]
            found.append(make_row(my.name, against, RATIO, _by_round(times), "x", rival.peer))
    return found


def rivals(workload: Workload, device: torch.device) -> tuple[list[Contender], list[str]]:
    """The loop on the device and on the CPU, and on a CPU the packages; and those that are not installed."""
    found = [_rival(workload, LOOP, LOOP, place) for place in dict.fromkeys((device, CPU))]
    packages = [name for name in workload.peers if name != LOOP] if device == CPU else []
    versions = {name: peers.installed(name) for name in packages}
    found += [_rival(workload, name, f"{name} {number}", device) for name, number in versions.items() if number]
    return found, [name for name, number in versions.items() if not number]


def ours(workload: Workload, device: torch.device) -> Iterator[tuple[Contender, float]]:
    """Each way to run on the device, and the seconds of its first call, compiling included."""
    module, feed = problem(device)
    model = functional(module)
    for name, stage in stages(device).items():
        learner = workload.build(model, squared, workload.config, stage)
        state = learner.init(model.params)
        update = meta_update(learner, stage=stage)
        begin = partial(_chain, update, state, feed)
        took = seconds(begin() if stage in (PLAIN, TRACED) else cold(begin()), device)
        yield Contender(name, device, begin), took
        if device.type == "cuda":
            begin = partial(_chain, capture(update, state), state, feed)
            took += seconds(begin(), device)
            yield Contender(f"{name}, CUDA graph", device, begin), took


def problem(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[MLP, Feed]:
    """The network and the batch that all contenders get."""
    with seeded(0):
        module = MLP(1, HIDDEN, 1).to(device, dtype)
    tasks = sine.draw(sine.DEFAULT, TASKS, ROWS, ROWS, generator(0, 1), device)
    support, query = tree_map(lambda leaf: leaf.to(dtype), (tasks.support, tasks.query))
    return module, Feed(tasks._replace(support=support, query=query))


def _rival(workload: Workload, name: str, peer: str, device: torch.device) -> Contender:
    module, feed = problem(device)
    tasks = peers.separate(feed.tasks)

    def begin() -> Callable[[], object]:
        return partial(workload.peers[name](copy.deepcopy(module), workload.config), tasks)

    return Contender(name, device, begin, peer)


def _chain(update: Update, state: Any, feed: Feed) -> Callable[[], object]:
    """Each call goes on from the state of the last, as in training."""

    def call() -> None:
        nonlocal state
        state, _ = update(state, feed)

    return call


def _by_round(values: Sequence[float], factor: float = 1.0) -> dict[int, float]:
    return {i: value * factor for i, value in enumerate(values)}


def sections(results: Results) -> list[Section]:
    """A table for each workload: ratios, times and first calls."""
    found = []
    for name in dict.fromkeys(str(row.setting["workload"]) for row in results.rows):
        rows = [row for row in results.rows if row.setting["workload"] == name]
        against = dict.fromkeys(str(row.setting["against"]) for row in rows if row.metric == RATIO)
        columns = [Column(f"x {peer}", RATIO, {"workload": name, "against": peer}, 1) for peer in against]
        devices = dict.fromkeys(str(row.setting["device"]) for row in rows if row.metric == TIME)
        columns += [Column(f"us on {kind}", TIME, {"workload": name, "device": kind}, 0) for kind in devices]
        columns += [Column("first call (s)", FIRST, {"workload": name}, 1)]
        others = [row.method for row in rows if row.metric == TIME and row.peer]
        made = table(results, list(dict.fromkeys(row.method for row in rows)), columns, others, caption=name)
        found.append(Section(name, table=made))
    return found
