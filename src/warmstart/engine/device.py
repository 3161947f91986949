"""Which device to use."""

from __future__ import annotations

import torch

from warmstart.core import InputError


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is a CUDA device where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError("a device auto, cpu or cuda", repr(name), "use one of these names") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("a CUDA device", "none on this machine", "use --device cpu or auto")
    return device
