"""A memory of vectors that are compared by distance: who is nearest, who leaves when it is full.

One interface over three searches: `exact`, a product of matrices, which is the default and runs anywhere;
`tree`, the kd-tree of Yu et al. (2021); `faiss`, for millions of entries. The last two work on the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor

from warmstart.core import InputError
from warmstart.core.trees import Rows, dense
from warmstart.engine.native import load

SEARCHES = ("exact", "tree", "faiss")
EMPTY = -1
PARTS = 3  # of a key
FAR = 1e30  # |vector|^2 where there is none: more than any, and finite, as all that is saved must be


class Memory(NamedTuple):
    key: Tensor  # [m] whose entry it is; EMPTY where there is none
    entry: Tensor  # [m, d + 2] a vector, what is remembered with it, and |vector|^2, FAR where there is none
    used: Tensor  # [m] when it was last of use


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
    nearest_of = near.reshape(block, size // block, *near.shape[1:]).amax(0).movedim(0, -1)
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
    _, share = _shares(query, vector, real, sharpness, floor)
    return (share * value).sum(-1)


def _shares(query: Tensor, vector: Tensor, real: Tensor, sharpness: float, floor: float) -> tuple[Tensor, Tensor]:
    """How far apart, [*t, k, d], and what an entry counts, [*t, k]."""
    apart = query.unsqueeze(-2) - vector
    s = torch.exp(-sharpness * (apart * apart).sum(-1)) * real
    return apart, s / (s.sum(-1, keepdim=True) + floor)


class Look(NamedTuple):
    """The kernel mean of each query's nearest entries, and its slopes."""

    near: Near
    mean: Tensor  # [t]
    by_query: Tensor  # [t, d]
    by_entry: Tensor  # [t, k, d + 1] in its vector and its value


def look(
    memory: Memory, query: Tensor, own: Tensor, k: int, sharpness: float, floor: float, how: str = "exact"
) -> Look:
    """`nearest`, `kernel_mean` and its derivative,

    d mean / d value_k = a_k = s_k / (sum_j s_j + floor),   d mean / d s_k = (value_k - mean) / (sum_j s_j + floor),
    d s_k / d vector_k = 2 sharpness s_k (query - vector_k) = -d s_k / d query,

    of queries [t, d], of which it is not to be differentiated itself. On a CPU one function in C++, where the machine
    can compile it.
    """
    asked = *query.shape[:1], memory.entry.shape[1] - 2
    fits = how == "exact" and query.shape == asked and own.shape == asked[:1] and len(memory.key) > 0
    if fits and _by_hand((query, memory.entry), (own, memory.key)):
        place, real, *found = _LOOK(query, own, memory.entry, memory.key, k, sharpness, floor)
        return Look(Near(place, real), *found)
    near = nearest(memory, query, own, k, how)
    vector, value = entries(memory, near.place)
    apart, by_value = _shares(query, vector, near.real, sharpness, floor)
    mean = (by_value * value).sum(-1)
    by_vector = ((2 * sharpness) * by_value * (value - mean.unsqueeze(-1))).unsqueeze(-1) * apart
    return Look(near, mean, -by_vector.sum(-2), torch.cat([by_vector, by_value.unsqueeze(-1)], -1))


def _looked(query: Tensor, own: Tensor, entry: Tensor, key: Tensor, k: int, sharpness: float, floor: float) -> Any:
    found = _room(query, own, entry, key, k, sharpness, floor)
    count = found[0].shape[1]
    _call("look", query.dtype, entry, key, *entry.shape, query, own, len(query), count, k, sharpness, floor, *found)
    return found


def _room(query: Tensor, own: Tensor, entry: Tensor, key: Tensor, k: int, sharpness: float, floor: float) -> Any:
    (many, d), count = query.shape, min(k + 1, len(entry))
    place, real = key.new_empty(many, count), query.new_empty(many, count)
    return place, real, query.new_empty(many), query.new_empty(many, d), query.new_empty(many, count, d + 1)


def posted(key: Tensor, vector: Tensor, value: Tensor, sets: int) -> Rows:
    """Users [n] who ask to be remembered, by the remainder of their key: such rows may be added up. The quotient is
    told in parts that are exact in single precision, with their squares."""
    table = vector.new_empty(sets, 0)
    if vector.ndim == 2 and key.shape == value.shape == vector.shape[:1] and _by_hand((vector, value), (key,)):
        home, come = _POST(key, vector, value, sets)
        return Rows(home, come, table)
    quotient = torch.div(key, sets, rounding_mode="floor")
    parts = torch.stack([quotient & 1023, (quotient >> 10) & 1023, quotient >> 20], -1).to(vector.dtype)
    row = torch.cat([torch.ones_like(parts[..., :1]), parts, parts * parts, vector, value.unsqueeze(-1)], -1)
    return Rows(key % sets, row, table)


def remember(memory: Memory, come: Rows, now: Tensor, trained: Rows, rate: Tensor) -> Memory:
    """Entries descend by `rate` times the rows of `trained` [n, d + 2], whose last number tells of a use; then users
    who have come are written down, each in the set of places that is the remainder of its key: over the one of the
    same key, else over the one that was least recently used. Of two different ones of a set none is written. `now` is
    later than all that was before. On a CPU one function in C++, as above.

    A user who came twice has the same entry twice, as long as both have the same descriptor.
    """
    sets = len(come.table)
    rows, width = memory.entry.shape
    fits = rows % sets == 0 and come.row.shape[1] == width + 2 * PARTS and trained.row.shape[1] == width
    real = memory.entry, memory.used, come.row, now, trained.row, rate
    if fits and _by_hand(real, (memory.key, come.place, trained.place)):
        return Memory(*_REMEMBER(*memory, sets, come.place, come.row, now, trained.place, trained.row, rate))
    key, entry, alone = _arrived(come)
    used = memory.used.scatter_reduce(0, trained.place, torch.where(trained.row[:, -1] > 0, now, EMPTY), "amax")
    held = memory.key.view(sets, -1).index_select(0, come.place)
    since = used.view(sets, -1).index_select(0, come.place)
    place = come.place * held.shape[1] + torch.where(held == key.unsqueeze(1), -torch.inf, since).argmin(1)
    entries = memory.entry[:, :-1].index_add(0, trained.place, trained.row[:, :-1] * -rate)
    return filled_memory(
        memory.key.index_copy(0, place, torch.where(alone, key, memory.key.index_select(0, place))),
        entries.index_copy(0, place, torch.where(alone.unsqueeze(1), entry, entries.index_select(0, place))),
        used.scatter_reduce(0, place, torch.where(alone, now, EMPTY), "amax"),
    )


def _arrived(come: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and entries, and which of them stand for one user."""
    numbers, entry = torch.split(come.row, [1 + 2 * PARTS, come.row.shape[1] - 1 - 2 * PARTS], 1)
    total: Tensor = dense(come._replace(row=numbers.double())).index_select(0, come.place)
    number, part, square = torch.split(total, [1, PARTS, PARTS], 1)
    # number * square - part^2 is 0 for one whole number that came `number` times, else number - 1 and more
    alone = (number * (square - 0.5) < part * part).all(1)
    low, middle, high = (part / number.clamp(min=1)).long().unbind(1)
    key = (low + (middle << 10) + (high << 20)) * len(come.table) + come.place
    return key, entry / numbers[:, :1].clamp(min=1), alone & (key != EMPTY)  # of several where ranks have added up


def _remembered(
    key: Tensor, entry: Tensor, used: Tensor, sets: int, home: Tensor, come: Tensor, now: Tensor,
    where: Tensor, by: Tensor, rate: Tensor,
) -> Any:  # fmt: skip
    new = _copies(key, entry, used)
    written, moved = (home, come, len(home)), (where, by, len(where), rate)
    _call("remember", entry.dtype, key, entry, used, *entry.shape, sets, *written, *moved, now, *new)
    return new


def _posted(key: Tensor, vector: Tensor, value: Tensor, sets: int) -> Any:
    home, come = _letters(key, vector, value, sets)
    _call("post", vector.dtype, key, vector, value, *vector.shape, sets, home, come)
    return home, come


def _letters(key: Tensor, vector: Tensor, value: Tensor, sets: int) -> Any:
    many, d = vector.shape
    return key.new_empty(many), vector.new_empty(many, 1 + 2 * PARTS + d + 1)


def _copies(key: Tensor, entry: Tensor, used: Tensor, *rest: Any) -> Any:
    return key.new_empty(key.shape), entry.new_empty(entry.shape), used.new_empty(used.shape)


def _operation(name: str, takes: str, gives: int, run: Callable[..., Any], room: Callable[..., Any]) -> Any:
    """What a recorded program sees of a function in C++; `room` makes tensors like its results."""
    torch.library.define(f"warmstart::{name}", f"({takes}) -> ({', '.join(['Tensor'] * gives)})")
    torch.library.impl(f"warmstart::{name}", "CPU", run)
    torch.library.register_fake(f"warmstart::{name}", room)
    return getattr(torch.ops.warmstart, name).default


_LOOK = _operation(
    "look",
    "Tensor query, Tensor own, Tensor entry, Tensor key, int k, float sharpness, float floor",
    5,
    _looked,
    _room,
)
_POST = _operation("post", "Tensor key, Tensor vector, Tensor value, int sets", 2, _posted, _letters)
_REMEMBER = _operation(
    "remember",
    "Tensor key, Tensor entry, Tensor used, int sets, Tensor home, Tensor come, Tensor now, "
    "Tensor where, Tensor by, Tensor rate",
    3,
    _remembered,
    _copies,
)


def _by_hand(real: Sequence[Tensor], whole: Sequence[Tensor]) -> bool:
    """Whether functions in C++ take it: all on a CPU, real numbers of one precision and long whole ones."""
    kind = real[0].dtype
    alike = all(x.dtype == kind for x in real) and all(x.dtype == torch.long for x in whole)
    near = all(x.device.type == "cpu" for x in (*real, *whole))
    return alike and near and kind in (torch.float32, torch.float64) and _library(kind) is not None


@cache
def _library(real: torch.dtype) -> Any:
    """The functions of `memory.cpp`; None where they cannot be compiled."""
    return load(Path(__file__).with_suffix(".cpp").read_text(), real)


def _call(name: str, real: torch.dtype, *given: Any) -> None:
    """One of them, which takes pointers to what is contiguous, whole numbers and double ones."""
    kept = [x.contiguous() if isinstance(x, Tensor) else x for x in given]
    getattr(_library(real), name)(*[_word(x) for x in kept])


def _word(x: Any) -> Any:
    if isinstance(x, Tensor):
        return ctypes.c_void_p(x.data_ptr())
    return ctypes.c_int64(x) if isinstance(x, int) else ctypes.c_double(x)


def _square(vector: Tensor) -> Tensor:
    return (vector * vector).sum(-1)
