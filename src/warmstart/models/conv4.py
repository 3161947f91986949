"""The four-block network of few-shot learning: convolution, batch statistics, ReLU, four times; linear head.

For Omniglot 64 filters and strides of two, for colour 32 filters and max-pooling (Finn, Abbeel and
Levine, 2017). A block is normalised by the statistics of the batch it is given, so what it says of
one picture depends on the others: feed it one query picture with the support to have it otherwise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from warmstart.engine.stage import COMPILED, LOOPED, TRACED, Stage
from warmstart.models.convolution import Convolution, convolve, pool

BLOCKS = 4
EPSILON = 1e-5


class Block(nn.Module):
    """3x3 convolution, batch statistics over the real pictures, scale and shift, ReLU, halved."""

    def __init__(self, inputs: int, filters: int, strided: bool, convolution: Convolution) -> None:
        super().__init__()
        self.strided, self.convolution = strided, convolution
        self.weight = nn.Parameter(torch.empty(filters, inputs, 3, 3))
        nn.init.xavier_uniform_(self.weight)
        self.scale = nn.Parameter(torch.ones(filters))
        self.shift = nn.Parameter(torch.zeros(filters))

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        """`share` [n] of each picture in the statistics: 1 / count, 0 for padding."""
        x = self.convolution(x, self.weight, 2 if self.strided else 1)
        weight = share[:, None]
        mean = (weight * x.mean((2, 3))).sum(0)
        x = x - mean[:, None, None]
        second = (weight * (x**2).mean((2, 3))).sum(0)
        factor = self.scale * torch.rsqrt(second + EPSILON)
        x = F.relu(x * factor[:, None, None] + self.shift[:, None, None])
        return x if self.strided else pool(x)


class Conv4(nn.Module):
    """Pictures {"pixels": [n, c, h, w], "real": [n]} to class scores [n, outputs].

    >>> net = Conv4((1, 28, 28), 5)
    >>> net({"pixels": torch.zeros(3, 1, 28, 28), "real": torch.ones(3)}).shape
    torch.Size([3, 5])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        outputs: int,
        filters: int = 64,
        strided: bool = True,
        convolution: Convolution = convolve,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        inputs = [channels] + [filters] * (BLOCKS - 1)
        self.blocks = nn.ModuleList(Block(n, filters, strided, convolution) for n in inputs)
        for _ in range(BLOCKS):
            height, width = ((height + 1) // 2, (width + 1) // 2) if strided else (height // 2, width // 2)
        self.head = nn.Linear(filters if strided else filters * height * width, outputs)
        self.strided = strided

    def features(self, x: dict[str, Tensor]) -> Tensor:
        """[n, d]: the mean over what is left of a strided network's picture, all of a pooled one's."""
        share = x["real"] / x["real"].sum().clamp(min=1.0)
        out = x["pixels"]
        for block in self.blocks:
            out = block(out, share)
        return out.mean((2, 3)) if self.strided else out.flatten(1)

    def top(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(features)
        return scores

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.top(self.features(x))


LONG = 10_000  # updates that make up for compiling, which takes a minute and then runs three times as fast
FEW = 640  # strided pictures whose maps a CPU keeps at hand


def fastest_stage(device: torch.device, strided: bool, updates: int, pictures: int) -> Stage:
    """How a stack of these networks runs best; `pictures` of all its tasks together.

    On a CPU many pictures or large maps do so one task after another.
    """
    if device.type == "cuda":
        return COMPILED if updates >= LONG else TRACED
    return TRACED if strided and pictures <= FEW else LOOPED
