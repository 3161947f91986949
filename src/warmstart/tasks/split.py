"""Which tasks are trained on, chosen by and judged on: fixed by a seed and the names alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from warmstart.core import InputError


class Split(NamedTuple):
    """Task names."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]


def split_tasks(names: Iterable[str], fractions: Sequence[float] = (0.7, 0.1, 0.2), seed: int = 0) -> Split:
    """Tasks in the order of a hash of seed and name, cut at the fractions; a part asked for gets at least one.

    >>> split_tasks(["a", "b", "c", "d"], (0.5, 0.25, 0.25)) == split_tasks(["d", "c", "b", "a"], (0.5, 0.25, 0.25))
    True
    """
    if len(fractions) != 3 or not all(part >= 0 for part in fractions) or abs(sum(fractions) - 1) > 1e-6:
        raise InputError("three fractions that sum to 1", str(tuple(fractions)), "pass training, validation, test")
    order = sorted(set(names), key=lambda name: digest(f"{seed}:{name}"))
    validation, test = (max(int(part > 0), round(part * len(order))) for part in fractions[1:])
    train = len(order) - validation - test
    if train < 1:
        raise InputError("at least one task in every part", f"{len(order)} tasks", "pass more tasks or other fractions")
    parts = order[:train], order[train : train + validation], order[train + validation :]
    return Split(*(tuple(sorted(part)) for part in parts))


def digest(name: str) -> int:
    """63 bits that depend on the name alone, on any machine."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1
