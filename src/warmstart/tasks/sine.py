"""Families of sine tasks: y = A sin(w x + b) + e, drawn as whole stacks on the generator's device."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import TypeAlias

import torch
from torch import Tensor

from warmstart.core import InputError, Task, make_batch, make_task
from warmstart.core.trees import to_device

Range: TypeAlias = tuple[float, float]
Ranges: TypeAlias = Range | tuple[Range, ...]


@dataclass(frozen=True)
class Family:
    """Uniform ranges of a task's parameters. Several ranges are domains; tasks go through them in turn."""

    amplitude: Ranges = (0.1, 5.0)
    phase: Ranges = (0.0, pi)
    frequency: Ranges = (1.0, 1.0)
    noise: float = 0.0  # standard deviation of e, relative to the amplitude
    x: Range = (-5.0, 5.0)
    descriptor: bool = False  # whether a task's amplitude, phase and frequency are known

    @property
    def bounds(self) -> Tensor:
        """[domains, 3, 2]: low and high of amplitude, phase and frequency."""
        ranges = [torch.tensor(r, dtype=torch.float32).reshape(-1, 2) for r in self._ranges]
        domains = max(len(r) for r in ranges)
        if any(len(r) not in (1, domains) for r in ranges):
            counts = ", ".join(str(len(r)) for r in ranges)
            raise InputError("one range, or one per domain", f"{counts} ranges", "give each domain its range")
        bounds = torch.stack([r.expand(domains, 2) for r in ranges], 1)
        if (bounds[..., 0] > bounds[..., 1]).any():
            raise InputError("ranges (low, high)", f"{self._ranges}", "put the lower bound first")
        return bounds

    @property
    def _ranges(self) -> tuple[Ranges, Ranges, Ranges]:
        return self.amplitude, self.phase, self.frequency


# Finn, Abbeel and Levine (2017) write A sin(x + b) but their code draws A sin(x - b), b in [0, pi].
DEFAULT = Family(phase=(-pi, 0.0))
# Zou and Lu (2020), section 5.1, after Yoon et al. (2018).
CHALLENGING = Family(phase=(0.0, 2 * pi), frequency=(0.5, 2.0), noise=0.01)
# Five domains far from each other; the lowest amplitude is kept off zero, where relative errors explode.
POLARISED = Family(
    amplitude=((4.0, 5.0), (3.0, 4.0), (2.0, 3.0), (1.0, 2.0), (0.1, 1.0)),
    phase=((2.94, 2.94), (2.44, 2.44), (1.5, 1.5), (0.91, 0.91), (0.91, 0.91)),
    descriptor=True,
)
HARD = Family(descriptor=True)


def parameters(family: Family, count: int, generator: torch.Generator) -> Tensor:
    """[count, 3] amplitude, phase and frequency; task i is of domain i modulo their number."""
    bounds = family.bounds.to(generator.device)
    low, high = bounds.repeat(-(-count // len(bounds)), 1, 1)[:count].unbind(-1)
    return torch.lerp(low, high, torch.rand(count, 3, generator=generator, device=generator.device))


def curve(parameters: Tensor, x: Tensor) -> Tensor:
    """The noiseless y [*t, n] at x [*t, n] of tasks with parameters [*t, 3]."""
    amplitude, phase, frequency = parameters.unsqueeze(-2).unbind(-1)
    return amplitude * torch.sin(frequency * x + phase)


def observe(family: Family, parameters: Tensor, support: int, query: int, generator: torch.Generator) -> Task:
    """Rows of tasks whose parameters are given."""
    count, device = len(parameters), generator.device
    low, high = family.x
    x = low + (high - low) * torch.rand(count, support + query, generator=generator, device=device)
    y = curve(parameters, x)
    if family.noise:
        e = torch.randn(count, support + query, generator=generator, device=device)
        y = y + family.noise * parameters[:, :1] * e
    shown, judged = (make_batch(x[:, rows, None], y[:, rows]) for rows in (slice(support), slice(support, None)))
    # random keys, so that tasks of different calls are different tasks to a memory
    key = torch.randint(2**62, (count,), generator=generator, device=device)
    return make_task(shown, judged, parameters if family.descriptor else None, key)


def draw(
    family: Family,
    count: int,
    support: int,
    query: int,
    generator: torch.Generator,
    device: torch.device | str | None = None,
) -> Task:
    """A stack of `count` new tasks. One call can feed many meta-batches; `device` is where they end up.

    >>> draw(DEFAULT, 4, 5, 10, torch.Generator().manual_seed(0)).support.x.shape
    torch.Size([4, 5, 1])
    """
    task = observe(family, parameters(family, count, generator), support, query, generator)
    moved: Task = task if device is None else to_device(task, device)
    return moved
