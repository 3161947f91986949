"""A pool: many tasks of any length in one set of tensors, and the episodes drawn from it.

All rows lie end to end and a task is a range of them, so an episode is an index gather on
whatever device the pool is on: no worker processes, no per-task Python.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Batch, InputError, Task, Tree
from warmstart.core.trees import take, to_device, tree_map


class Pool(NamedTuple):
    """Tasks end to end: task t owns rows offsets[t] to offsets[t + 1]."""

    x: Tree  # [N, ...]
    y: Tensor  # [N]
    w: Tensor  # [N]
    offsets: Tensor  # [T + 1]
    descriptor: Tree  # [T, ...]
    key: Tensor  # [T]
    group: Tensor  # [T] integer group of a task, for reports; zeros when nothing is known
    ordered: bool = False  # rows are in their order of time: the first are shown, never later ones than are judged

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        return self.offsets[1:] - self.offsets[:-1]

    def to(self, device: torch.device | str) -> Pool:
        *moved, ordered = self
        return Pool(*to_device(tuple(moved), device))._replace(ordered=ordered)

    def select(self, ids: Tensor) -> Pool:
        """A pool of these tasks only."""
        lengths = self.lengths[ids]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        shift = self.offsets[:-1][ids] - offsets[:-1]
        rows = shift.repeat_interleave(lengths) + torch.arange(int(offsets[-1]), device=self.y.device)
        x, y, w = take((self.x, self.y, self.w), rows)
        return Pool(x, y, w, offsets, take(self.descriptor, ids), self.key[ids], self.group[ids], self.ordered)


def make_pool(
    x: Tree,
    y: Tensor,
    lengths: Tensor,
    descriptor: Tree | None = None,
    w: Tensor | None = None,
    key: Tensor | None = None,
    group: Tensor | None = None,
    ordered: bool = False,
) -> Pool:
    """A pool from rows that lie task after task.

    >>> make_pool(torch.zeros(5, 1), torch.zeros(5), torch.tensor([2, 3])).offsets
    tensor([0, 2, 5])
    """
    if int(lengths.sum()) != len(y):
        raise InputError(f"{int(lengths.sum())} rows, the sum of the lengths", f"{len(y)}", "pass every task's rows")
    count = len(lengths)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return Pool(
        x,
        y,
        torch.ones(len(y), device=y.device) if w is None else w,
        offsets,
        torch.zeros(count, 0, device=y.device) if descriptor is None else descriptor,
        torch.arange(count, device=y.device) if key is None else key,
        torch.zeros(count, dtype=torch.long, device=y.device) if group is None else group,
        ordered,
    )


def episodes(
    pool: Pool,
    ids: Tensor,
    support: int,
    query: int,
    generator: torch.Generator | None = None,
    support_rows: Tensor | None = None,
    widest: int | None = None,
    part: int = 3,
) -> Task:
    """Tasks `ids`, each split into at most `support` rows shown and at most `query` rows judged.

    The first rows are shown and the last ones judged: with a generator of a shuffled task, or, where rows are
    ordered, of a task as it stood after a random number of rows. A task keeps at least one row and at most one in
    `part` of its rows (or what the support leaves, if that is more) for the query. `support_rows` [t] limits each
    task's support.
    `widest`, a bound on the lengths, spares a GPU the wait for their maximum.
    """
    lengths = pool.lengths[ids]
    widest = max([1, *lengths.tolist()]) if widest is None else widest
    device = pool.y.device
    place = torch.arange(widest, device=device)
    real = place < lengths[:, None]
    if generator is not None and pool.ordered:
        cut = torch.rand(len(ids), generator=generator, device=generator.device).to(device)
        lengths = torch.minimum(lengths, 2 + (cut * (lengths - 1)).long())
    if generator is None or pool.ordered:
        order = place.expand(len(ids), widest)
    else:
        noise = torch.rand(len(ids), widest, generator=generator, device=generator.device).to(device)
        order = torch.where(real, noise, torch.full_like(noise, 2.0)).argsort(1)
    judged = torch.minimum(
        torch.maximum(torch.maximum(lengths // part, lengths - support), lengths.clamp(max=1)), lengths
    )
    judged = judged.clamp(max=query)
    shown = (lengths - judged).clamp(max=support)
    if support_rows is not None:
        shown = torch.minimum(shown, support_rows.to(shown))
    base = pool.offsets[ids][:, None]

    def gather(first: Tensor, rows: Tensor, capacity: int) -> Batch:
        slot = torch.arange(capacity, device=device)
        mask = slot < rows[:, None]
        column = torch.where(mask, first[:, None] + slot, torch.zeros_like(slot))
        index = torch.where(mask, base + order.gather(1, column), torch.zeros_like(column))
        x, y, w = take((pool.x, pool.y, pool.w), index)
        return pad_safe(Batch(x, y, w, mask.to(w.dtype)))

    zero = torch.zeros_like(lengths)
    return Task(
        gather(zero, shown, support),
        gather(lengths - judged, judged, query),
        take(pool.descriptor, ids),
        pool.key[ids],
    )


def pad_safe(batch: Batch) -> Batch:
    """Zeros in every padded row, so that padding can never leak."""

    def clear(leaf: Tensor) -> Tensor:
        keep = batch.mask.bool().reshape(batch.mask.shape + (1,) * (leaf.dim() - batch.mask.dim()))
        return torch.where(keep, leaf, torch.zeros_like(leaf))

    return Batch(tree_map(clear, batch.x), clear(batch.y), clear(batch.w), batch.mask)


def limit_support(task: Task, rows: int) -> Task:
    """The same tasks with only their first `rows` support rows."""
    support = task.support
    slot = torch.arange(support.mask.shape[-1], device=support.mask.device)
    mask = support.mask * (slot < rows)
    return task._replace(support=pad_safe(support._replace(mask=mask)))


def buckets(lengths: Tensor, count: int = 4) -> list[Tensor]:
    """Task ids in up to `count` groups of similar length, so that little is padded.

    >>> [ids.tolist() for ids in buckets(torch.tensor([3, 100, 4, 90]), count=2)]
    [[0, 2], [3, 1]]
    """
    order = lengths.argsort(stable=True)
    return [part for part in order.tensor_split(count) if len(part)]
