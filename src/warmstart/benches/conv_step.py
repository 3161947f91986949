"""One meta-update of MAML on pictures against a loop over tasks: the four-block network, 5-way 1-shot.

32 tasks of 5 support and 75 query pictures of 28 x 28 with 64 filters, as on Omniglot. On a GPU all contenders may
round float32 products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from warmstart.benches import peers
from warmstart.benches.timing import Plan
from warmstart.benches.updates import LOOP, Way, Workload, compare, stepwise
from warmstart.benches.updates import sections as sections
from warmstart.engine.device import choose_device, fast_products
from warmstart.engine.loop import Report
from warmstart.engine.meta import Feed
from warmstart.engine.noise import generator
from warmstart.engine.stage import COMPILED, LOOPED, PLAIN, TRACED
from warmstart.learners import maml
from warmstart.models.conv4 import Conv4
from warmstart.models.convolution import Convolution, by_torch, convolve
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import seeded
from warmstart.report import Results
from warmstart.tasks.images import draw_episodes, make_images

TASKS, WAY, SHOT, QUERY, SIDE = 32, 5, 1, 15, 28
BATCHES = 2


def network(device: torch.device, convolution: Convolution = convolve) -> Conv4:
    with seeded(0):
        return Conv4((1, SIDE, SIDE), WAY, convolution=convolution).to(device)


def batches(device: torch.device) -> list[Feed]:
    """Pictures of noise: what they show does not change how long they take."""
    classes, each = 2 * WAY, SHOT + QUERY
    draw = generator(0, 0)
    pixels = torch.randint(256, (classes * each, 1, SIDE, SIDE), generator=draw, dtype=torch.uint8)
    images = make_images(pixels, torch.full((classes,), each), tuple(map(str, range(classes)))).to(device)
    return [
        Feed(draw_episodes(images, TASKS, WAY, SHOT, QUERY, generator(0, k, device=device))) for k in range(BATCHES)
    ]


def _workload(steps: int) -> Workload:
    config = maml.Config(inner_lr=0.4, inner_steps=steps)
    name = f"maml, {steps} {'step' if steps == 1 else 'steps'}"
    theirs = partial(network, convolution=by_torch)
    loop = {LOOP: peers.maml_loop}
    return Workload(name, maml.build, config, loop, multiclass, network, batches, theirs, on_cpu=False)


WORKLOADS = (_workload(1), _workload(5))


def ways(device: torch.device) -> dict[str, Way]:
    if device.type == "cuda":
        return {"traced": stepwise(TRACED), "compiled": stepwise(COMPILED)}
    return {"plain": stepwise(PLAIN), "traced": stepwise(TRACED), "looped": stepwise(LOOPED)}


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    plan: Plan = Plan(rounds=3, repeats=2),
    workloads: Sequence[Workload] = WORKLOADS,
) -> Results:
    with fast_products(choose_device(device)):
        return compare("conv_step", workloads, device, progress, plan, ways)
