"""One C++ function for a whole program, on a CPU.

The programs of small networks are hundreds of operations of a microsecond each. Here they are loops and matrix
products in one function without a call in between, in which every size is a constant that the compiler knows.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from warmstart.engine import triton_ops as ops
from warmstart.engine.loops import TYPES, Place, Step, loops
from warmstart.engine.triton_ops import Shape, Unsupported, aten

Native = Callable[..., list[Tensor]]
FLAGS = ["-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-w"]
# sums in any order, so that they are vectorised; what is not finite stays so
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-ffp-contract=fast"]
LARGEST_MATRIX = 2**14  # numbers; products of larger ones are left to a library

_POINTWISE = {op: text.replace("tl.", "") for op, (text, _) in ops.POINTWISE.items()} | {
    aten.lerp.Scalar: "{0} + {2} * ({1} - {0})",
    aten.addcmul.default: "{0} + {3} * {1} * {2}",
    aten.nan_to_num.default: "nan_to_num({0}, {1}, {2}, {3})",
    aten.cos.default: "cos({0})",
    **dict.fromkeys(ops.COPIES, "{0}"),
}
_POWERS = {power: text.replace("tl.", "") for power, (text, _) in ops.POWERS.items()}
_SUMS = {aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim}
_MEANS = {aten.mean.default, aten.mean.dim}


def native(graph: fx.GraphModule, example: list[Tensor]) -> Native | None:
    """`graph`, recorded on `example`, as one function; None where the program, a size or the machine forbids it."""
    try:
        text, real, results = _written(graph.graph)
    except Unsupported:
        return None
    library = load(text, real)
    if library is None:
        return None
    shapes = [(layout.shape, layout.dtype) for layout in results]
    pointers = ctypes.c_void_p * (len(example) + len(results))

    def run(*given: Tensor) -> list[Tensor]:
        inputs = [leaf if leaf.is_contiguous() else leaf.contiguous() for leaf in given]  # as the text reads them
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
        library.run(pointers(*[leaf.data_ptr() for leaf in inputs], *[leaf.data_ptr() for leaf in outputs]))
        return outputs

    return run


@cache
def compiler() -> str | None:
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def load(text: str, real: torch.dtype) -> Any:
    """The functions of a source text, which may include `native.h`; None where it cannot be compiled or loaded."""
    found = compiler()
    if found is None:
        return None
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "program.cpp"), Path(folder, "program.so")
            source.write_text(f"typedef {TYPES[real]} real;\n{text}")
            words = [found, *FLAGS, f"-I{Path(__file__).parent}", str(source), "-o", str(library)]
            done = subprocess.run(words, capture_output=True, text=True)
            if not done.returncode:
                return ctypes.CDLL(str(library))
        reason = done.stderr
    except OSError as error:  # a folder from which nothing may be run, or a compiler that is none
        reason = str(error)
    warnings.warn(f"a program does not compile, so other ways are used: {reason[:500]}", stacklevel=3)
    return None


def _written(graph: fx.Graph) -> tuple[str, torch.dtype, list[Tensor]]:
    """The source text of a program, the type of its numbers, and the layouts of its outputs."""
    writer = _Writer(graph)
    lines, size = loops(writer.steps)
    given = [*writer.inputs, *writer.outputs]
    kinds = [TYPES[place.layout.dtype] for place in given]
    takes = [f"{kind}* __restrict {place.name}" for kind, place in zip(kinds, given, strict=True)]
    gets = [f"({kind}*)where[{i}]" for i, kind in enumerate(kinds)]
    text = [
        '#include "native.h"',
        "namespace program {",
        f"static void body({', '.join(takes)}, char* __restrict work) {{",
        *lines,
        "}",
        'extern "C" void run(char** where) {',
        f"Work work({size});",
        f"body({', '.join(gets)}, work.data);",
        "}}",
    ]
    return "\n".join(text), writer.real, [place.layout for place in writer.outputs]


def _layout(node: Any) -> Tensor:
    if not isinstance(node, fx.Node) or not isinstance(node.meta.get("val"), Tensor):
        raise Unsupported(str(node))
    value = node.meta["val"]
    if value.dtype not in TYPES:
        raise Unsupported(str(value.dtype))
    return torch.empty(value.shape, dtype=value.dtype, device="meta")


class _Writer:
    """The operations of a program as steps."""

    def __init__(self, graph: fx.Graph) -> None:
        nodes = list(graph.nodes)
        holders = [node for node in nodes if node.op == "placeholder"]
        self.inputs = [Place(f"x{i}", _layout(node)) for i, node in enumerate(holders)]
        floats = {place.layout.dtype for place in self.inputs if place.layout.is_floating_point()}
        if len(floats) != 1:
            raise Unsupported("mixed precision")
        (self.real,) = floats
        self.steps: list[Step] = []
        self.values: dict[fx.Node, Any] = dict(zip(holders, self.inputs, strict=True))
        self.buffers = 0
        for node in nodes[len(holders) : -1]:
            self.values[node] = self.lower(node, node.target)
        self.outputs = self.finish([self.values.get(node) for node in nodes[-1].args[0]])

    def finish(self, results: list[Any]) -> list[Place]:
        """Where the outputs lie. One that fills a buffer is written there at once, the others are copied."""
        outputs: list[Place] = []
        at_once: dict[str, str] = {}
        for i, value in enumerate(results):
            if not isinstance(value, Place):
                raise Unsupported("an output that is no tensor")
            layout = torch.empty(value.layout.shape, dtype=value.layout.dtype, device="meta")
            outputs.append(Place(f"y{i}", layout))
            whole = value.layout.is_contiguous() and value.layout.untyped_storage().nbytes() == layout.nbytes
            if value.name[:1] == "b" and whole and value.name not in at_once:
                at_once[value.name] = f"y{i}"
            else:
                self.steps.append(Step(outputs[-1], "{0}", (value,)))
        self.steps = [step.renamed(at_once) for step in self.steps]
        return outputs

    def buffer(self, shape: Shape, dtype: torch.dtype) -> Place:
        if dtype.is_floating_point and dtype != self.real:
            raise Unsupported("mixed precision")
        self.buffers += 1
        return Place(f"b{self.buffers}", torch.empty(shape, dtype=dtype, device="meta"))

    def lower(self, node: fx.Node, op: Any) -> Any:
        if op is operator.getitem:
            return self.values[node.args[0]][node.args[1]]  # type: ignore[index]
        if node.op != "call_function" or not isinstance(op, torch._ops.OpOverload):
            raise Unsupported(f"{node.op} {op}")
        if op.is_view or op is aten._unsafe_view.default:
            return self.view(op, self.values[node.args[0]], node)  # type: ignore[index]
        given = self.arguments(node, op)
        args = tuple(given.values())
        if given.get("approximate", "none") != "none":
            raise Unsupported("an approximation")
        layout = _layout(node)
        if op in ops.CONSTANTS:
            number = ops.CONSTANTS[op]
            return Place("", layout, float(given[number] if isinstance(number, str) else number))
        out = self.buffer(layout.shape, layout.dtype)
        if op is aten.cat.default:
            return self.joined(out, *args)
        if op in (aten.mm.default, aten.bmm.default):
            return self.product(out, *args)
        if op is aten.addmm.default:
            return self.sum_and_product(out, *args)
        if op in _SUMS:
            return self.total(out, args[0], given.get("dim"), op in _MEANS)
        if op is aten.clamp.default:
            lower = "{0}" if args[1] is None else "where({0} < {1}, {1}, {0})"
            return self.pointwise(out, lower if args[2] is None else f"least({lower}, {{2}})", args)
        if op is aten.pow.Tensor_Scalar and float(args[1]) in _POWERS:
            return self.pointwise(out, _POWERS[float(args[1])], args)
        if op not in _POINTWISE or layout.dtype == torch.int64:
            raise Unsupported(str(op))
        return self.pointwise(out, _POINTWISE[op], args)

    def arguments(self, node: fx.Node, op: Any) -> dict[str, Any]:
        """By the names of the operation's schema, defaults filled in."""
        given: dict[str, Any] = {}
        for i, argument in enumerate(op._schema.arguments):
            value: Any = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            given[argument.name] = fx.node.map_arg(value, lambda source: self.values[source])
        return given

    def view(self, op: Any, source: Place, node: fx.Node) -> Any:
        try:
            found = op(source.layout, *node.args[1:], **node.kwargs)
        except RuntimeError as error:
            raise Unsupported(str(error)) from error
        return (
            source._replace(layout=found) if isinstance(found, Tensor) else [source._replace(layout=x) for x in found]
        )

    def pointwise(self, out: Place, text: str, args: tuple[Any, ...]) -> Place:
        self.steps.append(Step(out, text, args))
        return out

    def joined(self, out: Place, parts: list[Place], dim: int) -> Place:
        begin = 0
        for part in parts:
            if not part.layout.numel():  # which may have another number of axes
                continue
            length = part.layout.shape[dim]
            self.pointwise(out._replace(layout=out.layout.narrow(dim, begin, length)), "{0}", (part,))
            begin += length
        return out

    def total(self, out: Place, value: Place, dims: list[int] | None, mean: bool) -> Place:
        if value.layout.dtype != self.real or out.layout.dtype != self.real or not value.layout.numel():
            raise Unsupported("a sum of nothing or of other numbers")
        kept = out.layout.view(value.layout.sum(dims or None, keepdim=True).shape)
        share = out.layout.numel() / value.layout.numel() if mean else 1.0
        self.steps.append(Step(out._replace(layout=kept), "{0} * {1}" if mean else "{0}", (value, share), total=True))
        return out

    def product(self, out: Place, a: Place, b: Place) -> Place:
        sizes = [math.prod(place.layout.shape[-2:]) for place in (a, b)]
        if (
            not a.name
            or not b.name
            or not 0 < min(sizes) <= max(sizes) <= LARGEST_MATRIX
            or a.layout.dtype != self.real
        ):
            raise Unsupported("a matrix product that is large, empty or of something else")
        self.steps.append(Step(out, "", (a, b)))
        return out

    def sum_and_product(self, out: Place, value: Place, a: Place, b: Place, beta: float, alpha: float) -> Place:
        if (beta, alpha) != (1, 1):
            raise Unsupported("a scaled matrix product")
        part = self.product(self.buffer(out.layout.shape, self.real), a, b)
        return self.pointwise(out, "{0} + {1}", (value, part))
