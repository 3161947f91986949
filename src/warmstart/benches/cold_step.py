"""One meta-update over 32 users against a loop over them with index lookups, and what a memory of users costs.

The preference model with the vocabularies of MovieLens-1M, of which only the decision layers are adapted; users of 40
ratings shown and 10 judged, one inner step. The peer of every workload is the loop of PAML, which has no memory.
What a memory costs is also told at the settings that `fit` trains with, which have three inner steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from warmstart.benches import peers
from warmstart.benches.timing import Contender, Plan, interleave, one_thread
from warmstart.benches.updates import LOOP, Way, Workload, compare, stepwise, whole
from warmstart.benches.updates import sections as tables
from warmstart.core import Columns, check_names, functional, make_batch, make_task
from warmstart.core.trees import leaves, to_device
from warmstart.engine.capture import capture
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.memory import peak_bytes
from warmstart.engine.meta import Feed, meta_update
from warmstart.engine.noise import generator
from warmstart.engine.stage import COMPILED, PLAIN, TRACED
from warmstart.estimators.preference_networks import NETWORKS
from warmstart.learners import at_paml, melu, paml, reg_paml
from warmstart.maths.memory import Memory, filled_memory
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import seeded
from warmstart.models.preference import FAST, PreferenceNet
from warmstart.report import Column, Results, Row, make_row, table
from warmstart.report.page import Section

USERS, SHOWN, JUDGED = 32, 40, 10
ITEMS = 3_400
ITEM, USER = Columns(1, (641, 8), (20, 2_177)), Columns(0, (4, 9, 23, 571))
BAG = 6
BATCHES = 4
SHARE, STATE, PEAK = "time relative to paml", "state", "peak"
MEMORY, FITTED = "memory of users", "memory of users, as fit trains"
KNOWN = (1_000, 10_000)  # users in the memory
FINER = 3  # times as many repeats for ratios near one


def network(device: torch.device, dtype: torch.dtype = torch.float32) -> PreferenceNet:
    with seeded(0):
        return PreferenceNet(ITEM, USER, items=ITEMS).to(device, dtype)


def rows(columns: Columns, lead: tuple[int, ...], draw: torch.Generator) -> dict[str, Tensor]:
    def indices(sizes: Sequence[int], *more: int) -> Tensor:
        parts = [torch.randint(size, (*lead, *more), generator=draw) for size in sizes]
        return torch.stack(parts, len(lead)) if parts else torch.zeros(*lead, 0, *more, dtype=torch.long)

    numeric = torch.randn(*lead, columns.numeric, generator=draw)
    return {"numeric": numeric, "categorical": indices(columns.categorical), "bag": indices(columns.bag, BAG)}


def batches(device: torch.device, dtype: torch.dtype = torch.float32, users: int = USERS) -> list[Feed]:
    """Users of random ratings; the rows of a user share the user's columns."""
    found = []
    for k in range(BATCHES):
        draw = generator(0, k)
        about = rows(USER, (users,), draw)

        def part(count: int, draw: torch.Generator = draw, about: Mapping[str, Tensor] = about) -> Any:
            x = rows(Columns(ITEM.numeric, (ITEMS, *ITEM.categorical), ITEM.bag), (users, count), draw)
            known = about["categorical"].unsqueeze(1).expand(-1, count, -1)
            x = {**x, "numeric": x["numeric"].to(dtype), "categorical": torch.cat([x["categorical"], known], -1)}
            return make_batch(x, torch.randn(users, count, generator=draw).to(dtype))

        about = {**about, "numeric": about["numeric"].to(dtype)}
        key = torch.arange(users) + k * users
        found.append(Feed(to_device(make_task(part(SHOWN), part(JUDGED), about, key), device)))
    return found


_PAML = paml.Config()
_LOOP = {LOOP: lambda module, cfg: peers.paml_loop(module, _PAML)}
WORKLOADS = tuple(
    Workload(name, build, config, _LOOP, squared, network, batches, fast=FAST)
    for name, build, config in (
        ("melu", melu.build, melu.Config()),
        ("paml", paml.build, _PAML),
        ("reg_paml", reg_paml.build, reg_paml.Config()),
        ("at_paml, memory of 10,000", at_paml.build, at_paml.Config(warm_up=0)),
    )
)


def as_fitted(workload: Workload) -> Workload:
    config = NETWORKS[workload.name.split(",")[0]][1]
    return workload._replace(config=replace(config, warm_up=0) if isinstance(config, at_paml.Config) else config)


def ways(device: torch.device) -> dict[str, Way]:
    found = {"plain": stepwise(PLAIN), "traced": stepwise(TRACED)}
    if device.type == "cuda":
        return found
    return {**found, "compiled": stepwise(COMPILED, True), "compiled whole": whole(COMPILED, True)}


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    only: Sequence[str] = (),
    plan: Plan = Plan(),
    workloads: Sequence[Workload] = WORKLOADS,
) -> Results:
    """`only` may name what a memory costs, too."""
    check_names(
        only, [*(one.name for one in workloads), *ways(choose_device(device)), MEMORY, FITTED], "workloads or ways"
    )
    rest = [name for name in only if name not in (MEMORY, FITTED)]
    results = compare("cold_step", workloads if rest or not only else (), device, progress, plan, ways, rest)
    where, bar = choose_device(device), progress or (lambda label: silent)
    more: list[Row] = []
    with one_thread():
        if MEMORY in only or not only:
            more += [*share(where, plan, bar(MEMORY), MEMORY, WORKLOADS), *memory(where)]
        if FITTED in only or not only:
            more += share(where, plan, bar(FITTED), FITTED, [as_fitted(one) for one in WORKLOADS])
    return replace(results, rows=(*results.rows, *more))


def filled(memory: Memory, users: int) -> Memory:
    """As if so many users had been seen."""
    draw = torch.Generator(memory.entry.device).manual_seed(0)
    size, width = memory.entry.shape
    entry = torch.randn(size, width - 1, generator=draw, device=memory.entry.device)
    place = torch.arange(len(memory.key), device=memory.key.device)
    return filled_memory(torch.where(place < users, place, -1), entry, torch.zeros_like(memory.used))


def share(device: torch.device, plan: Plan, progress: Report, name: str, workloads: Sequence[Workload]) -> list[Row]:
    """Time of the others' update relative to PAML's, measured in turns with it; on a CPU in processor time, so that
    others' work does not count; captured on a CUDA device."""
    feeds, contenders = batches(device), []
    model = functional(network(device), FAST)
    for workload in workloads:
        learner = workload.build(model, squared, workload.config, TRACED)
        state = learner.init(model.params)
        if isinstance(state, at_paml.State):
            state = state._replace(memory=filled(state.memory, KNOWN[-1]))
        update = meta_update(learner, stage=TRACED)
        if device.type == "cuda":
            update = capture(update, state)

        def begin(state: Any = state, update: Any = update) -> Callable[[], object]:
            turn = 0

            def call() -> None:
                nonlocal state, turn
                state, _ = update(state, feeds[turn % BATCHES])
                turn += 1

            return call

        contenders.append(Contender(workload.name, device, begin))
    often = plan._replace(repeats=FINER * plan.repeats, processor=device.type == "cpu")
    medians = dict(zip((one.name for one in contenders), interleave(contenders, often, progress), strict=True))
    setting = {"workload": name, "device": device.type}
    return [
        make_row(
            one, setting, SHARE, {i: a / b for i, (a, b) in enumerate(zip(took, medians["paml"], strict=True))}, "x"
        )
        for one, took in medians.items()
        if one != "paml"
    ]


def memory(device: torch.device) -> list[Row]:
    """What a state holds and the most that an update holds at once, in MiB, by how many users are remembered."""
    found, feed = [], batches(device)[0]
    model = functional(network(device), FAST)
    for users in KNOWN:
        setting = {"workload": MEMORY, "device": device.type, "users": users}
        for name, learner in (
            ("reg_paml", reg_paml.build(model, squared, reg_paml.Config(), TRACED)),
            ("at_paml", at_paml.build(model, squared, at_paml.Config(memory=users, ways=8), TRACED)),
        ):
            state, update = learner.init(model.params), meta_update(learner, stage=TRACED)
            update(state, feed)
            held = sum(leaf.numel() * leaf.element_size() for leaf in leaves(state))
            most = peak_bytes(lambda: update(state, feed), device)  # noqa: B023
            for metric, size in ((STATE, held), (PEAK, most)):
                found.append(make_row(name, setting, metric, {0: size / 2**20}, "MiB"))
    return found


def sections(results: Results) -> list[Section]:
    own = [row for row in results.rows if row.setting["workload"] in (MEMORY, FITTED)]
    found = tables(replace(results, rows=tuple(row for row in results.rows if row not in own)))
    if own:
        columns = [Column("time, x paml", SHARE, {"workload": MEMORY}, 2)]
        columns += [Column("as fit trains, x paml", SHARE, {"workload": FITTED}, 2)]
        for users in KNOWN:
            columns += [Column(f"{m}, {users:,} users (MiB)", m, {"users": users}, 1) for m in (STATE, PEAK)]
        names = list(dict.fromkeys(row.method for row in own))
        found.append(Section("Memory of users", table=table(replace(results, rows=tuple(own)), names, columns)))
    return found
