"""One meta-update of MAML and Reptile against a loop over tasks and the packages that do it so.

An MLP 1-40-40-1 on 25 sine tasks of 10 support and 10 query rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from warmstart.benches import peers
from warmstart.benches.timing import Plan
from warmstart.benches.updates import LOOP, Way, Workload, compare, stepwise, whole
from warmstart.benches.updates import sections as sections
from warmstart.core.trees import tree_map
from warmstart.engine.kernels import FUSED
from warmstart.engine.loop import Report
from warmstart.engine.meta import Feed
from warmstart.engine.noise import generator
from warmstart.engine.stage import COMPILED, PLAIN, TRACED
from warmstart.learners import maml, reptile
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP, seeded
from warmstart.report import Results
from warmstart.tasks import sine

TASKS, ROWS, HIDDEN = 25, 10, (40, 40)
BATCHES = 4


def network(device: torch.device, dtype: torch.dtype = torch.float32) -> MLP:
    with seeded(0):
        return MLP(1, HIDDEN, 1).to(device, dtype)


def batches(device: torch.device, dtype: torch.dtype = torch.float32) -> list[Feed]:
    drawn = [sine.draw(sine.DEFAULT, TASKS, ROWS, ROWS, generator(0, k), device) for k in range(BATCHES)]
    rows = [tree_map(lambda leaf: leaf.to(dtype), (tasks.support, tasks.query)) for tasks in drawn]
    return [
        Feed(tasks._replace(support=support, query=query)) for tasks, (support, query) in zip(drawn, rows, strict=True)
    ]


_MAML_PEERS = {LOOP: peers.maml_loop, "higher": peers.maml_higher, "torchopt": peers.maml_torchopt}
WORKLOADS = (
    Workload("maml, 1 step", maml.build, maml.Config(inner_steps=1), _MAML_PEERS, squared, network, batches),
    Workload("maml, 5 steps", maml.build, maml.Config(inner_steps=5), _MAML_PEERS, squared, network, batches),
    Workload(
        "reptile, 5 Adam steps",
        reptile.build,
        reptile.Config(inner_steps=5, inner="adam"),
        {LOOP: peers.reptile_loop},
        squared,
        network,
        batches,
    ),
)


def ways(device: torch.device) -> dict[str, Way]:
    """On CUDA each is also captured in a graph, where calls cost nothing."""
    found = {"plain": stepwise(PLAIN), "traced": stepwise(TRACED), "compiled": stepwise(COMPILED, True)}
    if device.type == "cuda":
        return {**found, "fused": stepwise(FUSED, True)}
    return {**found, "traced whole": whole(TRACED), "compiled whole": whole(COMPILED, True)}


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    only: Sequence[str] = (),
    plan: Plan = Plan(),
    workloads: Sequence[Workload] = WORKLOADS,
) -> Results:
    return compare("meta_step", workloads, device, progress, plan, ways, only)
