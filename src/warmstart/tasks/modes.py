"""Families with several kinds of curve: sines, lines and parabolas, drawn as whole stacks on the generator's device.

The parameters of lines and parabolas are those of Vuorio et al. (2019), sines those of `tasks.sine.DEFAULT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Any

import torch
from torch import Tensor

from warmstart.core import InputError, Task, make_batch, make_task
from warmstart.core.trees import to_device

MODES = ("sine", "line", "parabola")
# low and high of a mode's three parameters
BOUNDS = {
    "sine": ((0.1, 5.0), (-pi, 0.0), (1.0, 1.0)),  # A sin(w x + b)
    "line": ((-3.0, 3.0), (-3.0, 3.0), (0.0, 0.0)),  # a x + b
    "parabola": ((0.02, 0.15), (-3.0, 3.0), (-3.0, 3.0)),  # +- a (x - c)^2 + b, either sign as likely
}


@dataclass(frozen=True)
class Family:
    """Which modes there are; a task is of each with the same probability."""

    modes: tuple[str, ...] = MODES
    noise: float = 0.3  # standard deviation of a row
    x: tuple[float, float] = (-5.0, 5.0)


THREE = Family()
ONE = Family(modes=("sine",))


def curve(mode: str, parameters: Tensor, x: Tensor) -> Tensor:
    """The noiseless y [*t, n] at x [*t, n] of tasks with parameters [*t, 3]."""
    a, b, c = parameters.unsqueeze(-2).unbind(-1)
    match mode:
        case "sine":
            return a * torch.sin(c * x + b)
        case "line":
            return a * x + b
    return a * (x - c) ** 2 + b


def draw(
    family: Family,
    count: int,
    support: int,
    query: int,
    generator: torch.Generator,
    device: torch.device | str | None = None,
) -> Task:
    """A stack of `count` new tasks; the descriptor is empty, the key is random.

    >>> draw(THREE, 4, 5, 10, torch.Generator().manual_seed(0)).support.x.shape
    torch.Size([4, 5, 1])
    """
    unknown = [mode for mode in family.modes if mode not in MODES]
    if unknown or not family.modes:
        raise InputError(f"modes among {', '.join(MODES)}", repr((unknown or ["none"])[0]), "use these names")
    place: dict[str, Any] = {"generator": generator, "device": generator.device}
    low, high = family.x
    x = low + (high - low) * torch.rand(count, support + query, **place)
    share = torch.rand(count, 3, **place)
    sign = torch.randint(2, (count, 1), **place) * 2.0 - 1
    which = torch.randint(len(family.modes), (count, 1), **place)
    y = torch.zeros_like(x)
    for i, mode in enumerate(family.modes):
        least, most = torch.tensor(BOUNDS[mode], device=generator.device).unbind(-1)
        parameters = least + (most - least) * share
        if mode == "parabola":
            parameters = torch.cat([sign * parameters[:, :1], parameters[:, 1:]], 1)
        y = torch.where(which == i, curve(mode, parameters, x), y)
    y = y + family.noise * torch.randn(count, support + query, **place)
    shown, judged = (make_batch(x[:, rows, None], y[:, rows]) for rows in (slice(support), slice(support, None)))
    # random keys, so that tasks of different calls are different tasks to a memory
    task = make_task(shown, judged, None, torch.randint(2**62, (count,), **place))
    moved: Task = task if device is None else to_device(task, device)
    return moved
