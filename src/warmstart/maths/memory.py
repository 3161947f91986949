"""A memory of vectors that are compared by distance: who is nearest, who leaves when it is full.

One interface over three searches: `exact`, a product of matrices, which is the default and runs anywhere;
`tree`, the kd-tree of Yu et al. (2021); `faiss`, for millions of entries. The last two work on the host.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from warmstart.core import InputError

SEARCHES = ("exact", "tree", "faiss")
EMPTY = -1
BLOCK = 16


class Memory(NamedTuple):
    key: Tensor  # [m] whose entry it is; EMPTY where there is none
    entry: Tensor  # [m, d + 1] a vector, and what is remembered with it
    used: Tensor  # [m] when it was last of use


class Near(NamedTuple):
    """The nearest entries of each query, nearest first."""

    place: Tensor  # [*t, k] rows of the memory
    real: Tensor  # [*t, k] 1 where there is one


def empty_memory(size: int, width: int, like: Tensor) -> Memory:
    key = torch.full((size,), EMPTY, dtype=torch.long, device=like.device)
    return Memory(key, like.new_zeros(size, width + 1), like.new_full((size,), -1.0))


def check_search(how: str) -> None:
    if how not in SEARCHES:
        raise InputError(f"a search {', '.join(SEARCHES[:-1])} or {SEARCHES[-1]}", repr(how), "use one of these names")
    if how == "faiss":
        _faiss()


def nearest(memory: Memory, query: Tensor, own: Tensor, k: int, how: str = "exact") -> Near:
    """The k entries nearest to each query [*t, d] whose key is not `own` [*t]."""
    # one more, in case its own is among them
    count = min(k + 1, len(memory.key))
    find = _exact if how == "exact" else partial(_host, how)
    place = find(query, memory.entry[:, :-1], memory.key, count)
    key = memory.key[place]
    real = (key != EMPTY) & (key != own.unsqueeze(-1))
    kept = real & (real.long().cumsum(-1) <= k)
    return Near(place, kept.to(query.dtype))


def _exact(query: Tensor, vector: Tensor, key: Tensor, count: int) -> Tensor:
    """By |v|^2 - 2 q.v, in which the same for every entry, |q|^2, is left out.

    The nearest are in the blocks whose own nearest are nearest, so most entries are looked at once.
    """
    far = torch.where(key == EMPTY, torch.inf, torch.einsum("md,md->m", vector, vector))
    distance = (-2 * query) @ vector.mT + far
    blocks = len(key) // BLOCK
    if blocks * BLOCK != len(key) or blocks < 4 * count:
        return torch.topk(distance, count, largest=False).indices
    nearest_of = distance.reshape(*distance.shape[:-1], BLOCK, blocks).amin(-2)
    block = torch.topk(nearest_of, count, largest=False, sorted=False).indices
    place = (block.unsqueeze(-1) + blocks * torch.arange(BLOCK, device=key.device)).flatten(-2)
    found = torch.topk(distance.gather(-1, place), count, largest=False).indices
    return place.gather(-1, found)


def _host(how: str, query: Tensor, vector: Tensor, key: Tensor, count: int) -> Tensor:
    found: Tensor = _searched(query.detach(), vector.detach(), key, count, how)
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


def kernel_mean(query: Tensor, entry: Tensor, real: Tensor, sharpness: float, floor: float) -> Tensor:
    """sum_k s_k value_k / (sum_k s_k + floor), s_k = exp(-sharpness |query - vector_k|^2).

    [*t] of queries [*t, d] and entries [*t, k, d + 1].
    """
    s = torch.exp(-sharpness * ((query.unsqueeze(-2) - entry[..., :-1]) ** 2).sum(-1)) * real
    return (s * entry[..., -1]).sum(-1) / (s.sum(-1) + floor)


def remember(memory: Memory, key: Tensor, entry: Tensor, real: Tensor, now: Tensor) -> Memory:
    """At most one entry written to each of [s] sets of neighbouring places: over the one of the same key, else over
    the one that was least recently used; where not `real`, none."""
    sets = len(key)
    same = memory.key.view(sets, -1) == key.unsqueeze(1)
    way = torch.where(same, -torch.inf, memory.used.view(sets, -1)).argmin(1)
    place = torch.arange(sets, device=key.device) * (len(memory.key) // sets) + way

    def put(old: Tensor, new: Tensor) -> Tensor:
        chosen = real.reshape(-1, *(1 for _ in old.shape[1:]))
        return old.index_copy(0, place, torch.where(chosen, new.to(old.dtype), old[place]))

    return Memory(put(memory.key, key), put(memory.entry, entry), put(memory.used, now.expand(sets)))
