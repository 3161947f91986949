"""Meta-updates against a loop over tasks and the packages that do it so: what such benches share.

Inner loops, meta-gradient and outer optimiser, on batches that lie ready on the device, another one
for every update; the noise of a method that needs some is drawn in every update anew.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from warmstart.benches import peers
from warmstart.benches.timing import (
    Contender,
    Plan,
    describe,
    in_new_process,
    interleave,
    nothing_compiled,
    one_thread,
    seconds,
)
from warmstart.core import Learner, Likelihood, Model, check_names, functional
from warmstart.engine.capture import Update, capture
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.meta import Feed, meta_update
from warmstart.engine.noise import generator, train_noise
from warmstart.engine.stage import PLAIN, Stage
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.page import Section

CPU = torch.device("cpu")
LOOP = "loop"
TIME, RATIO, FIRST = "microseconds", "ratio", "first call"


class Workload(NamedTuple):
    name: str
    build: Callable[..., Learner]
    config: Any
    peers: Mapping[str, Callable[..., peers.Update]]  # the loop first
    likelihood: Likelihood
    network: Callable[[torch.device], nn.Module]  # what all contenders train
    batches: Callable[[torch.device], list[Feed]]  # what all contenders get, in turn
    theirs: Callable[[torch.device], nn.Module] | None = None  # the network as peers write it, where ours differs
    on_cpu: bool = True  # on a CUDA device, compare with the loop on the CPU too
    fast: str = "*"  # names of the parameters that a task adapts


class Way(NamedTuple):
    """A way to run ours: gives the first state and the meta-update."""

    make: Callable[[Workload, Model], tuple[Any, Update]]
    compiles: bool = False


def stepwise(stage: Stage, compiles: bool = False) -> Way:
    """As trainings run: inner steps are recorded alone, so that compiling does not grow with their number."""

    def make(workload: Workload, model: Model) -> tuple[Any, Update]:
        learner = workload.build(model, workload.likelihood, workload.config, stage)
        return learner.init(model.params), meta_update(learner, stage=stage)

    return Way(make, compiles)


def whole(stage: Stage, compiles: bool = False) -> Way:
    """All of a meta-update recorded as one program: fewer calls, more to compile with every inner step."""

    def make(workload: Workload, model: Model) -> tuple[Any, Update]:
        learner = workload.build(model, workload.likelihood, workload.config)
        return learner.init(model.params), stage.run(meta_update(learner))

    return Way(make, compiles)


Ways: TypeAlias = Callable[[torch.device], dict[str, Way]]  # the ways ours runs on a device


def compare(
    bench: str,
    workloads: Sequence[Workload],
    device: str,
    progress: Callable[[str], Report] | None,
    plan: Plan,
    ways: Ways,
    only: Sequence[str] = (),
) -> Results:
    """Times, first calls and ratios; on CUDA mostly also against the loop on the CPU. `bench` names the module.

    `only` names workloads or ways, of which the others are left out.
    """
    where = choose_device(device)
    named = [workload.name for workload in workloads]
    check_names(only, [*named, *ways(where)], "workloads or ways")
    bar = progress or (lambda label: silent)
    rows: list[Row] = []

    def chosen(device: torch.device) -> dict[str, Way]:
        found = ways(device)
        return {name: way for name, way in found.items() if name in only} or found

    with one_thread():
        for workload in [one for one in workloads if one.name in only] or workloads:
            rows += measure(bench, workload, where, plan, bar(workload.name), chosen)
    command = called()
    return make_results(bench, "full", describe(where), command, rows)


def measure(
    bench: str, workload: Workload, device: torch.device, plan: Plan, progress: Report, ways: Ways
) -> list[Row]:
    """All rows of one workload."""
    progress(0, plan.rounds * plan.repeats, "compiling")
    setting = {"workload": workload.name, "device": device.type}
    theirs, missing = rivals(workload, device)
    mine, first = (list(parts) for parts in zip(*ours(bench, workload, device, ways), strict=True))
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
    """The loop on the device and mostly on the CPU, and on a CPU the packages; and those that are not installed."""
    places = dict.fromkeys((device, CPU) if workload.on_cpu else (device,))
    found = [_rival(workload, LOOP, LOOP, place) for place in places]
    packages = [name for name in workload.peers if name != LOOP] if device == CPU else []
    versions = {name: peers.installed(name) for name in packages}
    found += [_rival(workload, name, f"{name} {number}", device) for name, number in versions.items() if number]
    return found, [name for name, number in versions.items() if not number]


def ours(bench: str, workload: Workload, device: torch.device, ways: Ways) -> Iterator[tuple[Contender, float]]:
    """Each way to run on the device, and the seconds of its first call, in a process of its own if it compiles."""
    feeds = workload.batches(device)
    for name, way in ways(device).items():
        state, update = way.make(workload, functional(workload.network(device), workload.fast))
        begin = partial(_chain, workload, state, update, feeds)
        with nothing_compiled():
            cold = in_new_process(first_call, bench, workload.name, name, device.type) if way.compiles else None
            warm = seconds(begin(), device)
        took = warm if cold is None else cold
        yield Contender(name, device, begin), took
        if device.type == "cuda":
            begin = partial(_chain, workload, state, capture(update, state), feeds)
            took += seconds(begin(), device)
            yield Contender(f"{name}, CUDA graph", device, begin), took


def first_call(bench: str, workload: str, way: str, device: str) -> float:
    """Seconds of the first meta-update in this process, with one on the device before, to wake it."""
    where = torch.device(device)
    module = importlib.import_module(f"warmstart.benches.{bench}")
    chosen = next(one for one in module.WORKLOADS if one.name == workload)
    with one_thread():
        model, feeds = functional(chosen.network(where), chosen.fast), chosen.batches(where)
        found: Way = module.ways(where)[way]
        seconds(_chain(chosen, *stepwise(PLAIN).make(chosen, model), feeds), where)
        return seconds(_chain(chosen, *found.make(chosen, model), feeds), where)


def _rival(workload: Workload, name: str, peer: str, device: torch.device) -> Contender:
    feeds = [peers.separate(feed.tasks) for feed in workload.batches(device)]

    network = workload.theirs or workload.network

    def begin() -> Callable[[], object]:
        update, fed = workload.peers[name](network(device), workload.config), cycle(feeds)
        return lambda: update(next(fed))

    return Contender(name, device, begin, peer)


def _chain(workload: Workload, state: Any, update: Update, feeds: Sequence[Feed]) -> Callable[[], object]:
    """Each call goes on from the state of the last, with the next batch and fresh noise, as in training."""
    device, fed = feeds[0].tasks.key.device, cycle(feeds)
    noise = workload.build(functional(workload.network(CPU), workload.fast), workload.likelihood, workload.config).noise
    source = generator(0, 1, device=device)

    def call() -> None:
        nonlocal state
        tasks = next(fed).tasks
        state, _ = update(state, Feed(tasks, train_noise(noise, len(tasks.key), source)))

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
