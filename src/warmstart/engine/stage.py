"""Stages: pure functions that the engine runs many times, as they are, traced or compiled.

A learner hands its inner step to a `Stage` once, when it is built. `PLAIN` leaves it to
`torch.func`; `TRACED` records the ATen operations at the first call for each set of shapes and
then runs only those; `COMPILED` makes one C++ function of the recording or gives it to inductor; `LOOPED`
traces one task and runs task after task, for convolutions on a CPU, where those of a whole stack are slower
than a loop. A step is recorded alone, so the cost of compiling does not grow with the number of inner steps.

A stage may depend on nothing but its arguments: a tensor it closes over would be frozen.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.func import functionalize, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from warmstart.core.trees import Tree, add, flatten, leaves, stack, take, unflatten
from warmstart.engine.native import compiler, native
from warmstart.engine.recording import cut, mutates, simplify
from warmstart.engine.tables import faster_tables

F = TypeVar("F", bound=Callable[..., Any])
Program = Callable[..., Any]
Build = Callable[[fx.GraphModule, list[Tensor]], Program]


class Pullback(NamedTuple):
    """A function and its derivative. `forward(*args)` gives (result, saved); `backward(saved, cotangent)`
    gives the cotangents of the first two arguments."""

    forward: Callable[..., tuple[Any, Any]]
    backward: Callable[[Any, Any], tuple[Any, Any]]


class Stage(NamedTuple):
    """How functions are run. `stack` and `differentiate` take a function of ONE task, whose first
    argument all tasks share, and give it for a stack of tasks."""

    run: Callable[[F], F]  # the function itself
    stack: Callable[[Callable[..., Any]], Callable[..., Any]]  # shared, then arguments with a task axis
    differentiate: Callable[[Callable[..., Any]], Pullback]  # the same, with its pullback


def over_tasks(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The reference semantics of a stack: vmap over every argument but the first."""
    return lambda shared, *rest: vmap(fn, in_dims=(None, *(0 for _ in rest)))(shared, *rest)


def _as_is(fn: F) -> F:
    return fn


def _functional(fn: Callable[..., Any]) -> Pullback:
    stacked = over_tasks(fn)

    def forward(first: Tree, second: Tree, *rest: Tree) -> tuple[Any, Any]:
        found: Any = vjp(lambda a, b: stacked(a, b, *rest), first, second)
        return found[0], found[1]

    return Pullback(forward, lambda saved, cotangent: saved(cotangent))


def _run(build: Build, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` recorded at the first call for each set of shapes, then run as `build` makes it."""
    programs: dict[Any, tuple[Program, Any]] = {}

    def call(*args: Tree) -> Tree:
        inputs, kind = signature(args)
        if kind not in programs:
            graph, example, structure = record(fn, inputs, kind[0])
            programs[kind] = _built(build, graph, example), structure
        program, structure = programs[kind]
        with torch.no_grad():
            return unflatten(list(program(*inputs)), structure)

    return call


def _pullback(build: Build, fn: Callable[..., Any]) -> Pullback:
    """The same for a function and its derivative in the first two arguments."""
    programs: dict[Any, tuple[Program, Program, list[int], int, Any, Any]] = {}

    def prepare(inputs: list[Tensor], structure: Any, args: tuple[Tree, ...]) -> Any:
        shapes, out = flatten(fn(*args))

        def joint(args: tuple[Tree, ...], cotangent: Tree) -> tuple[Any, Any]:
            found: Any = vjp(lambda a, b: fn(a, b, *args[2:]), args[0], args[1])
            return found[0], found[1](cotangent)

        graph, example, _ = record(joint, inputs + shapes, (tuple, None, (structure, out)))
        halves = cut(graph, len(inputs), len(shapes))
        forward = _built(build, halves.forward, example[: len(inputs)])
        with torch.no_grad():
            saved = list(halves.forward(*example[: len(inputs)]))[len(shapes) :]
        backward = _built(build, halves.backward, [inputs[i] for i in halves.kept] + saved + example[len(inputs) :])
        pulled = flatten((args[0], args[1]))[1]
        return forward, backward, halves.kept, len(shapes), out, pulled

    def forward(*args: Tree) -> tuple[Any, Any]:
        inputs, kind = signature(args)
        if kind not in programs:
            programs[kind] = prepare(inputs, kind[0], args)
        program, backward, kept, results, out, pulled = programs[kind]
        with torch.no_grad():
            values = list(program(*inputs))
        saved = [inputs[i] for i in kept] + values[results:]
        return unflatten(values[:results], out), (backward, saved, pulled)

    def backward(saved: Any, cotangent: Any) -> tuple[Any, Any]:
        program, values, pulled = saved
        with torch.no_grad():
            found = program(*values, *signature(cotangent)[0])
        result: tuple[Any, Any] = unflatten(list(found), pulled)
        return result

    return Pullback(forward, backward)


def _recorded(build: Build) -> Stage:
    """A stage that records, then runs what `build` makes of the recording."""
    return Stage(
        partial(_run, build),  # type: ignore[arg-type]
        lambda fn: _run(build, over_tasks(fn)),
        lambda fn: _pullback(build, over_tasks(fn)),
    )


def _looped(build: Build) -> Stage:
    """The same, one task after another."""

    def stacked(fn: Callable[..., Any]) -> Callable[..., Any]:
        one = _run(build, fn)
        return lambda shared, *rest: stack([one(shared, *part) for part in _each(rest)])

    def differentiate(fn: Callable[..., Any]) -> Pullback:
        ahead, back = _pullback(build, fn)

        def forward(shared: Tree, *rest: Tree) -> tuple[Any, Any]:
            results, saved = zip(*(ahead(shared, *part) for part in _each(rest)), strict=True)
            return stack(list(results)), saved

        def backward(saved: Any, cotangent: Any) -> tuple[Any, Any]:
            parts = zip(saved, _each(cotangent), strict=True)
            shared, own = zip(*(back(kept, part) for kept, part in parts), strict=True)
            return reduce(add, shared), stack(list(own))

        return Pullback(forward, backward)

    return Stage(partial(_run, build), stacked, differentiate)  # type: ignore[arg-type]


def _each(stacked: Any) -> Iterator[Any]:
    """The parts of a stack, task by task."""
    return (take(stacked, i) for i in range(len(leaves(stacked)[0])))


def _built(build: Build, graph: fx.GraphModule, example: list[Tensor]) -> Program:
    with torch.no_grad():
        return build(graph, example)


def signature(args: Tree) -> tuple[list[Tensor], Any]:
    """The leaves, contiguous as they are recorded, and what a recording depends on."""
    inputs, structure = flatten(args)
    inputs = [leaf if leaf.is_contiguous() else leaf.contiguous() for leaf in inputs]
    return inputs, (structure, tuple([(leaf.shape, leaf.dtype, leaf.device) for leaf in inputs]))


def record(fn: Callable[..., Tree], inputs: list[Tensor], structure: Any) -> tuple[fx.GraphModule, list[Tensor], Any]:
    """The operations of `fn` on flat inputs, example inputs, and the structure of its result."""
    found: list[Any] = []

    def flat(*leaf_list: Tensor) -> list[Tensor]:
        outputs, result = flatten(fn(*unflatten(list(leaf_list), structure)))
        found.append(result)
        return outputs

    # copies: make_fx merges inputs that are one tensor object
    example = [leaf.detach().clone(memory_format=torch.contiguous_format) for leaf in inputs]
    with tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True))):  # else one is made for every operation
        graph = make_fx(flat)(*example)
        if any(mutates(node.target) for node in graph.graph.nodes):
            graph = make_fx(functionalize(graph))(*example)  # since equal operations are computed once
    return simplify(graph), example, found[0]


def _compiled(graph: fx.GraphModule, example: list[Tensor]) -> Program:
    """In C++ on a CPU, if it is small; else by inductor, which is slow to load and to compile, and on a CPU needs a
    compiler of C++ too: without one the operations are run as they were recorded."""
    if any(leaf.device.type != "cpu" for leaf in example):
        return _inductor(graph, example)
    if compiler() is None:
        return _direct(graph, example)
    return native(graph, example) or _inductor(graph, example)


def _inductor(graph: fx.GraphModule, example: list[Tensor]) -> Program:
    from torch import _inductor as inductor  # imported here: loading it takes seconds

    # `signature` has checked the shapes
    options: dict[str, Any] = {"size_asserts": False}
    if any(leaf.is_cuda for leaf in example):
        options |= {"combo_kernels": True, "benchmark_combo_kernel": False}  # independent small kernels in one launch
    else:
        options["cpp.vec_isa_ok"] = True  # trust what the processor says of itself: trying it out takes half the time
    dense: list[Any] = [leaf.clone() for leaf in example]  # no two entries in one place
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler says of itself
        program: Program = inductor.compile(graph, dense, options=options)
    strides = [leaf.stride() for leaf in dense]

    def run(*inputs: Tensor) -> Any:
        # the strides are constants of the program, and what another program saved has its own
        return program(*[x if x.stride() == s else _laid_out(x, s) for x, s in zip(inputs, strides, strict=True)])

    return run


def _laid_out(leaf: Tensor, strides: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype, device=leaf.device).copy_(leaf)


def _direct(graph: fx.GraphModule, example: list[Tensor]) -> Program:
    """The operations through torch's own bindings, which cost half of a call by overload."""
    if all(leaf.device.type == "cpu" for leaf in example):
        faster_tables(graph)
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = _binding(node.target)
    graph.recompile()
    return graph.forward


def _binding(op: torch._ops.OpOverload[..., Any]) -> Callable[..., Any]:
    name = op.overloadpacket.__name__
    for bound in (getattr(torch, name, None), getattr(torch.Tensor, name, None)):
        if isinstance(bound, (types.BuiltinFunctionType, types.MethodDescriptorType)):
            return bound
    return op


PLAIN = Stage(_as_is, over_tasks, _functional)
TRACED = _recorded(_direct)
LOOPED = _looped(_direct)
COMPILED = _recorded(_compiled)
