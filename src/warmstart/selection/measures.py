"""f_t(S): how badly a model serves the target, from what it says of the validation rows. Lower is better.

A measure takes outputs [m, n, out] of any number of models and the rows, and gives [m]. Any function of that
form can be passed in place of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from warmstart.core import InputError, check_names
from warmstart.metrics.groups import SMALLEST, demographic_parity, equal_opportunity, worst_group
from warmstart.models.likelihoods import binary, multiclass
from warmstart.tasks.transfer import Rows, Transfer

Measure: TypeAlias = Callable[[Tensor, Rows], Tensor]

GAPS = ("demographic-parity", "equal-opportunity")
GROUPED = ("worst-group", *GAPS)


def row_margin(out: Tensor, y: Tensor) -> Tensor:
    """The logit of the right class minus the highest other one."""
    if out.shape[-1] == 1:
        return out.squeeze(-1) * (2 * y - 1)
    right = y.long().expand(out.shape[:-1]).unsqueeze(-1)
    own = out.gather(-1, right).squeeze(-1)
    return own - out.scatter(-1, right, -torch.inf).amax(-1)


def row_loss(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of every row."""
    if out.shape[-1] == 1:
        return binary.loss(out, y)
    return multiclass.loss(out, y.expand(out.shape[:-1]))


def guess(out: Tensor) -> Tensor:
    """The likeliest class."""
    return (out.squeeze(-1) > 0).to(out.dtype) if out.shape[-1] == 1 else out.argmax(-1)


def negative_margin(out: Tensor, rows: Rows) -> Tensor:
    return -row_margin(out, rows.y).mean(-1)


def cross_entropy(out: Tensor, rows: Rows) -> Tensor:
    return row_loss(out, rows.y).mean(-1)


def zero_one(out: Tensor, rows: Rows) -> Tensor:
    return (guess(out) != rows.y).to(out.dtype).mean(-1)


def worst_group_error(out: Tensor, rows: Rows, smallest: int = SMALLEST) -> Tensor:
    return 1 - worst_group(guess(out), rows.y, rows.group, smallest)


def parity_gap(out: Tensor, rows: Rows, pair: tuple[int, int], names: Sequence[str] = ()) -> Tensor:
    return demographic_parity(guess(out), rows.group, pair, names)


def opportunity_gap(out: Tensor, rows: Rows, pair: tuple[int, int], names: Sequence[str] = ()) -> Tensor:
    return equal_opportunity(guess(out), rows.y, rows.group, pair, names)


def fair_error(out: Tensor, rows: Rows, gap: Measure) -> Tensor:
    """A gap and the error: alone, a gap is smallest for a model that says the same of everybody."""
    return gap(out, rows) + zero_one(out, rows)


def pair_of(transfer: Transfer, between: Sequence[str] | None = None) -> tuple[int, int]:
    """The numbers of two groups, by name; without names, of the two with most validation rows."""
    if between is not None:
        if len(between) != 2:
            raise InputError("two groups", ", ".join(between) or "none", "name two, such as --between A,B")
        check_names(between, transfer.groups, "groups")
        if between[0] == between[1]:
            raise InputError("two different groups", f"{between[0]} twice", "name two, such as --between A,B")
        return transfer.groups.index(between[0]), transfer.groups.index(between[1])
    if len(transfer.groups) < 2:
        raise InputError("two groups or more", f"'{transfer.groups[0]}' alone", "name a column that has them")
    counts = torch.bincount(transfer.validation.group, minlength=len(transfer.groups))
    first, second = counts.argsort(descending=True, stable=True)[:2].tolist()
    return first, second


def named(name: str, pair: tuple[int, int] = (0, 1), smallest: int = SMALLEST, groups: Sequence[str] = ()) -> Measure:
    """The measure of that name; `pair` are the groups whose gap is taken, together with the error, and `groups` the
    names of all."""
    known: dict[str, Measure] = {
        "cross-entropy": cross_entropy,
        "margin": negative_margin,
        "zero-one": zero_one,
        "worst-group": partial(worst_group_error, smallest=smallest),
        "demographic-parity": partial(fair_error, gap=partial(parity_gap, pair=pair, names=groups)),
        "equal-opportunity": partial(fair_error, gap=partial(opportunity_gap, pair=pair, names=groups)),
    }
    if name not in known:
        raise InputError(f"a measure among {', '.join(known)}", repr(name), "use one of these names")
    return known[name]
