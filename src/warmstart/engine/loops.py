"""Steps of a program, which are operations on parts of buffers, as loops in C++.

Steps entry by entry over the same shape share a loop, in which what only they need is never stored. A buffer is used
again once nobody needs what it holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.engine.triton_ops import Shape, Unsupported

TYPES = {torch.float32: "float", torch.float64: "double", torch.int64: "long long", torch.bool: "bool"}
LARGEST_WORK = 2**22  # bytes of all buffers; beyond, they leave the cache
LINE = 64  # bytes, to which buffers are aligned


class Place(NamedTuple):
    """Where a tensor of the program lies."""

    name: str  # of a buffer; "" for a number
    layout: Tensor  # on the device meta: shape, type, strides, and the offset in the buffer
    number: float = 0.0

    def same(self, other: Place) -> bool:
        a, b = self.layout, other.layout
        where = (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())
        return self.name == other.name and where


class Step(NamedTuple):
    """`out` gets, or with `total` adds up, an expression of the arguments, entry by entry; or a matrix product."""

    out: Place
    text: str  # where {i} is the i-th argument; "" for a product
    args: tuple[Any, ...]  # places, and numbers
    total: bool = False

    @property
    def shape(self) -> Shape:
        return tuple(self.args[0].layout.shape if self.total else self.out.layout.shape)

    @property
    def reads(self) -> list[Place]:
        return [arg for arg in self.args if isinstance(arg, Place) and arg.name]

    def renamed(self, names: dict[str, str]) -> Step:
        """With other buffers."""

        def new(arg: Any) -> Any:
            return arg._replace(name=names.get(arg.name, arg.name)) if isinstance(arg, Place) else arg

        return self._replace(out=new(self.out), args=tuple([new(arg) for arg in self.args]))

    @property
    def shares(self) -> bool:
        """Whether other steps may be in its loop."""
        return bool(self.text) and not self.total


def loops(steps: list[Step]) -> tuple[list[str], int]:
    """The text of a program, and the bytes that its buffers (all names but x... and y...) need at `work`."""
    groups = list(_grouped(steps))
    kept = _kept(groups)
    slots, size = _allocated(groups, kept)
    lines = [f"{kind}* const {slot} = ({kind}*)(work + {at});" for slot, kind, at in sorted(set(slots.values()))]
    names = {name: slot for name, (slot, _, _) in slots.items()}
    return lines + [line for group in groups for line in _loop(group, names, kept)], size


def _grouped(steps: list[Step]) -> Iterator[list[Step]]:
    """Groups of one loop each, in an order in which each finds what it needs; small ones first, since a large one
    takes in more when nothing small stands between."""
    left = list(steps)
    while left:
        waits = {step.out.name for step in left}
        ready = [step for step in left if not any(place.name in waits for place in step.reads)]
        group = [min(ready, key=lambda step: math.prod(step.shape))]
        behind: list[Step] = []
        waits = set()
        for step in left:
            if step is group[0]:
                continue
            if _joins(step, group) and not any(place.name in waits for place in step.reads):
                group.append(step)
            else:
                behind.append(step)
                waits.add(step.out.name)
        left = behind
        yield group


def _kept(groups: list[list[Step]]) -> set[str]:
    """Which buffers are stored: outputs, and what another group reads."""
    found: set[str] = set()
    for group in groups:
        inside = {step.out.name for step in group}
        found |= {name for name in inside if name[0] == "y"}
        found |= {place.name for step in group for place in step.reads if place.name not in inside}
    return found


def _joins(step: Step, group: list[Step]) -> bool:
    if not group:
        return True
    if not (step.shares and group[0].shares and step.shape == group[0].shape):
        return False
    inside = [other.out for other in group]
    return all(
        any(place.same(out) for out in inside) or all(place.name != out.name for out in inside) for place in step.reads
    )


def _allocated(groups: list[list[Step]], kept: set[str]) -> tuple[dict[str, tuple[str, str, int]], int]:
    """For each buffer a pointer, its type and its offset; buffers of one pointer follow each other in time."""
    last = {place.name: i for i, group in enumerate(groups) for step in group for place in (step.out, *step.reads)}
    free: dict[tuple[str, int], list[tuple[str, str, int]]] = {}
    slots: dict[str, tuple[str, str, int]] = {}
    spare: dict[str, tuple[str, int]] = {}
    size = 0
    for i, group in enumerate(groups):
        for step in group:
            name, layout = step.out.name, step.out.layout
            if name in slots or name not in kept or name[0] in "xy":
                continue
            kind, length = TYPES[layout.dtype], layout.untyped_storage().nbytes()
            spare[name] = kind, -(-length // LINE) * LINE
            if not free.get(spare[name]):
                free[spare[name]] = [(f"w{len(slots)}", kind, size)]
                size += spare[name][1]
            slots[name] = free[spare[name]].pop()
        for name in [name for name in slots if last[name] == i]:
            free[spare[name]].append(slots[name])
    if size > LARGEST_WORK:
        raise Unsupported("much memory")
    return slots, size


def _loop(group: list[Step], names: dict[str, str], kept: set[str]) -> list[str]:
    first = group[0]
    if not first.text:
        return _products(first, names)
    places = [place for step in group for place in (step.out, *step.reads)]
    order = first.args[0] if first.total else first.out
    sizes, strides = _nest(first.shape, order.layout.stride(), [place.layout for place in places])
    cells = iter([_cell(place, names, [row[j] for row in strides]) for j, place in enumerate(places)])
    heads = [f"for (int i{k} = 0; i{k} < {size}; i{k}++)" for k, size in enumerate(sizes)]
    if first.total:
        out = names.get(first.out.name, first.out.name)
        target, source = next(cells), [next(cells) for _ in first.reads]
        add = f"{target} += {_expression(first, source, [])};"
        return [f"std::memset({out}, 0, {first.out.layout.untyped_storage().nbytes()});", *heads, add]
    body: list[str] = []
    inside: list[tuple[Place, str]] = []  # what the loop holds already
    for k, step in enumerate(group):
        target, source = next(cells), [next(cells) for _ in step.reads]
        body.append(f"const {TYPES[step.out.layout.dtype]} t{k} = {_expression(step, source, inside)};")
        inside.append((step.out, f"t{k}"))
        if step.out.name in kept:
            body.append(f"{target} = t{k};")
    if heads:
        heads.insert(-1, "#pragma GCC ivdep")
    return [*heads, "{ " + " ".join(body) + " }"]


def _nest(shape: Shape, order: tuple[int, ...], layouts: list[Tensor]) -> tuple[list[int], list[list[int]]]:
    """The lengths of nested loops over a shape, the longest strides outside, and in each the strides of all layouts.
    Loops that are one for all layouts are one."""
    sizes: list[int] = []
    strides: list[list[int]] = []
    whole = [layout.expand(shape).stride() for layout in layouts]
    for axis in sorted((axis for axis in range(len(shape)) if shape[axis] != 1), key=lambda axis: -order[axis]):
        row = [stride[axis] for stride in whole]
        if sizes and strides[-1] == [step * shape[axis] for step in row]:
            sizes[-1], strides[-1] = sizes[-1] * shape[axis], row
        else:
            sizes, strides = [*sizes, shape[axis]], [*strides, row]
    return sizes, strides


def _cell(place: Place, names: dict[str, str], strides: list[int]) -> str:
    terms = [str(place.layout.storage_offset())] + [f"i{k} * {step}" for k, step in enumerate(strides) if step]
    return f"{names.get(place.name, place.name)}[{' + '.join(terms)}]"


def _expression(step: Step, source: list[str], inside: list[tuple[Place, str]]) -> str:
    cells = iter(source)
    args = []
    for arg in step.args:
        if not isinstance(arg, Place) or not arg.name:
            args.append(_number(arg))
            continue
        cell = next(cells)
        text = next((name for out, name in inside if arg.same(out)), cell)
        converts = step.out.layout.is_floating_point() and not arg.layout.is_floating_point()
        args.append(f"real({text})" if converts else text)
    return re.sub(r"\d+\.\d+", r"real(\g<0>)", step.text).format(*args)


def _products(step: Step, names: dict[str, str]) -> list[str]:
    """A matrix product, or one for each of a stack."""
    places = (*step.args, step.out)
    (m, k), n = step.args[0].layout.shape[-2:], step.out.layout.shape[-1]
    sizes = [m, n, k, *(stride for place in places for stride in place.layout.stride()[-2:])]
    stacked = step.out.layout.dim() == 3
    ends = [
        f"{names.get(place.name, place.name)} + {place.layout.storage_offset()}"
        + (f" + i * {place.layout.stride(0)}" if stacked else "")
        for place in places
    ]
    call = f"product<{', '.join(map(str, sizes))}>({', '.join(ends)});"
    return [f"for (int i = 0; i < {step.out.layout.shape[0]}; i++) {call}" if stacked else call]


def _number(arg: Any) -> str:
    value = arg.number if isinstance(arg, Place) else arg
    if not isinstance(value, (int, float)):
        return ""  # an option that the expression does not name
    if math.isfinite(value):
        return f"real({float(value)!r})"
    return "real(NAN)" if math.isnan(value) else f"({'-' if value < 0 else ''}real(INFINITY))"
