"""The linear and convolutional layers of a network, met while it runs.

A `Model` is a function of its parameters and shows nothing of what lies inside. Where a method must know what a layer
is given or say what it gives (local reparameterisation, Flipout, Kronecker factors), the layers are recognised by their
weight: the very tensor that was handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from warmstart.core import Params

LAYERS = (F.linear, F.conv2d)


class Layer(NamedTuple):
    weight: str  # the name of its weight
    bias: str  # of its bias; "" without
    x: Tensor
    apply: Callable[..., Tensor]  # x, weight, bias or None -> what the layer makes of them
    linear: bool  # or a convolution
    options: Any  # of a convolution: stride, padding and the like


class Meeting(TorchFunctionMode):
    """A context in which `handle` gives the output of every layer whose weight, and bias if any, is among `params`."""

    def __init__(self, params: Params, handle: Callable[[Layer], Tensor]) -> None:
        super().__init__()
        self.names, self.handle = {id(value): name for name, value in params.items()}, handle

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in LAYERS:
            return func(*args, **(kwargs or {}))
        names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
        given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
        x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)

        def apply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            out: Tensor = func(x, weight, bias, **given)
            return out

        if id(weight) not in self.names or (bias is not None and id(bias) not in self.names):
            return apply(x, weight, bias)
        name = "" if bias is None else self.names[id(bias)]
        return self.handle(Layer(self.names[id(weight)], name, x, apply, func is F.linear, given))
