"""Which device to use, and how precisely it multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from warmstart.core import InputError


def fast_products(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU products of float32 matrices may be rounded to bfloat16 first; they add up in float32."""
    return _products("medium" if device.type == "cuda" else torch.get_float32_matmul_precision())


@contextmanager
def exact_products() -> Iterator[None]:
    """No product of float32 matrices is rounded, whatever is allowed around: for linear systems solved by products.

    Also a decorator of functions.
    """
    with _products("highest"):
        yield


@contextmanager
def _products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is a CUDA device where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in {"cpu", "cuda"}:
        raise InputError("a device auto, cpu or cuda", repr(name), "use one of these names")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("a CUDA device", "none on this machine", "use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"a device below cuda:{torch.cuda.device_count()}", repr(name), "use one that is there")
    return device
