"""A memory of vectors that are compared by distance: who is nearest, who leaves when it is full.

One interface over three searches: `exact`, a product of matrices, which is the default and runs anywhere;
`tree`, the kd-tree of Yu et al. (2021); `faiss`, for millions of entries. The last two work on the host.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor

from warmstart.core import InputError

SEARCHES = ("exact", "tree", "faiss")
EMPTY = -1
FAR = 1e30  # |vector|^2 where there is none: more than any, and finite, as all that is saved must be


class Memory(NamedTuple):
    key: Tensor  # [m] whose entry it is; EMPTY where there is none
    entry: Tensor  # [m, d + 2] a vector, what is remembered with it, and |vector|^2, FAR where there is none
    used: Tensor  # [m] when it was last of use


class Moved(NamedTuple):
    """Entries that are trained, where a place may come more than once."""

    place: Tensor  # [n]
    by: Tensor  # [n, d + 2], of which the last column does not count
    real: Tensor  # [n] whether that was a use of it


class Near(NamedTuple):
    """The nearest entries of each query, nearest first."""

    place: Tensor  # [*t, k] rows of the memory
    real: Tensor  # [*t, k] 1 where there is one


class Entries(NamedTuple):
    vector: Tensor  # [*t, k, d]
    value: Tensor  # [*t, k] what is remembered with it


def empty_memory(size: int, width: int, like: Tensor) -> Memory:
    key = torch.full((size,), EMPTY, dtype=torch.long, device=like.device)
    return filled_memory(key, like.new_zeros(size, width + 1), like.new_full((size,), -1.0))


def filled_memory(key: Tensor, entry: Tensor, used: Tensor) -> Memory:
    """Of entries [m, d + 1]: a vector, and what is remembered with it."""
    square = torch.where(key == EMPTY, FAR, _square(entry[:, :-1]))
    return Memory(key, torch.cat([entry, square.unsqueeze(1)], 1), used)


def check_search(how: str) -> None:
    if how not in SEARCHES:
        raise InputError(f"a search {', '.join(SEARCHES[:-1])} or {SEARCHES[-1]}", repr(how), "use one of these names")
    if how == "faiss":
        _faiss()


def nearest(memory: Memory, query: Tensor, own: Tensor, k: int, how: str = "exact") -> Near:
    """The k entries nearest to one query [d], or to each of [t, d], whose key is not `own` [*t]."""
    # one more, in case its own is among them
    count = min(k + 1, len(memory.key))
    place = _exact(query, memory.entry, count) if how == "exact" else _host(query, memory, count, how)
    key = memory.key.index_select(0, place.flatten()).reshape(place.shape)
    real = (key != EMPTY) & (key != own.unsqueeze(-1))
    kept = real & (real.cumsum(-1) <= k)
    return Near(place, kept.to(query.dtype))


def _exact(query: Tensor, entry: Tensor, count: int) -> Tensor:
    """By q.v - |v|^2 / 2, one product of matrices, which is less the farther: in -|q - v|^2 / 2 all else is one number.

    The nearest are in the blocks whose own nearest are nearest, so most entries are looked at once.
    """
    one = (*query.shape[:-1], 1)
    asked = torch.cat([query, query.new_zeros(one), query.new_full(one, -0.5)], -1)
    near = entry @ asked.movedim(-1, 0)  # [m, *t], at which a CPU is faster
    size, block = len(entry), _block(len(entry), count)
    if not block:
        return torch.topk(near, count, 0).indices.movedim(0, -1)
    nearest_of = near.reshape(block, -1, *near.shape[1:]).amax(0).movedim(0, -1)
    first = torch.topk(nearest_of, count, sorted=False).indices
    place = (first.unsqueeze(-1) + torch.arange(0, size, size // block, device=entry.device)).flatten(-2)
    found = torch.topk(near.movedim(0, -1).gather(-1, place), count).indices
    return place.gather(-1, found)


def _block(size: int, count: int) -> int:
    """Entries in a block, so that there are about as many blocks as entries in `count` of them; 0 for no blocks.

    >>> _block(10_000, 21), _block(100, 21), _block(3 * 127, 21)
    (20, 0, 0)
    """
    fitting = [block for block in range(4, size // (4 * count) + 1) if size % block == 0]
    return min(fitting, key=lambda block: abs(block - (size / count) ** 0.5), default=0)


def _host(query: Tensor, memory: Memory, count: int, how: str) -> Tensor:
    found: Tensor = _searched(query.detach(), memory.entry[:, :-2].detach(), memory.key, count, how)
    return found


@torch.library.custom_op("warmstart::nearest", mutates_args=())
def _searched(query: Tensor, vector: Tensor, key: Tensor, count: int, how: str) -> Tensor:
    """Rows of the memory, those that hold nothing at the end; an operation, so that vmap and tracing pass by it."""
    filled = np.flatnonzero(key.cpu().numpy() != EMPTY)
    hollow = np.flatnonzero(key.cpu().numpy() == EMPTY)
    entries, wanted = vector.cpu().numpy()[filled], query.reshape(-1, query.shape[-1]).cpu().numpy()
    k = min(count, len(filled))
    found = _ranked(entries, wanted, k, how) if k and len(wanted) else np.zeros((len(wanted), 0), dtype=np.int64)
    rest = np.broadcast_to(hollow[: count - k], (len(wanted), count - k))
    place = np.concatenate([filled[found], rest], 1).astype(np.int64)
    return torch.from_numpy(place).to(query.device).reshape(*query.shape[:-1], count)


@_searched.register_fake
def _(query: Tensor, vector: Tensor, key: Tensor, count: int, how: str) -> Tensor:
    return query.new_empty((*query.shape[:-1], count), dtype=torch.long)


def _stacked(info: Any, in_dims: Any, query: Tensor, vector: Tensor, key: Tensor, count: int, how: str) -> Any:
    """vmap over queries, of one memory."""
    if in_dims[1] is not None or in_dims[2] is not None:
        raise InputError("one memory for all tasks", "a stack of memories", "search them one by one")
    return _searched(query.movedim(in_dims[0], 0), vector, key, count, how), 0


torch.library.register_vmap(_searched, _stacked)


def _ranked(entries: Any, wanted: Any, k: int, how: str) -> Any:
    if how == "tree":
        return np.asarray(cKDTree(entries).query(wanted, k=[*range(1, k + 1)])[1], dtype=np.int64)
    index = _faiss().IndexFlatL2(entries.shape[1])
    index.add(np.ascontiguousarray(entries, dtype=np.float32))
    return index.search(np.ascontiguousarray(wanted, dtype=np.float32), k)[1]


def _faiss() -> Any:
    try:
        import faiss  # imported here: it is an extra
    except ImportError:
        raise InputError("faiss, for this search", "it is not installed", "pip install 'warmstart[faiss]'") from None
    return faiss


def entries(memory: Memory, place: Tensor) -> Entries:
    vector, value, _ = torch.split(F.embedding(place, memory.entry), [memory.entry.shape[1] - 2, 1, 1], -1)
    return Entries(vector, value.squeeze(-1))


def kernel_mean(query: Tensor, vector: Tensor, value: Tensor, real: Tensor, sharpness: float, floor: float) -> Tensor:
    """sum_k s_k value_k / (sum_k s_k + floor), s_k = exp(-sharpness |query - vector_k|^2).

    [*t] of queries [*t, d], vectors [*t, k, d] and values [*t, k], of which those count that are real.
    """
    found: Tensor = _KernelMean.apply(query, vector, value, real, sharpness, floor)  # type: ignore[no-untyped-call]
    return found


def _shares(query: Tensor, vector: Tensor, real: Tensor, sharpness: float, floor: float) -> tuple[Tensor, Tensor]:
    """How far apart, [*t, k, d], and what an entry counts, [*t, k]."""
    apart = query.unsqueeze(-2) - vector
    s = torch.exp(-sharpness * (apart * apart).sum(-1)) * real
    return apart, s / (s.sum(-1, keepdim=True) + floor)


class _KernelMean(torch.autograd.Function):
    """With a derivative of fewer operations than are recorded without it, made of the inputs, so that it has one too:

    d mean / d value_k = a_k = s_k / (sum_j s_j + floor),   d mean / d s_k = (value_k - mean) / (sum_j s_j + floor),
    d s_k / d vector_k = 2 sharpness s_k (query - vector_k) = -d s_k / d query
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(query: Tensor, vector: Tensor, value: Tensor, real: Tensor, sharpness: float, floor: float) -> Tensor:
        return (_shares(query, vector, real, sharpness, floor)[1] * value).sum(-1, keepdim=True).squeeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.sharpness, ctx.floor = inputs[4:]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        query, vector, value, real = ctx.saved_tensors
        apart, share = _shares(query, vector, real, ctx.sharpness, ctx.floor)
        by_value = slope.unsqueeze(-1) * share
        mean = (share * value).sum(-1, keepdim=True)
        by_vector = ((2 * ctx.sharpness) * by_value * (value - mean)).unsqueeze(-1) * apart
        return -by_vector.sum(-2), by_vector, by_value, None, None, None


def remember(
    memory: Memory, sets: int, key: Tensor, entry: Tensor, real: Tensor, now: Tensor, moved: Moved | None = None
) -> Memory:
    """Entries [n, d + 1] written down where `real`, each in the set of places that is the remainder of its key: over
    the one of the same key, else over the one that was least recently used. Two of one set must be the same. Before
    that, entries are moved. `now` is later than all that was before."""
    used = memory.used
    if moved is not None:
        used = used.scatter_reduce(0, moved.place, torch.where(moved.real, now, EMPTY), "amax")
    group = key % sets
    held = memory.key.view(sets, -1).index_select(0, group)
    way = torch.where(held == key.unsqueeze(1), -torch.inf, used.view(sets, -1).index_select(0, group)).argmin(1)
    place = group * held.shape[1] + way
    where, by = moved[:2] if moved else (place[:0], memory.entry[:0])
    return Memory(
        memory.key.index_copy(0, place, torch.where(real, key, memory.key.index_select(0, place))),
        _rewritten(memory.entry, where, by, place, entry, real),
        used.scatter_reduce(0, place, torch.where(real, now, EMPTY), "amax"),
    )


@torch.library.custom_op("warmstart::rewritten", mutates_args=())
def _rewritten(table: Tensor, where: Tensor, by: Tensor, place: Tensor, row: Tensor, real: Tensor) -> Tensor:
    """Rows moved, then rows put: an operation, so that the table is copied once, which is most of the cost."""
    new = table.clone().index_add_(0, where, by)
    moved = new.index_select(0, where)
    new[:, -1].index_copy_(0, where, _square(moved[:, :-2]).masked_fill_(moved[:, -1] >= FAR, FAR))
    put = torch.cat([row, _square(row[:, :-1]).unsqueeze(1)], 1)
    return new.index_copy_(0, place, torch.where(real.unsqueeze(1), put, new.index_select(0, place)))


@_rewritten.register_fake
def _(table: Tensor, where: Tensor, by: Tensor, place: Tensor, row: Tensor, real: Tensor) -> Tensor:
    return torch.empty_like(table)


def _square(vector: Tensor) -> Tensor:
    return (vector * vector).sum(-1)
