"""What `fused` writes kernels of: tensors as blocks, and ATen operations as Triton expressions.

A tensor is held in a block of two axes: a vector is a row or a column, a scalar a scalar. Axes longer
than one are padded to powers of two.

The `{i}` of a template is the i-th argument of the operation's schema. A rule says when an operation
leaves zero padding zero, which saves setting it again:

    ALL      if it is zero in every operand
    ONE      if it is zero in one operand and finite in the others
    FIRST    if it is zero in the first operand, whatever the others hold
    RATIO    if it is zero in the first operand and the second is a scalar
    NEVER    it has to be set again
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten
Shape = tuple[int, ...]
Sizes = tuple[int, int]
LARGEST_BLOCK = 2**13  # numbers; beyond, registers run out

ALL, ONE, FIRST, RATIO, NEVER = "all", "one", "first", "ratio", "never"
ADD, SUB, MUL, DIV = "{0} + {2} * {1}", "{0} - {2} * {1}", "{0} * {1}", "{0} / {1}"
INVERSE, ROOT, INVERSE_ROOT = "1.0 / {0}", "tl.sqrt({0})", "1.0 / tl.sqrt({0})"
WHERE = "tl.where({0}, {1}, {2})"
EXP = "tl.exp({0})"

# log1p and expm1 are accurate near zero because the rounding of 1 + x cancels out in the ratio
PRELUDE = """\
@triton.jit
def same(x, move: tl.constexpr):
    if COMPILED:
        x = tl.inline_asm_elementwise(move, "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    return x


@triton.jit
def log1p(x):
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / (u - 1.0)))


@triton.jit
def expm1(x):
    u = tl.exp(x)
    return tl.where(u == 1.0, x, (u - 1.0) * (x / tl.log(u)))


@triton.jit
def tanh(x):
    size = tl.abs(x)
    e = expm1(-2.0 * tl.where(size > 20.0, 20.0, size))
    return tl.where(x < 0.0, e, -e) / (2.0 + e)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def normal_cdf(x):
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def normal_pdf(x):
    return tl.exp(-0.5 * x * x) * 0.3989422804014327


"""

WHERES = {aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar}
POINTWISE = {
    **dict.fromkeys(WHERES, (WHERE, NEVER)),
    aten.add.Tensor: (ADD, ALL),
    aten.add.Scalar: (ADD, NEVER),
    aten.sub.Tensor: (SUB, ALL),
    aten.sub.Scalar: (SUB, NEVER),
    aten.rsub.Scalar: ("{1} - {2} * {0}", NEVER),
    aten.mul.Tensor: (MUL, ONE),
    aten.mul.Scalar: (MUL, FIRST),
    aten.div.Tensor: (DIV, RATIO),
    aten.div.Scalar: (DIV, FIRST),
    aten.neg.default: ("-{0}", ALL),
    aten.abs.default: ("tl.abs({0})", ALL),
    aten.reciprocal.default: (INVERSE, NEVER),
    aten.sqrt.default: (ROOT, ALL),
    aten.rsqrt.default: (INVERSE_ROOT, NEVER),
    aten.exp.default: (EXP, NEVER),
    aten.log.default: ("tl.log({0})", NEVER),
    aten.log1p.default: ("log1p({0})", ALL),
    aten.expm1.default: ("expm1({0})", ALL),
    aten.relu.default: ("tl.where({0} <= 0.0, 0.0, {0})", ALL),
    aten.threshold_backward.default: ("tl.where({1} <= {2}, 0.0, {0})", FIRST),
    aten.tanh.default: ("tanh({0})", ALL),
    aten.tanh_backward.default: ("{0} * (1.0 - {1} * {1})", ONE),
    aten.sigmoid.default: ("sigmoid({0})", NEVER),
    aten.sigmoid_backward.default: ("{0} * ((1.0 - {1}) * {1})", ONE),
    aten.softplus.default: ("tl.where({0} * {1} > {2}, {0}, log1p(tl.exp({0} * {1})) / {1})", NEVER),
    aten.softplus_backward.default: ("tl.where({1} * {2} > {3}, {0}, {0} * sigmoid({1} * {2}))", ONE),
    aten.silu.default: ("{0} * sigmoid({0})", ALL),
    aten.silu_backward.default: ("{0} * sigmoid({1}) * (1.0 + {1} * (1.0 - sigmoid({1})))", ONE),
    aten.gelu.default: ("{0} * normal_cdf({0})", ALL),
    aten.gelu_backward.default: ("{0} * (normal_cdf({1}) + {1} * normal_pdf({1}))", ONE),
    aten.bitwise_and.Tensor: ("{0} & {1}", NEVER),
    aten.bitwise_or.Tensor: ("{0} | {1}", NEVER),
    aten.logical_and.default: ("{0} & {1}", NEVER),
    aten.logical_or.default: ("{0} | {1}", NEVER),
    aten.logical_not.default: ("{0} == 0", NEVER),
} | {
    getattr(getattr(aten, name), kind): (f"{{0}} {sign} {{1}}", NEVER)
    for name, sign in {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}.items()
    for kind in ("Tensor", "Scalar")
}

POWERS = {
    -1.0: (INVERSE, NEVER),
    -0.5: (INVERSE_ROOT, NEVER),
    0.5: (ROOT, ALL),
    2.0: ("{0} * {0}", ALL),
    3.0: ("{0} * {0} * {0}", ALL),
    4.0: ("({0} * {0}) * ({0} * {0})", ALL),
}

# fine as long as nothing but axes of size one come or go
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.select.int,
    aten.slice.Tensor,
}
TRANSPOSES = {aten.t.default, aten.transpose.int, aten.permute.default}
COPIES = {aten.detach.default, aten.clone.default, aten.alias.default, aten.expand.default, aten._to_copy.default}
# with what they are filled, or where that is given
CONSTANTS: dict[Any, float | str] = {
    aten.empty_like.default: 0.0,
    aten.zeros.default: 0.0,
    aten.zeros_like.default: 0.0,
    aten.new_zeros.default: 0.0,
    aten.ones.default: 1.0,
    aten.ones_like.default: 1.0,
    aten.new_ones.default: 1.0,
    aten.full.default: "fill_value",
    aten.full_like.default: "fill_value",
    aten.new_full.default: "fill_value",
    aten.fill.Scalar: "value",
    aten.scalar_tensor.default: "s",
}

TYPES = {torch.float32: "tl.float32", torch.float64: "tl.float64", torch.int64: "tl.int64", torch.bool: "tl.int1"}
FLOATS = {torch.float32, torch.float64}


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


def small(sizes: Sizes) -> Sizes:
    if math.prod(map(padded, sizes)) > LARGEST_BLOCK:
        raise Unsupported(f"a block of {sizes}")
    return sizes


def plane_axes(shape: Shape, dims: list[int] | None) -> set[int]:
    """Axes of a tensor, all unless given, as axes of its plane."""
    return {dim % len(shape) + 2 - len(shape) for dim in dims} if dims and shape else {0, 1}


def without(shape: Shape, axes: set[int]) -> Sizes:
    """The plane of a tensor after a reduction."""
    rows, columns = (1 if axis in axes else size for axis, size in enumerate(plane(shape)))
    return rows, columns


def viewed(value: Value, shape: Shape) -> Value:
    """With axes of size one added or removed."""
    old, new = plane(value.shape), plane(shape)
    if old == new:
        return value._replace(shape=shape)
    if 1 in old and old == new[::-1]:
        return value._replace(shape=shape, turned=not value.turned)
    raise Unsupported(f"a view of {value.shape} as {shape}")


def transposed(value: Value) -> Value:
    return value._replace(shape=value.shape[::-1], turned=not value.turned)


def swaps(op: Any, value: Value, *dims: Any) -> bool:
    """Whether a transposition turns a matrix."""
    if len(value.shape) < 2 or op is aten.t.default:
        return len(value.shape) == 2
    if op is aten.permute.default:
        return bool(dims[0][0] % 2 == 1)
    return bool((dims[0] - dims[1]) % 2 == 1)


def as_text(argument: Any) -> str:
    infinite = isinstance(argument, float) and not math.isfinite(argument)
    return f'float("{argument}")' if infinite else repr(argument)


def literal(number: Any, shape: Shape, dtype: torch.dtype) -> Value:
    name = as_text(float(number) if dtype.is_floating_point else int(number))
    return Value(name, (1, 1), False, True, shape, dtype, float(number))


def stays_zero(rule: str, tensors: list[Value], sizes: Sizes) -> bool:
    """Whether the padding of a result of these sizes is zero."""
    whole = [value.clean and value.sizes == sizes for value in tensors]
    if rule == ALL:
        return all(whole)
    if rule == ONE:
        return any(whole) and all(value.clean for value in tensors)
    if rule == RATIO:
        return whole[0] and tensors[1].sizes == (1, 1)
    return rule == FIRST and whole[0]


class Blocks:
    """The blocks of a kernel: where they come from and go to, and how they lie."""

    def __init__(self, batched: list[bool]) -> None:
        self.batched = batched
        self.lengths: set[int] = set()  # for which the kernel needs an index
        self.inputs: dict[str, tuple[int, Shape, bool]] = {}  # block -> number, shape, turned
        self.names: dict[str, str] = {}  # expression -> block
        self.stores: list[str] = []

    def emit(self, expression: str) -> str:
        return self.names.setdefault(expression, f"v{len(self.names)}")

    def index(self, size: int, axis: int) -> str:
        self.lengths.add(padded(size))
        return f"i{padded(size)}" + ("[None, :]" if axis else "[:, None]")

    def mask(self, sizes: Sizes) -> str:
        """Which entries of a block are no padding; empty where all are."""
        return " & ".join(f"({self.index(n, axis)} < {n})" for axis, n in enumerate(sizes) if n != padded(n))

    def address(self, pointer: str, shape: Shape, turned: bool, task: str) -> str:
        sizes = plane(shape, turned)
        steps = (1, sizes[0]) if turned else (sizes[1], 1)
        terms = [pointer, f"{task} * {math.prod(shape)}"] if task else [pointer]
        return " + ".join(terms + [f"{self.index(n, axis)} * {steps[axis]}" for axis, n in enumerate(sizes) if n > 1])

    def load(self, i: int, shape: Shape, dtype: torch.dtype, turned: bool) -> Value:
        name = f"x{i}t" if turned else f"x{i}n"
        self.inputs[name] = (i, shape, turned)
        return Value(name, small(plane(shape, turned)), turned, True, shape, dtype)

    def load_line(self, name: str, i: int, shape: Shape, turned: bool) -> str:
        mask = self.mask(plane(shape, turned))
        guard = f", mask={mask}, other=0" if mask else ""
        task = f"task * own{i}" if self.batched[i] else ""  # own is 0 where a stack repeats one tensor
        return f"{name} = tl.load({self.address(f'x{i}', shape, turned, task)}{guard})"

    def store(self, i: int, value: Value) -> None:
        mask = self.mask(small(plane(value.shape, value.turned)))
        guard = f", mask={mask}" if mask else ""
        address = self.address(f"y{i}", value.shape, value.turned, "task")
        self.stores.append(f"tl.store({address}, {self.typed(value).name}{guard})")

    def typed(self, value: Value) -> Value:
        """A literal as a scalar of its type."""
        if value.number is None:
            return value
        return value._replace(name=self.emit(f"tl.full((), {value.name}, {TYPES[value.dtype]})"), number=None)

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
        value, sizes = self.typed(value), small(plane(value.shape, value.turned))
        mask = self.mask(sizes)
        if value.sizes == sizes and (not mask or (value.clean and fill == "0.0")):
            return value
        if mask:
            name = self.emit(f"tl.where({mask}, {value.name}, {fill})")
        else:
            name = self.emit(f"tl.zeros({[padded(n) for n in sizes]}, {TYPES[value.dtype]}) + {value.name}")
        return value._replace(name=name, sizes=sizes, clean=fill == "0.0")
