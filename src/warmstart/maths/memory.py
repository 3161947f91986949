"""A memory of vectors that are compared by distance: who is nearest, who leaves when it is full.

One interface over three searches: `exact`, a product of matrices, which is the default and runs anywhere;
`tree`, the kd-tree of Yu et al. (2021); `faiss`, for millions of entries. The last two work on the host.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from warmstart.core import InputError

SEARCHES = ("exact", "tree", "faiss")
EMPTY = -1


class Memory(NamedTuple):
    key: Tensor  # [m] whose entry it is; EMPTY where there is none
    vector: Tensor  # [m, d]
    value: Tensor  # [m] what is remembered with it
    used: Tensor  # [m] when it was last of use


class Near(NamedTuple):
    """The nearest entries of each query, nearest first."""

    place: Tensor  # [*t, k] rows of the memory
    real: Tensor  # [*t, k] 1 where there is one


def empty_memory(size: int, width: int, like: Tensor) -> Memory:
    if size < 1:
        raise InputError("room for at least one entry", f"{size}", "raise the memory's size")
    key = torch.full((size,), EMPTY, dtype=torch.long, device=like.device)
    return Memory(key, like.new_zeros(size, width), like.new_zeros(size), like.new_full((size,), -1.0))


def check_search(how: str) -> None:
    if how not in SEARCHES:
        raise InputError(f"a search {', '.join(SEARCHES[:-1])} or {SEARCHES[-1]}", repr(how), "use one of these names")
    if how == "faiss":
        _faiss()


def nearest(memory: Memory, query: Tensor, own: Tensor, k: int, how: str = "exact") -> Near:
    """The k entries nearest to each query [*t, d] whose key is not `own` [*t]."""
    # one more, in case its own is among them
    count = min(k + 1, len(memory.key))
    place = _exact(query, memory.vector, memory.key, count) if how == "exact" else _host(memory, query, count, how)
    key = memory.key[place]
    real = (key != EMPTY) & (key != own.unsqueeze(-1))
    kept = real & (real.long().cumsum(-1) <= k)
    return Near(place, kept.to(query.dtype))


def _exact(query: Tensor, vector: Tensor, key: Tensor, count: int) -> Tensor:
    """By |v|^2 - 2 q.v, in which the same for every entry, |q|^2, is left out."""
    far = torch.where(key == EMPTY, torch.inf, (vector * vector).sum(-1))
    return torch.topk(far - 2 * query @ vector.mT, count, largest=False).indices


def _host(memory: Memory, query: Tensor, count: int, how: str) -> Tensor:
    found: Tensor = _searched(query.detach(), memory.vector.detach(), memory.key, count, how)
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


def kernel_mean(query: Tensor, vector: Tensor, value: Tensor, real: Tensor, sharpness: float, floor: float) -> Tensor:
    """sum_k s_k value_k / (sum_k s_k + floor), s_k = exp(-sharpness |query - vector_k|^2): [*t] of [*t, d], [*t, k, d]."""
    s = torch.exp(-sharpness * ((query.unsqueeze(-2) - vector) ** 2).sum(-1)) * real
    return (s * value).sum(-1) / (s.sum(-1) + floor)


def remember(memory: Memory, key: Tensor, vector: Tensor, value: Tensor, real: Tensor, now: Tensor) -> Memory:
    """Entries [a] written: over the one of the same key, else where the least recently used is. Keys are distinct."""
    same = (key.unsqueeze(-1) == memory.key) & real.unsqueeze(-1)
    known = same.any(-1)
    own = same.long().argmax(-1)
    size, count = len(memory.key), min(len(key), len(memory.key))
    used = torch.where(same.any(0), now, memory.used)
    free = torch.sort(used, stable=True).indices[:count]
    fresh = real & ~known
    turn = fresh.long().cumsum(0) - 1
    written = known | (fresh & (turn < count))
    # one row more, which takes what is not written
    place = torch.where(written, torch.where(known, own, free[turn.clamp(0, count - 1)]), size)

    def put(old: Tensor, new: Tensor) -> Tensor:
        longer = torch.cat([old, old[:1]])
        return longer.index_copy(0, place, new.to(old.dtype))[:size]

    return Memory(
        put(memory.key, key), put(memory.vector, vector), put(memory.value, value), put(used, now.expand(len(key)))
    )
