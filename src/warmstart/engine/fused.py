"""One kernel for a whole program: a recorded function of ONE task becomes a Triton kernel for a stack of them.

A small network on a small task is a long chain of operations of a microsecond each. Here every
program of the kernel takes one task through the chain and keeps all that lies between in registers.

Of every block it is known whether its padding is zero, as sums and matrix products need it; they
set it to zero where it may not be.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from warmstart.engine import triton_ops as ops
from warmstart.engine.triton_ops import Blocks, Shape, Unsupported, Value, aten, padded, plane, transposed

Fused = Callable[..., list[Tensor]]
Arguments = dict[str, Any]  # by the names of the operation's schema
REGISTERS = 2**16  # of a multiprocessor
WARPS = (4, 8)  # which is faster depends on the program
LARGEST_PRODUCT = 2**18  # multiplications of one matrix product, which is unrolled


def fuse(
    graph: fx.GraphModule, example: list[Tensor], batched: list[bool], warps: int | None = None, precision: str = "ieee"
) -> Fused | None:
    """`graph`, recorded on `example` (the inputs of one task), as one kernel over a stack of tasks.

    Inputs marked in `batched` come with a leading task axis, along which they may repeat one tensor (stride 0), the
    others are the same for all tasks; every output has a task axis. None where the program, a size or the machine
    does not allow it. `precision` is that of matrix products: `ieee`, or `tf32x3`, which is close to it. Without
    `warps` those of `WARPS` are tried and the fastest kept.
    """
    if not any(batched) or not runs_on(example[0].device):
        return None
    try:
        text = _Writer(graph.graph, batched, precision).text()
    except Unsupported:
        return None
    kernel = _load(text)
    results = [(_shape(node), node.meta["val"].dtype) for node in list(graph.graph.nodes)[-1].args[0]]
    first = batched.index(True)

    def launcher(warps: int) -> tuple[Fused, list[int]]:
        """The kernel as a function, and the registers that its first call found to be too few."""
        spills: list[int] = []
        # all that a program can have: left to itself, the assembler sometimes takes few and spills thousands
        registers = min(255, REGISTERS // (32 * warps))

        def run(*inputs: Tensor) -> list[Tensor]:
            count = len(inputs[first])
            own = [int(leaf.stride(0) > 0) for leaf, many in zip(inputs, batched, strict=True) if many]
            given = [
                leaf[0] if many and not leaf.stride(0) else leaf for leaf, many in zip(inputs, batched, strict=True)
            ]
            given = [leaf.contiguous() for leaf in given]
            outputs = [given[first].new_empty((count, *shape), dtype=dtype) for shape, dtype in results]
            launched = kernel[(count,)](*given, *own, *outputs, num_warps=warps, maxnreg=registers)
            if not spills and getattr(launched, "n_spills", None):  # the interpreter launches nothing
                spills.append(launched.n_spills)
            return outputs

        return run, spills

    alone = [leaf.unsqueeze(0) if many else leaf for leaf, many in zip(example, batched, strict=True)]
    fitting: list[Fused] = []
    for count in [warps] if warps else WARPS:
        run, spills = launcher(count)
        if _fits(run, alone):
            fitting.append(run)
            if not spills:  # more warps would only wait for each other
                break
    if len(fitting) < 2 or example[0].device.type != "cuda":
        return fitting[0] if fitting else None
    return min(fitting, key=lambda run: _milliseconds(run, alone))


def runs_on(device: torch.device) -> bool:
    """Whether Triton is there, which this loads, and can run on this device; on a CPU only its interpreter does."""
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return False
    if device.type != "cuda":
        return _interpreted(triton)
    return int(triton.runtime.driver.active.get_current_device()) >= 0


def _interpreted(triton: Any) -> bool:
    return bool(triton.knobs.runtime.interpret)


def _milliseconds(run: Fused, inputs: list[Tensor], repeats: int = 20) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        run(*inputs)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _fits(run: Fused, inputs: list[Tensor]) -> bool:
    """Whether the kernel compiles and finds the shared memory that it needs."""
    try:
        run(*inputs)
    except importlib.import_module("triton.runtime.errors").OutOfResources:
        return False
    except importlib.import_module("triton.errors").TritonError as error:
        warnings.warn(f"a kernel does not compile, so other ways are used: {error}", stacklevel=3)
        return False
    return True


def _load(text: str) -> Any:
    """The kernel of a source text. Triton looks the source up by its file name, so it is put where that finds it."""
    name = f"<fused {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
    scope = {"__name__": __name__, "triton": triton, "tl": tl, "COMPILED": tl.constexpr(not _interpreted(triton))}
    exec(compile(text, name, "exec"), scope)
    return scope["kernel"]


def _shape(node: Any) -> Shape:
    if not isinstance(node, fx.Node) or not isinstance(node.meta.get("val"), Tensor):
        raise Unsupported(str(node))
    return tuple(node.meta["val"].shape)


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    if dtype not in ops.TYPES:
        raise Unsupported(str(dtype))
    return dtype


def _arguments(node: fx.Node, values: dict[fx.Node, Value]) -> Arguments:
    """Defaults filled in; a number where a tensor is due becomes one."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        raise Unsupported(f"{node.op} {node.target}")
    given: Arguments = {}
    for i, argument in enumerate(node.target._schema.arguments):
        value: Any = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        if isinstance(value, fx.Node):
            value = values[value]
        elif isinstance(value, (int, float)) and (str(argument.type) == "Tensor" or node.target in ops.WHERES):
            value = ops.literal(value, (), _dtype(node))
        given[argument.name] = value
    return given


class _Writer(Blocks):
    """Writes the kernel of a program, operation by operation."""

    def __init__(self, graph: fx.Graph, batched: list[bool], precision: str) -> None:
        super().__init__(batched)
        self.nodes, self.precision = list(graph.nodes), precision
        self.uses: Counter[str] = Counter()  # of a block in matrix products
        views = [(_shape(node), _shape(node.args[0])) for node in self.nodes if node.target in ops.VIEWS]
        pairs = views + [pair[::-1] for pair in views]
        self.columns = {short for short, long in pairs if long == (*short, 1)}  # vectors used as columns

    def text(self) -> str:
        values: dict[fx.Node, Value] = {}
        holders = [node for node in self.nodes if node.op == "placeholder"]
        outputs: list[Any] = list(self.nodes[-1].args[0])
        for i, node in enumerate(holders):
            if node.users:
                values[node] = self.load(i, _shape(node), _dtype(node), _shape(node) in self.columns)
        for node in self.nodes[len(holders) : -1]:
            values[node] = self.compute(node.target, _arguments(node, values), _shape(node), _dtype(node))
        for i, node in enumerate(outputs):
            if node not in values:
                raise Unsupported(f"the output {node}")
            self.store(i, values[node])
        loads = [self.load_line(name, *where) for name, where in self.inputs.items()]  # first, so that they overlap
        lines = ["task = tl.program_id(0).to(tl.int64)"] + [f"i{n} = tl.arange(0, {n})" for n in sorted(self.lengths)]
        lines += loads + [f"{name} = {expression}" for expression, name in self.names.items()] + self.stores
        own = [f"own{i}" for i, many in enumerate(self.batched) if many]
        names = [f"x{i}" for i in range(len(holders))] + own + [f"y{i}" for i in range(len(outputs))]
        head = f"@triton.jit(do_not_specialize={own})\ndef kernel({', '.join(names)}):"
        return f"{ops.PRELUDE}{head}\n    " + "\n    ".join(lines) + "\n"

    def compute(self, op: Any, given: Arguments, shape: Shape, dtype: torch.dtype) -> Value:
        args = list(given.values())
        if given.get("approximate", "none") != "none":
            raise Unsupported("an approximation")
        if op in ops.POINTWISE:
            floats = {dtype, *(arg.dtype for arg in args if isinstance(arg, Value))} & ops.FLOATS
            if len(floats) > 1:
                raise Unsupported("mixed precision")
            return self.pointwise(ops.POINTWISE[op], args, shape, dtype)
        if op in ops.VIEWS:
            return ops.viewed(args[0], shape)
        if op in ops.TRANSPOSES:
            return transposed(args[0]) if ops.swaps(op, *args) else args[0]
        if op in ops.COPIES:
            convert = (f"({{0}}).to({ops.TYPES[dtype]})", ops.ALL)
            value: Value = (
                args[0] if args[0].dtype == dtype else self.pointwise(convert, args[:1], args[0].shape, dtype)
            )
            return value._replace(shape=shape)
        if op in ops.CONSTANTS:
            number = ops.CONSTANTS[op]
            return ops.literal(given[number] if isinstance(number, str) else number, shape, dtype)
        if op not in _OTHERS or not dtype.is_floating_point:
            raise Unsupported(str(op))
        return _OTHERS[op](self, given, shape)

    def pointwise(self, rule: tuple[str, str], args: list[Any], shape: Shape, dtype: torch.dtype) -> Value:
        template, zero = rule
        tensors = [arg for arg in args if isinstance(arg, Value)]
        neutral = {ops.MUL: 1.0, ops.ADD: 0.0}.get(template)
        rest = [value for value in tensors if neutral is None or value.number != neutral]
        if (len(tensors), len(rest)) == (2, 1) and rest[0].dtype == dtype and args[2:] in ([], [1]):
            return rest[0]._replace(shape=shape)
        if template == ops.WHERE or all(value.number is not None for value in tensors):
            args = [self.typed(arg) if isinstance(arg, Value) else arg for arg in args]
        turned = self.orientation(tensors)
        args = [self.hold(arg, turned) if isinstance(arg, Value) else arg for arg in args]
        tensors = [arg for arg in args if isinstance(arg, Value)]
        sizes = ops.small((max(value.sizes[0] for value in tensors), max(value.sizes[1] for value in tensors)))
        name = self.emit(template.format(*(arg.name if isinstance(arg, Value) else ops.as_text(arg) for arg in args)))
        clean = not self.mask(sizes) or ops.stays_zero(zero, tensors, sizes)
        return Value(name, sizes, turned, clean, shape, dtype)

    def orientation(self, tensors: list[Value]) -> bool:
        """That in which the least has to be moved; of equal ones the tensors' own for vectors, else not turned."""
        blocks = [value for value in tensors if value.sizes != (1, 1)]
        moved = [0, 0]
        for value in blocks:
            free = value.name in self.inputs and 1 in value.sizes
            moved[not value.turned] += 0 if free else math.prod(value.sizes)
        if moved[0] != moved[1]:
            return moved[1] < moved[0]
        return bool(blocks) and all(value.turned and 1 in value.sizes for value in blocks)

    def times(self, a: Value, b: Value) -> Value:
        """The products of entries."""
        rows, columns = (max(pair) for pair in zip(plane(a.shape), plane(b.shape), strict=True))
        return self.pointwise((ops.MUL, ops.ONE), [a, b], (rows, columns), a.dtype)

    def reduce(self, value: Value, axes: set[int], shape: Shape, how: str = "sum") -> Value:
        """Over axes of the tensor's plane."""
        value = self.whole(value, "0.0" if how == "sum" else 'float("-inf")')
        kept = ops.without(value.shape, axes)
        sizes = plane(kept, value.turned)
        if sizes == (1, 1) != value.sizes:
            value = value._replace(name=self.emit(f"tl.{how}({value.name})"))
        elif sizes[0] != value.sizes[0]:
            value = value._replace(name=self.emit(f"tl.{how}({value.name}, axis=0)[None, :]"))
        elif sizes[1] != value.sizes[1]:
            value = value._replace(name=self.emit(f"tl.{how}({value.name}, axis=1)[:, None]"))
        return ops.viewed(value._replace(sizes=sizes, clean=True, shape=kept), shape)

    def total(self, given: Arguments, shape: Shape) -> Value:
        value = given["self"]
        if not value.dtype.is_floating_point or given["dtype"] not in (None, value.dtype):
            raise Unsupported("a sum in another type")
        return self.reduce(value, ops.plane_axes(value.shape, given.get("dim")), shape)

    def mean(self, given: Arguments, shape: Shape) -> Value:
        total = self.total(given, shape)
        count = math.prod(given["self"].shape) / math.prod(shape)
        return self.pointwise((ops.DIV, ops.FIRST), [total, count], shape, total.dtype)

    def power(self, given: Arguments, shape: Shape) -> Value:
        value: Value = given["self"]
        exponent = float(given["exponent"])
        if exponent == 0:
            return ops.literal(1.0, shape, value.dtype)
        if exponent == 1:
            return value
        if exponent not in ops.POWERS:
            raise Unsupported(f"power {exponent}")
        return self.pointwise(ops.POWERS[exponent], [value], shape, value.dtype)

    def add_product(self, given: Arguments, shape: Shape) -> Value:
        if given["beta"] != 1 or given["alpha"] != 1:
            raise Unsupported("a scaled matrix product")
        value = self.product({"self": given["mat1"], "mat2": given["mat2"]}, shape)
        return self.pointwise((ops.ADD, ops.ALL), [given["self"], value, 1], shape, value.dtype)

    def product(self, given: Arguments, shape: Shape) -> Value:
        a: Value = given["self"]
        b: Value = given["mat2"]
        (rows, inner), columns = a.shape, b.shape[1]
        if inner == 1:
            return self.times(a, b)
        if columns == 1:
            return self.reduce(self.times(a, transposed(b)), {1}, (rows, 1))
        if rows == 1:
            return self.reduce(self.times(transposed(a), b), {0}, (1, columns))
        if a.turned and b.turned:
            return transposed(self.product({"self": transposed(b), "mat2": transposed(a)}, shape[::-1]))
        if math.prod(map(padded, (rows, inner, columns))) > LARGEST_PRODUCT:
            raise Unsupported("a large matrix product")
        left, right = (self.operand(self.hold(self.whole(value), turned=False)) for value in (a, b))
        how = f'input_precision="{self.precision}", out_dtype={ops.TYPES[a.dtype]}'
        name = self.emit(f"tl.dot({left}, {right}, {how})")
        return Value(name, ops.small((rows, columns)), False, True, shape, a.dtype)

    def operand(self, value: Value) -> str:
        """Of a matrix product. In a second one it is made to look new, or the compiler would hold its copy of the
        block, which takes most of the registers, from the first product to the last."""
        use = self.uses[value.name]
        self.uses[value.name] += 1
        again = use and value.dtype == torch.float32
        return self.emit(f'same({value.name}, "mov.b32 $0, $1; // {use}")') if again else value.name

    def log_softmax(self, given: Arguments, shape: Shape) -> Value:
        value, axes = given["self"], ops.plane_axes(shape, [given["dim"]])
        top = self.reduce(value, axes, ops.without(shape, axes), "max")
        low = self.pointwise((ops.SUB, ops.NEVER), [value, top, 1], shape, value.dtype)
        parts = self.pointwise((ops.EXP, ops.NEVER), [low], shape, value.dtype)
        total = self.reduce(parts, axes, ops.without(shape, axes))
        return self.pointwise(("{0} - tl.log({1})", ops.NEVER), [low, total], shape, value.dtype)

    def log_softmax_backward(self, given: Arguments, shape: Shape) -> Value:
        grad, axes = given["grad_output"], ops.plane_axes(shape, [given["dim"]])
        total = self.reduce(grad, axes, ops.without(shape, axes))
        parts = [grad, given["output"], total]
        return self.pointwise(("{0} - tl.exp({1}) * {2}", ops.NEVER), parts, shape, grad.dtype)

    def positions(self, value: Value, index: Value, dim: int) -> Value:
        """Those along an axis, for an index that names one of them in every row."""
        axes = ops.plane_axes(value.shape, [dim])
        if plane(index.shape) != ops.without(value.shape, axes):
            raise Unsupported("an index of several entries")
        shape = ops.without(value.shape, {0, 1} - axes)
        name = self.index(max(shape), max(axes) ^ value.turned)
        return Value(name, plane(shape, value.turned), value.turned, False, shape, torch.int64)

    def gather(self, given: Arguments, shape: Shape) -> Value:
        value, index, dim = given["self"], given["index"], given["dim"]
        parts = [self.positions(value, index, dim), index, value]
        found = self.pointwise(("tl.where({0} == {1}, {2}, 0.0)", ops.NEVER), parts, value.shape, value.dtype)
        return self.reduce(found, ops.plane_axes(value.shape, [dim]), shape)

    def scatter_add(self, given: Arguments, shape: Shape) -> Value:
        value, index, source = given["self"], given["index"], given["src"]
        if plane(source.shape) != plane(index.shape):
            raise Unsupported("an index shorter than its source")
        parts = [value, self.positions(value, index, given["dim"]), index, source]
        return self.pointwise(("{0} + tl.where({1} == {2}, {3}, 0.0)", ops.NEVER), parts, shape, value.dtype)


_OTHERS: dict[Any, Callable[[_Writer, Arguments, Shape], Value]] = {
    aten.mm.default: _Writer.product,
    aten.addmm.default: _Writer.add_product,
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
