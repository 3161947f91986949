"""What `fused` knows how to write: ATen operations on numbers as Triton expressions.

A template's `{i}` is the i-th argument of the operation's schema. A rule says when an operation
leaves zero padding zero, which saves setting it again:

    ALL      if it is zero in every operand
    ONE      if it is zero in one operand and finite in the others
    FIRST    if it is zero in the first operand, whatever the others hold
    RATIO    if it is zero in the first operand and the second is a scalar
    NEVER    it has to be set again
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

ALL, ONE, FIRST, RATIO, NEVER = "all", "one", "first", "ratio", "never"
ADD, SUB, MUL, DIV = "{0} + {2} * {1}", "{0} - {2} * {1}", "{0} * {1}", "{0} / {1}"
INVERSE, ROOT, INVERSE_ROOT = "1.0 / {0}", "tl.sqrt({0})", "1.0 / tl.sqrt({0})"
WHERE = "tl.where({0}, {1}, {2})"
EXP = "tl.exp({0})"

# log1p and expm1 are accurate near zero because the rounding of 1 + x cancels out in the ratio
PRELUDE = """\
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

POINTWISE = {
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
    aten.where.self: (WHERE, NEVER),
    aten.where.ScalarOther: (WHERE, NEVER),
    aten.where.ScalarSelf: (WHERE, NEVER),
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
CONSTANTS = {
    aten.zeros.default: 0.0,
    aten.zeros_like.default: 0.0,
    aten.new_zeros.default: 0.0,
    aten.ones.default: 1.0,
    aten.ones_like.default: 1.0,
    aten.new_ones.default: 1.0,
    aten.full.default: None,  # given
    aten.full_like.default: None,
    aten.new_full.default: None,
    aten.scalar_tensor.default: None,
}

TYPES = {torch.float32: "tl.float32", torch.float64: "tl.float64", torch.int64: "tl.int64", torch.bool: "tl.int1"}
