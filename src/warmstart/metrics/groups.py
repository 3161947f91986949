"""How well a classifier serves groups of people: the worst of them, and gaps between two of them.

All take what was guessed [*m, n], for any number of models at once, with the truth and the group of the n rows. A
group of a few rows says little (of 50, the accuracy has a standard error of 5 points), so small ones are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from warmstart.core import InputError

SMALLEST = 200  # rows of a group that is judged


def group_accuracy(guess: Tensor, y: Tensor, group: Tensor, smallest: int = SMALLEST) -> dict[int, Tensor]:
    """The share of right guesses [*m] in every group with enough rows."""
    right = (guess == y).to(torch.get_default_dtype())
    counts = torch.bincount(group)
    large = [g for g, count in enumerate(counts.tolist()) if count >= smallest]
    if not large:
        got = f"at most {int(counts.max())}"
        raise InputError(f"a group of at least {smallest} rows", got, "judge more rows, or lower the smallest group")
    return {g: right[..., group == g].mean(-1) for g in large}


def worst_group(guess: Tensor, y: Tensor, group: Tensor, smallest: int = SMALLEST) -> Tensor:
    """The accuracy [*m] of the group that has the lowest."""
    return torch.stack([*group_accuracy(guess, y, group, smallest).values()]).amin(0)


def demographic_parity(guess: Tensor, group: Tensor, pair: tuple[int, int], names: Sequence[str] = ()) -> Tensor:
    """|P(guess = 1 | first group) - P(guess = 1 | second group)|; errors call groups by `names`, if there are any."""
    return _gap(guess, [group == g for g in pair], pair, names, "rows")


def equal_opportunity(
    guess: Tensor, y: Tensor, group: Tensor, pair: tuple[int, int], names: Sequence[str] = ()
) -> Tensor:
    """The same gap among rows whose truth is 1: that of the true positive rates."""
    return _gap(guess, [(group == g) & (y == 1) for g in pair], pair, names, "positives")


def _gap(guess: Tensor, among: list[Tensor], pair: tuple[int, int], names: Sequence[str], what: str) -> Tensor:
    for g, rows in zip(pair, among, strict=True):
        if not bool(rows.any()):
            called = f"'{names[g]}'" if names else f"{g}"
            raise InputError(f"{what} in group {called}", "none", "name other groups, or judge more rows")
    first, second = ((guess[..., rows] == 1).to(torch.get_default_dtype()).mean(-1) for rows in among)
    return (first - second).abs()
