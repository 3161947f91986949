"""The multi-layer perceptron: `features`, then a linear `head`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from warmstart.core import InputError

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer that may have no inputs, of which torch warns: it then says its bias.

    >>> linear(0, 2)(torch.zeros(3, 0)).shape
    torch.Size([3, 2])
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        return nn.Linear(inputs, outputs)


def body(inputs: int, hidden: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers, each followed by the activation."""
    if activation not in ACTIVATIONS:
        raise InputError(f"an activation among {', '.join(ACTIVATIONS)}", repr(activation), "use one of these names")
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [linear(inputs, width), ACTIVATIONS[activation]()]
        inputs = width
    return nn.Sequential(*layers)


class MLP(nn.Module):
    """inputs -> hidden layers -> head.

    >>> MLP(1, (40, 40), 1)(torch.zeros(5, 1)).shape
    torch.Size([5, 1])
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int] = (40, 40), outputs: int = 1, activation: str = "relu"
    ) -> None:
        super().__init__()
        self.body = body(inputs, hidden, activation)
        self.head = linear(hidden[-1] if hidden else inputs, outputs)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out

    def top(self, features: Tensor) -> Tensor:
        out: Tensor = self.head(features)
        return out

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.features(x))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Modules built inside initialise reproducibly; the global generator is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
