"""One meta-update of GEM-BML+ against a loop over tasks and draws, with the noise of the draws.

An MLP 1-40-40-1 on 25 sine tasks of 10 support and 10 query rows: two posteriors of 5 inner steps and 5 draws each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warmstart.benches import peers
from warmstart.benches.meta_step import batches, network
from warmstart.benches.meta_step import ways as ways
from warmstart.benches.timing import Plan
from warmstart.benches.updates import LOOP, Workload, compare
from warmstart.benches.updates import sections as sections
from warmstart.engine.loop import Report
from warmstart.learners import gem
from warmstart.models.likelihoods import squared
from warmstart.report import Results

CONFIG = gem.Config(inner_steps=5, samples=5)
WORKLOADS = (Workload("gem, 5 steps, 5 draws", gem.build, CONFIG, {LOOP: peers.gem_loop}, squared, network, batches),)


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    only: Sequence[str] = (),
    plan: Plan = Plan(rounds=3, repeats=5),
    workloads: Sequence[Workload] = WORKLOADS,
) -> Results:
    return compare("bayes_step", workloads, device, progress, plan, ways, only)
