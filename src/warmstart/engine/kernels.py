"""FUSED: the stage that runs one inner step of every task as one Triton kernel, on a GPU.

What `engine.fused` cannot write as a kernel (large networks, some operations) runs compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from warmstart.core.trees import Tree, flatten, unflatten
from warmstart.engine.fused import Fused, fuse, runs_on
from warmstart.engine.recording import cut
from warmstart.engine.stage import COMPILED, Pullback, Stage, record


def _arrange(shared: Tree, rest: tuple[Tree, ...]) -> tuple[list[Tensor], int, Any]:
    """The leaves as a program takes them, how many of them all tasks share, and what a recording depends on.

    A stack that repeats one tensor (an initialisation before the first step) stays as it is.
    """
    (common, form), (own, (_, _, forms)) = flatten(shared), flatten(rest)
    inputs = [leaf if leaf.is_contiguous() else leaf.contiguous() for leaf in common]
    inputs += [leaf if leaf.is_contiguous() else _dense(leaf) for leaf in own]
    kind = tuple([(leaf.shape, leaf.dtype, leaf.device) for leaf in inputs])
    return inputs, len(common), ((tuple, None, (form, *forms)), kind)


def _dense(stacked: Tensor) -> Tensor:
    repeats = stacked.stride(0) == 0 and stacked.select(0, 0).is_contiguous()
    return stacked if repeats else stacked.contiguous()


def _one(inputs: list[Tensor], common: int) -> tuple[list[Tensor], list[bool]]:
    """The inputs of the first task, and which of them differ between tasks."""
    batched = [i >= common for i in range(len(inputs))]
    return [leaf[0] if many else leaf for leaf, many in zip(inputs, batched, strict=True)], batched


def _stack(fn: Callable[..., Any]) -> Callable[..., Any]:
    otherwise = COMPILED.stack(fn)
    programs: dict[Any, tuple[Fused, Any] | None] = {}

    def call(shared: Tree, *rest: Tree) -> Any:
        inputs, common, kind = _arrange(shared, rest)
        if kind not in programs:
            one, batched = _one(inputs, common)
            graph, example, result = record(fn, one, kind[0])
            program = fuse(graph, example, batched)
            programs[kind] = None if program is None else (program, result)
        found = programs[kind]
        if found is None:
            return otherwise(shared, *rest)
        return unflatten(found[0](*inputs), found[1])

    return call


def _differentiate(fn: Callable[..., Any]) -> Pullback:
    otherwise = COMPILED.differentiate(fn)
    programs: dict[Any, tuple[Fused, Fused, list[int], int, Any, Any] | None] = {}

    def joint(args: tuple[Tree, ...], cotangent: Tree) -> tuple[Any, Any]:
        found: Any = vjp(lambda a, b: fn(a, b, *args[2:]), args[0], args[1])
        return found[0], found[1](cotangent)

    def prepare(inputs: list[Tensor], common: int, structure: Any) -> Any:
        if not runs_on(inputs[0].device):
            return None
        one, batched = _one(inputs, common)
        results, out = flatten(fn(*unflatten(one, structure)))
        graph, example, _ = record(joint, one + results, (tuple, None, (structure, out)))
        halves = cut(graph, len(one), len(results))
        with torch.no_grad():
            saved = list(halves.forward(*example[: len(one)]))[len(results) :]
        given = [one[i] for i in halves.kept] + saved + example[len(one) :]
        differ = [batched[i] for i in halves.kept] + [True] * (len(saved) + len(results))
        forward, backward = _side_by_side(
            inputs[0].device,
            lambda: fuse(halves.forward, example[: len(one)], batched),
            lambda: fuse(halves.backward, given, differ),
        )
        if forward is None or backward is None:
            return None
        args = unflatten(one, structure)
        return forward, backward, halves.kept, len(results), out, flatten((args[0], args[1]))[1]

    def forward(shared: Tree, *rest: Tree) -> tuple[Any, Any]:
        inputs, common, kind = _arrange(shared, rest)
        if kind not in programs:
            programs[kind] = prepare(inputs, common, kind[0])
        found = programs[kind]
        if found is None:
            result, saved = otherwise.forward(shared, *rest)
            return result, (None, saved, None, 0)
        ahead, back, kept, results, out, pulled = found
        values = ahead(*inputs)
        saved = [inputs[i] for i in kept] + values[results:]
        return unflatten(values[:results], out), (back, saved, pulled, common)

    def backward(saved: Any, cotangent: Any) -> tuple[Any, Any]:
        program, values, pulled, common = saved
        if program is None:
            return otherwise.backward(values, cotangent)
        found = program(*values, *(leaf.contiguous() for leaf in flatten(cotangent)[0]))
        totals = [leaf.sum(0) for leaf in found[:common]]  # what tasks share
        result: tuple[Any, Any] = unflatten(totals + found[common:], pulled)
        return result

    return Pullback(forward, backward)


def _side_by_side(device: torch.device, *makers: Callable[[], Fused | None]) -> list[Fused | None]:
    """What they make, at once on a GPU, since compiling mostly happens outside of Python."""
    if device.type != "cuda":
        return [make() for make in makers]
    stream = torch.cuda.current_stream(device)

    def make_there(make: Callable[[], Fused | None]) -> Fused | None:
        with torch.cuda.stream(stream):
            return make()

    with ThreadPoolExecutor(len(makers)) as pool:
        return list(pool.map(make_there, makers))


FUSED = Stage(COMPILED.run, _stack, _differentiate)
