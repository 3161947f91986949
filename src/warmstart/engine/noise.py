"""Noise is drawn here, eagerly, from one seeded generator; no learner sees a generator.

Draws inside vmap or a chunk would depend on the chunk size.
"""

from __future__ import annotations

import hashlib

import torch

from warmstart.core import Noise, Tree

_STRIDE = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: its multiples keep far apart


def generator(seed: int, *place: int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of a place in a run: the same seed and place always draw the same.

    >>> torch.rand(2, generator=generator(0, 3)).equal(torch.rand(2, generator=generator(0, 3)))
    True
    """
    base = int.from_bytes(hashlib.blake2b(f"{seed} {len(place)}".encode(), digest_size=8).digest())
    # places are spread, not hashed: a CPU generator uses 32 bits of its seed, and so neighbours never meet
    spread = sum(number * _STRIDE**axis for axis, number in enumerate(place))
    return torch.Generator(device).manual_seed((base + spread) % 2**63)


def normals(shapes: Tree, lead: tuple[int, ...], source: torch.Generator) -> Tree:
    """Standard normals for a tree of shapes, each with leading axes (tasks, steps) in front."""
    if isinstance(shapes, dict):
        return {name: normals(shape, lead, source) for name, shape in shapes.items()}
    if isinstance(shapes, torch.Size):
        return torch.randn(*lead, *shapes, generator=source, device=source.device)
    return tuple(normals(shape, lead, source) for shape in shapes)


def train_noise(noise: Noise, tasks: int, source: torch.Generator) -> Tree:
    return normals(noise.train, (tasks,), source)


def adapt_noise(noise: Noise, tasks: int, steps: int, source: torch.Generator) -> Tree:
    """What `predict_stack` takes: noise of the steps and of the prediction, the same after any number of steps."""
    predict = normals(noise.predict, (tasks,), source)
    return normals(noise.step, (tasks, steps), source), predict
