"""One kernel for a whole program: a recorded function of ONE task becomes a Triton kernel for a stack of them.

A small network on a small task is a long chain of operations of a microsecond each. Here every
program of the kernel takes one task through the chain and keeps all that lies between in registers.

A tensor is held as a block of two axes (a vector as a row or a column, a scalar as a scalar). Axes
longer than one are padded to powers of two, and of every block it is known whether its padding
is zero, as sums and matrix products need it; they set it to zero where it may not be.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from warmstart.engine import triton_ops as ops
from warmstart.engine.triton_ops import aten

Fused = Callable[..., list[Tensor]]
Shape = tuple[int, ...]
Sizes = tuple[int, int]
LARGEST_BLOCK = 2**13  # numbers; beyond, registers run out
LARGEST_PRODUCT = 2**19  # multiplications of one matrix product, which is unrolled


def fuse(
    graph: fx.GraphModule, example: list[Tensor], batched: list[bool], warps: int = 4, product: str = "ieee"
) -> Fused | None:
    """`graph`, recorded on `example` (the inputs of one task), as one kernel over a stack of tasks.

    Inputs marked in `batched` come with a leading task axis, the others are the same for all tasks;
    every output has a task axis. None where the program, a size or the machine does not allow it.
    `product` is how matrix products are computed: in precision `ieee` or `tf32x3`, or as a plain `sum`.
    """
    if not any(batched) or not _runs_on(example[0].device):
        return None
    try:
        text = _Writer(graph.graph, batched, product).text()
    except Unsupported:
        return None
    kernel = _load(text)
    results = [(_shape(node), node.meta["val"].dtype) for node in list(graph.graph.nodes)[-1].args[0]]
    first = batched.index(True)

    def run(*inputs: Tensor) -> list[Tensor]:
        given = [leaf.contiguous() for leaf in inputs]
        count = len(given[first])
        outputs = [given[first].new_empty((count, *shape), dtype=dtype) for shape, dtype in results]
        kernel[(count,)](*given, *outputs, num_warps=warps)
        return outputs

    return run


def _runs_on(device: torch.device) -> bool:
    """Whether Triton is there and can run on this device; on a CPU only its interpreter does."""
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return False
    return device.type == "cuda" or bool(triton.knobs.runtime.interpret)


def _load(text: str) -> Any:
    """The kernel of a source text. Triton looks the source up by its file name, so it is put where that finds it."""
    name = f"<fused {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": __name__}  # without it Triton refuses functions that call others
    scope |= {"triton": importlib.import_module("triton"), "tl": importlib.import_module("triton.language")}
    exec(compile(text, name, "exec"), scope)
    return scope["kernel"]


class Unsupported(Exception):
    """The program has something that cannot be written as a kernel."""


class Value(NamedTuple):
    """A tensor of the program as the kernel holds it."""

    name: str  # of a block, or a literal number
    sizes: Sizes  # of the block, unpadded; an axis of size one stands for any length
    turned: bool  # the block is the transpose of the tensor
    clean: bool  # padding is zero
    shape: Shape  # of the tensor
    dtype: torch.dtype
    number: float | None = None  # what it is filled with, where that is known


def plane(shape: Shape, turned: bool = False) -> Sizes:
    """Rows and columns of a tensor or, `turned`, of its transpose. A vector is a row, as in broadcasting.

    >>> plane((3, 4)), plane((4,)), plane((4,), turned=True), plane(())
    ((3, 4), (1, 4), (4, 1), (1, 1))
    """
    if len(shape) > 2 or 0 in shape:
        raise Unsupported(f"shape {shape}")
    rows, columns = (1,) * (2 - len(shape)) + shape
    return (columns, rows) if turned else (rows, columns)


def padded(size: int) -> int:
    """A power of two, and at least 16 because matrix products ask for it; 1 stays 1.

    >>> [padded(size) for size in (1, 2, 16, 40)]
    [1, 16, 16, 64]
    """
    return 1 if size == 1 else max(16, 1 << (size - 1).bit_length())


class _Writer:
    """Writes the kernel of a program, operation by operation."""

    def __init__(self, graph: fx.Graph, batched: list[bool], product: str) -> None:
        self.nodes, self.batched, self.product_as = list(graph.nodes), batched, product
        self.lengths: set[int] = set()  # for which the kernel needs an index
        self.inputs: dict[str, tuple[int, Shape, bool]] = {}  # block -> number, shape, turned
        self.names: dict[str, str] = {}  # expression -> block
        self.stores: list[str] = []
        views = [(_shape(node), _shape(node.args[0])) for node in self.nodes if node.target in ops.VIEWS]
        pairs = views + [pair[::-1] for pair in views]
        self.columns = {short for short, long in pairs if long == (*short, 1)}  # vectors used as columns

    def text(self) -> str:
        values: dict[Any, Value] = {}
        holders = [node for node in self.nodes if node.op == "placeholder"]
        outputs = list(self.nodes[-1].args[0])
        for i, node in enumerate(holders):
            if node.users:
                values[node] = self.load(i, _shape(node), _dtype(node), _shape(node) in self.columns)
        for node in self.nodes[len(holders) : -1]:
            given = {name: values[a] if isinstance(a, fx.Node) else a for name, a in _arguments(node).items()}
            values[node] = self.compute(node.target, given, _shape(node), _dtype(node))
        for i, node in enumerate(outputs):
            self.store(i, values[node])
        loads = [self.load_line(name, *where) for name, where in self.inputs.items()]  # first, so that they overlap
        lines = ["task = tl.program_id(0).to(tl.int64)"] + [f"i{n} = tl.arange(0, {n})" for n in sorted(self.lengths)]
        lines += loads + [f"{name} = {expression}" for expression, name in self.names.items()] + self.stores
        names = [f"x{i}" for i in range(len(holders))] + [f"y{i}" for i in range(len(outputs))]
        return f"{ops.PRELUDE}@triton.jit\ndef kernel({', '.join(names)}):\n    " + "\n    ".join(lines) + "\n"

    # --- blocks

    def emit(self, expression: str) -> str:
        return self.names.setdefault(expression, f"v{len(self.names)}")

    def index(self, size: int, axis: int) -> str:
        self.lengths.add(padded(size))
        return f"i{padded(size)}" + ("[None, :]" if axis else "[:, None]")

    def mask(self, sizes: Sizes) -> str:
        """Which entries of a block are no padding; empty where all are."""
        return " & ".join(f"({self.index(n, axis)} < {n})" for axis, n in enumerate(sizes) if n != padded(n))

    def address(self, pointer: str, shape: Shape, turned: bool, stacked: bool) -> str:
        sizes = plane(shape, turned)
        steps = (1, sizes[0]) if turned else (sizes[1], 1)
        terms = [pointer] + ([f"task * {math.prod(shape)}"] if stacked else [])
        return " + ".join(terms + [f"{self.index(n, axis)} * {steps[axis]}" for axis, n in enumerate(sizes) if n > 1])

    def load(self, i: int, shape: Shape, dtype: torch.dtype, turned: bool) -> Value:
        name = f"x{i}t" if turned else f"x{i}n"
        self.inputs[name] = (i, shape, turned)
        return Value(name, _small(plane(shape, turned)), turned, True, shape, dtype)

    def load_line(self, name: str, i: int, shape: Shape, turned: bool) -> str:
        mask = self.mask(plane(shape, turned))
        guard = f", mask={mask}, other=0" if mask else ""
        return f"{name} = tl.load({self.address(f'x{i}', shape, turned, self.batched[i])}{guard})"

    def store(self, i: int, value: Value) -> None:
        mask = self.mask(plane(value.shape, value.turned))
        guard = f", mask={mask}" if mask else ""
        address = self.address(f"y{i}", value.shape, value.turned, stacked=True)
        self.stores.append(f"tl.store({address}, {self.typed(value).name}{guard})")

    def typed(self, value: Value) -> Value:
        """A literal as a scalar of its type."""
        if value.number is None:
            return value
        return value._replace(name=self.emit(f"tl.full((), {value.name}, {ops.TYPES[value.dtype]})"), number=None)

    def hold(self, value: Value, turned: bool) -> Value:
        """The same tensor in a block that is its transpose, or is not."""
        if value.turned == turned or value.sizes == (1, 1):
            return value._replace(turned=turned)
        if value.name in self.inputs and 1 in value.sizes:  # cheaper than moving it between threads
            i, shape, was = self.inputs[value.name]
            name = self.load(i, shape, value.dtype, not was).name
        else:
            name = self.emit(f"tl.trans({value.name})")
        return value._replace(name=name, turned=turned, sizes=value.sizes[::-1])

    def whole(self, value: Value, fill: str = "0.0") -> Value:
        """All of the tensor, nothing left to broadcasting, with `fill` in the padding."""
        value, sizes = self.typed(value), _small(plane(value.shape, value.turned))
        mask = self.mask(sizes)
        if value.sizes == sizes and (not mask or (value.clean and fill == "0.0")):
            return value
        if mask:
            name = self.emit(f"tl.where({mask}, {value.name}, {fill})")
        else:
            name = self.emit(f"tl.zeros({[padded(n) for n in sizes]}, {ops.TYPES[value.dtype]}) + {value.name}")
        return value._replace(name=name, sizes=sizes, clean=fill == "0.0")

    # --- operations

    def compute(self, op: Any, given: dict[str, Any], shape: Shape, dtype: torch.dtype) -> Value:
        args = list(given.values())
        if op in ops.POINTWISE:
            return self.pointwise(ops.POINTWISE[op], args, shape, dtype)
        if op in ops.VIEWS:
            return _viewed(args[0], shape)
        if op in ops.COPIES:
            convert = (f"({{0}}).to({ops.TYPES[dtype]})", ops.ALL)
            value: Value = args[0] if args[0].dtype == dtype else self.pointwise(convert, args[:1], args[0].shape, dtype)
            return value._replace(shape=shape)
        if op in ops.TRANSPOSES:
            return _transposed(args[0]) if _swaps(op, args) else args[0]
        if op in ops.CONSTANTS:
            return _literal(given.get("fill_value", given.get("s", ops.CONSTANTS[op])), shape, dtype)
        if op in _OTHERS:
            return _OTHERS[op](self, given, shape)
        raise Unsupported(str(op))

    def pointwise(self, rule: tuple[str, str], args: list[Any], shape: Shape, dtype: torch.dtype) -> Value:
        template, zero = rule
        tensors = [arg for arg in args if isinstance(arg, Value)]
        neutral = {ops.MUL: 1.0, ops.ADD: 0.0}.get(template)
        rest = [value for value in tensors if neutral is None or value.number != neutral]
        if (len(tensors), len(rest)) == (2, 1) and rest[0].dtype == dtype and args[2:] in ([], [1]):
            return rest[0]._replace(shape=shape)
        if all(value.number is not None for value in tensors):
            args = [self.typed(arg) if arg is tensors[0] else arg for arg in args]
        turned = self.orientation(tensors)
        args = [self.hold(arg, turned) if isinstance(arg, Value) else arg for arg in args]
        tensors = [arg for arg in args if isinstance(arg, Value)]
        sizes = _small((max(value.sizes[0] for value in tensors), max(value.sizes[1] for value in tensors)))
        name = self.emit(template.format(*(arg.name if isinstance(arg, Value) else _text(arg) for arg in args)))
        clean = not self.mask(sizes) or _stays_zero(zero, tensors, sizes)
        return Value(name, sizes, turned, clean, shape, dtype)

    def orientation(self, tensors: list[Value]) -> bool:
        """That in which the least has to be moved; of equal ones the tensors' own for vectors, else not turned."""
        moved = [0, 0]
        for value in tensors:
            free = value.name in self.inputs and 1 in value.sizes
            moved[not value.turned] += 0 if free or value.sizes == (1, 1) else math.prod(value.sizes)
        if moved[0] != moved[1]:
            return moved[1] < moved[0]
        blocks = [value for value in tensors if value.sizes != (1, 1)]
        return all(value.turned for value in blocks) if blocks and all(1 in value.sizes for value in blocks) else False

    def times(self, a: Value, b: Value) -> Value:
        """The product of entries."""
        rows, columns = (max(pair) for pair in zip(plane(a.shape), plane(b.shape), strict=True))
        return self.pointwise((ops.MUL, ops.ONE), [a, b], (rows, columns), a.dtype)

    def reduce(self, value: Value, axes: set[int], shape: Shape, how: str = "sum") -> Value:
        """Over the axes of the tensor's plane."""
        value = self.whole(value, "0.0" if how == "sum" else 'float("-inf")')
        kept = tuple(1 if axis in axes else n for axis, n in enumerate(plane(value.shape)))
        sizes = plane(kept, value.turned)
        if sizes != value.sizes:
            axis = 0 if sizes[0] != value.sizes[0] else 1
            end = f", axis={axis})" + ("[:, None]" if axis else "[None, :]") if sizes != (1, 1) else ")"
            value = value._replace(name=self.emit(f"tl.{how}({value.name}{end}"))
        return _viewed(value._replace(sizes=sizes, clean=True, shape=kept), shape)

    def total(self, given: dict[str, Any], shape: Shape) -> Value:
        return self.reduce(given["self"], _axes(given["self"], given.get("dim")), shape)

    def mean(self, given: dict[str, Any], shape: Shape) -> Value:
        total = self.total(given, shape)
        count = math.prod(given["self"].shape) // math.prod(shape)
        return self.pointwise((ops.DIV, ops.FIRST), [total, float(count)], shape, total.dtype)

    def power(self, given: dict[str, Any], shape: Shape) -> Value:
        value, exponent = given["self"], float(given["exponent"])
        if exponent == 0:
            return _literal(1.0, shape, value.dtype)
        if exponent == 1:
            return value  # type: ignore[no-any-return]
        if exponent not in ops.POWERS:
            raise Unsupported(f"power {exponent}")
        return self.pointwise(ops.POWERS[exponent], [value], shape, value.dtype)

    def matrix_product(self, given: dict[str, Any], shape: Shape) -> Value:
        a, b = given.get("mat1", given["self"]), given["mat2"]
        if given.get("beta", 1) != 1 or given.get("alpha", 1) != 1 or not a.dtype.is_floating_point:
            raise Unsupported("a scaled or integer matrix product")
        value = self.product(a, b)
        if "mat1" not in given:
            return value
        return self.pointwise((ops.ADD, ops.ALL), [given["self"], value, 1], shape, value.dtype)

    def product(self, a: Value, b: Value) -> Value:
        rows, inner, columns = *a.shape, b.shape[1]
        if inner == 1:
            return self.times(a, b)
        if columns == 1:
            return self.reduce(self.times(a, _transposed(b)), {1}, (rows, 1))
        if rows == 1:
            return self.reduce(self.times(_transposed(a), b), {0}, (1, columns))
        if math.prod(map(padded, (rows, inner, columns))) > LARGEST_PRODUCT:
            raise Unsupported("a large matrix product")
        if a.turned and b.turned:
            return _transposed(self.product(_transposed(b), _transposed(a)))
        left, right = (self.hold(self.whole(value), turned=False).name for value in (a, b))
        if self.product_as == "sum":
            name = self.emit(f"tl.sum({left}[:, :, None] * {right}[None, :, :], axis=1)")
        else:
            how = f'input_precision="{self.product_as}", out_dtype={ops.TYPES[a.dtype]}'
            name = self.emit(f"tl.dot({left}, {right}, {how})")
        return Value(name, _small((rows, columns)), False, True, (rows, columns), a.dtype)

    def log_softmax(self, given: dict[str, Any], shape: Shape) -> Value:
        value, axes = given["self"], _axes(given["self"], [given["dim"]])
        kept = tuple(1 if axis in axes else n for axis, n in enumerate(plane(shape)))
        top = self.reduce(value, axes, kept, "max")
        low = self.pointwise((ops.SUB, ops.NEVER), [value, top, 1], shape, value.dtype)
        total = self.reduce(self.pointwise((ops.EXP, ops.NEVER), [low], shape, value.dtype), axes, kept)
        return self.pointwise(("{0} - tl.log({1})", ops.NEVER), [low, total], shape, value.dtype)

    def log_softmax_backward(self, given: dict[str, Any], shape: Shape) -> Value:
        grad, out, axes = given["grad_output"], given["output"], _axes(given["output"], [given["dim"]])
        kept = tuple(1 if axis in axes else n for axis, n in enumerate(plane(shape)))
        total = self.reduce(grad, axes, kept)
        return self.pointwise(("{0} - tl.exp({1}) * {2}", ops.NEVER), [grad, out, total], shape, grad.dtype)

    def picked(self, value: Value, index: Value, dim: int) -> tuple[Value, set[int]]:
        """The positions along an axis, for an index that names one of them in each row."""
        (axis,) = axes = _axes(value, [dim])
        sizes = plane(value.shape)
        if plane(index.shape) != tuple(1 if i == axis else n for i, n in enumerate(sizes)):
            raise Unsupported("an index of several entries")
        along = (1, sizes[1]) if axis else (sizes[0], 1)
        block = plane(along, value.turned)
        name = self.index(sizes[axis], axis ^ value.turned)
        return Value(name, block, value.turned, False, along, torch.int64), axes

    def gather(self, given: dict[str, Any], shape: Shape) -> Value:
        value, index = given["self"], given["index"]
        position, axes = self.picked(value, index, given["dim"])
        parts = [position, index, value]
        hit = self.pointwise(("tl.where({0} == {1}, {2}, 0.0)", ops.NEVER), parts, value.shape, value.dtype)
        return self.reduce(hit, axes, shape)

    def scatter_add(self, given: dict[str, Any], shape: Shape) -> Value:
        value, index, source = given["self"], given["index"], given["src"]
        if plane(source.shape) != plane(index.shape):
            raise Unsupported("an index shorter than its source")
        parts = [value, self.picked(value, index, given["dim"])[0], index, source]
        return self.pointwise(("{0} + tl.where({1} == {2}, {3}, 0.0)", ops.NEVER), parts, shape, value.dtype)


_OTHERS: dict[Any, Callable[[_Writer, dict[str, Any], Shape], Value]] = {
    aten.mm.default: _Writer.matrix_product,
    aten.addmm.default: _Writer.matrix_product,
    aten.sum.default: _Writer.total,
    aten.sum.dim_IntList: _Writer.total,
    aten.mean.default: _Writer.mean,
    aten.mean.dim: _Writer.mean,
    aten.pow.Tensor_Scalar: _Writer.power,
    aten._log_softmax.default: _Writer.log_softmax,
    aten._log_softmax_backward_data.default: _Writer.log_softmax_backward,
    aten.gather.default: _Writer.gather,
    aten.scatter_add.default: _Writer.scatter_add,
}


def _shape(node: fx.Node) -> Shape:
    if not isinstance(node.meta.get("val"), Tensor):
        raise Unsupported(f"{node.op} {node.target}")
    return tuple(node.meta["val"].shape)


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    if dtype not in ops.TYPES:
        raise Unsupported(str(dtype))
    return dtype


def _arguments(node: fx.Node) -> dict[str, Any]:
    """By the names of the schema, defaults filled in; a number where a tensor is due becomes one."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        raise Unsupported(f"{node.op} {node.target}")
    given: dict[str, Any] = {}
    for i, argument in enumerate(node.target._schema.arguments):
        value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        number = isinstance(value, (int, float)) and str(argument.type) == "Tensor"
        given[argument.name] = _literal(value, (), _dtype(node)) if number else value
    if given.get("approximate", "none") != "none":
        raise Unsupported("an approximate gelu")
    return given


def _small(sizes: Sizes) -> Sizes:
    if math.prod(map(padded, sizes)) > LARGEST_BLOCK:
        raise Unsupported(f"a block of {sizes}")
    return sizes


def _text(number: Any) -> str:
    return f'float("{number}")' if isinstance(number, float) and not math.isfinite(number) else repr(number)


def _literal(number: float, shape: Shape, dtype: torch.dtype) -> Value:
    name = _text(float(number) if dtype.is_floating_point else int(number))
    return Value(name, (1, 1), False, True, shape, dtype, float(number))


def _viewed(value: Value, shape: Shape) -> Value:
    """With axes of size one added or removed."""
    old, new = plane(value.shape), plane(shape)
    if old == new:
        return value._replace(shape=shape)
    if 1 in old and old == new[::-1]:
        return value._replace(shape=shape, turned=not value.turned)
    raise Unsupported(f"a view of {value.shape} as {shape}")


def _transposed(value: Value) -> Value:
    return value._replace(shape=value.shape[::-1], turned=not value.turned)


def _swaps(op: Any, args: list[Any]) -> bool:
    """Whether a transposition changes anything."""
    if len(args[0].shape) < 2:
        return False
    order = {aten.t.default: [1, 0], aten.permute.default: args[-1]}.get(op, args[1:])
    return [axis % 2 for axis in order] in ([1, 0], [0, 1]) and (op is not aten.permute.default or order[0] % 2 == 1)


def _axes(value: Value, dims: list[int] | None) -> set[int]:
    """Axes of the tensor as axes of its plane."""
    count = len(value.shape)
    return {dim % count + 2 - count for dim in dims} if dims else {0, 1}


def _stays_zero(rule: str, tensors: list[Value], sizes: Sizes) -> bool:
    whole = [value.clean and value.sizes == sizes for value in tensors]
    if rule == ops.ALL:
        return all(whole)
    if rule == ops.ONE:
        return any(whole) and all(value.clean for value in tensors)
    if rule == ops.RATIO:
        return whole[0] and tensors[1].sizes == (1, 1)
    return rule == ops.FIRST and whole[0]
