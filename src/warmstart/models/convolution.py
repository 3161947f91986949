"""3x3 convolution with a padding of one, and the pooling behind it, by device.

On a CPU torch's own. On a GPU a stack of tasks has a kernel for each task, which torch runs as a grouped
convolution, slowly; as a gather of patches and a batched matrix product it is fast. The gather and the
sum that brings patches back are each other's adjoint, so derivatives of any order are made of these two, and
neither ever scatters. Pictures are [n, c, h, w] in meaning and [n, h, w, c] in memory there. Where torch's
precision of float32 products is "medium", patches and kernels are bfloat16 and their products add up in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

Convolution: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]


def convolve(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """x [n, c, h, w], weight [f, c, 3, 3] -> [n, f, h', w']."""
    return by_patches(x, weight, stride) if x.is_cuda else by_torch(x, weight, stride)


def by_torch(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return F.conv2d(x, weight, stride=stride, padding=1)


def by_patches(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    n, c = x.shape[:2]
    lower = x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "medium"
    last = x.permute(0, 2, 3, 1).to(torch.bfloat16 if lower else x.dtype)
    found: Tensor = Patches.apply(last, stride)  # type: ignore[no-untyped-call]
    rows, columns = found.shape[1:3]
    kernel = weight.permute(2, 3, 1, 0).reshape(9 * c, -1).to(found.dtype)
    out = (found.reshape(n * rows * columns, 9 * c) @ kernel).to(x.dtype)
    return out.reshape(n, rows, columns, -1).permute(0, 3, 1, 2)


def pool(x: Tensor) -> Tensor:
    """The greatest of every 2x2 square, [n, c, h, w] -> [n, c, h // 2, w // 2]."""
    return by_squares(x) if x.is_cuda else F.max_pool2d(x, 2)


def by_squares(x: Tensor) -> Tensor:
    """In operations whose derivatives of any order are known inside vmap, also where channels come last in memory."""
    n, c, h, w = x.shape
    return x[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2).amax((3, 5))


def _size(length: int, stride: int) -> int:
    return (length - 1) // stride + 1


def _reached(length: int, stride: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which of `length` places each tap of each patch looks at, and whether there is such a place: [patches, 3]."""
    at = stride * torch.arange(_size(length, stride), device=device)[:, None] + torch.arange(-1, 2, device=device)
    return at.clamp(0, length - 1), (at >= 0) & (at < length)


def _reaching(length: int, stride: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Which patches look at each place, with which tap, and whether there are such: [length, at most 3]."""
    place = torch.arange(length, device=device)[:, None] + 1
    tap = place % stride + stride * torch.arange((2 + stride) // stride, device=device)
    patch = torch.div(place - tap, stride, rounding_mode="floor")
    real = (tap < 3) & (patch >= 0) & (patch < _size(length, stride))
    return patch.clamp(0, _size(length, stride) - 1), tap.clamp(max=2), real


class Patches(Function):
    """[n, h, w, c] -> [n, h', w', 3, 3, c]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, stride: int) -> Tensor:
        r, real_r = _reached(x.shape[1], stride, x.device)
        c, real_c = _reached(x.shape[2], stride, x.device)
        real = (real_r[:, None, :, None] & real_c[:, None, :])[..., None]
        return torch.where(real, x[:, r[:, None, :, None], c[:, None, :]], 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.size, ctx.stride = inputs[0].shape[1:3], inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return Summed.apply(grads[0], *ctx.size, ctx.stride), None  # type: ignore[no-untyped-call]


class Summed(Function):
    """[n, h', w', 3, 3, c] -> [n, h, w, c]: every place gets the sum of the taps that look at it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(patches: Tensor, height: int, width: int, stride: int) -> Tensor:
        r, i, real_r = _reaching(height, stride, patches.device)
        c, j, real_c = _reaching(width, stride, patches.device)
        real = (real_r[:, None, :, None] & real_c[:, None, :])[..., None]
        taps = patches[:, r[:, None, :, None], c[:, None, :], i[:, None, :, None], j[:, None, :]]
        return torch.where(real, taps, 0.0).sum((3, 4))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int, int], output: Tensor) -> None:
        ctx.stride = inputs[3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return Patches.apply(grads[0], ctx.stride), None, None, None  # type: ignore[no-untyped-call]
