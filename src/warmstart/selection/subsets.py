"""Subsets of sources: of one size, no two alike, every source in nearly the same number of them.

With all subsets equally likely, the covariance of the indicators is an identity plus a constant (Lemma A.3 of the
paper), which is what lets coefficients tell sources apart. Balance makes every coefficient about as sure.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.engine.noise import generator

FEWEST = 4  # sources that are told apart
TRIES = 50  # redraws of a subset that was there before


def sample_subsets(sources: int, size: int, count: int, seed: int = 0) -> Tensor:
    """[count, size] distinct subsets in rising order, each source in nearly count size / sources of them.

    >>> sample_subsets(4, 2, 6).tolist()
    [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    """
    if not 1 <= size <= sources:
        raise InputError(f"a subset size from 1 to the {sources} sources", f"{size}", "lower it")
    possible = comb(sources, size)
    if count > possible or count < 1:
        raise InputError(f"1 to {possible} subsets of {size} out of {sources}", f"{count}", "ask for fewer")
    if count == possible:
        return torch.tensor(list(combinations(range(sources), size)))
    if possible < 2 * count:  # balanced ones are left out
        out = set(map(tuple, sample_subsets(sources, size, possible - count, seed).tolist()))
        rest = torch.tensor([one for one in combinations(range(sources), size) if one not in out])
        return rest[torch.randperm(count, generator=generator(seed, 12))]
    source = generator(seed, 11)
    used, seen = torch.zeros(sources), set()
    found: list[tuple[int, ...]] = []
    for _ in range(count):
        for attempt in range(TRIES):
            # sources used least come first, ties at random; a subset that was there before is drawn with less regard
            order = (used + (0.5 + attempt) * torch.rand(sources, generator=source)).argsort()
            chosen = tuple(sorted(order[:size].tolist()))
            if chosen not in seen:
                break
        else:
            raise InputError("subsets that differ", f"{len(found)} of {count}", "ask for fewer or larger ones")
        seen.add(chosen)
        found.append(chosen)
        used[list(chosen)] += 1
    return torch.tensor(found)


def how_many(sources: int, size: int | None = None, subsets: int | None = None) -> tuple[int, int, int]:
    """The size of a subset, how many are trained and how many more are held out: what is asked for, or what fits.

    >>> how_many(50), how_many(5), how_many(5, subsets=6)
    ((5, 200, 50), (2, 8, 2), (2, 6, 2))
    """
    if sources < FEWEST:
        raise InputError(
            f"{FEWEST} sources or more", f"{sources}", "add sources, or compare fits with and without each"
        )
    size = min(5, sources // 2) if size is None else size
    if not 1 <= size <= sources:
        raise InputError(f"a subset size from 1 to the {sources} sources", f"{size}", "lower --size")
    possible = comb(sources, size)
    if possible < 4:
        raise InputError("4 different subsets or more", f"{possible} of {size} sources", "choose another --size")
    if subsets is None:
        subsets = min(200, possible - max(2, possible // 5))
    held = max(2, subsets // 4)
    if subsets + 2 > possible:
        expected = f"at most {possible - 2} subsets of {size} out of {sources}, two being held out"
        raise InputError(expected, f"{subsets}", "lower --subsets")
    return size, subsets, min(held, possible - subsets)


def indicators(subsets: Tensor, sources: int) -> Tensor:
    """[n, sources] zeros and ones."""
    return torch.zeros(len(subsets), sources).scatter_(1, subsets, 1.0)
