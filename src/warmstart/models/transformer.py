"""A small transformer over the words of a text, trained from its start: attention, then two layers, a few times.

    h_i = table[word_i] + wave(i)
    h <- h + attend(norm(h)),    h <- h + down(gelu(up(norm(h)))),    in every block
    features = mean of norm(h_i) over the words of the text

A text is one bag of codes whose order counts: 0 pads, 1 is a word that training texts do not hold. Nothing attends to
padding. Vaswani et al., 2017; norms come first (Xiong et al., 2020), and there is no dropout, which a pure function
cannot draw. Attention is written out: the fused kernels have no forward-mode derivative, nor one for a stack of models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from warmstart.core import Columns, InputError
from warmstart.models.heads import own_head


@dataclass(frozen=True)
class Shape:
    width: int = 64
    layers: int = 2
    views: int = 4  # heads of the attention, each of width / views
    wider: int = 2  # the layer between, relative to width


class Block(nn.Module):
    """What each word takes from the others, then two layers on each alone."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.views = shape.views
        self.norm = nn.LayerNorm(width)
        # without biases: one of the keys changes nothing, and Adam would make steps of its rounding errors
        self.asked = nn.Linear(width, 3 * width, bias=False)
        self.taken = nn.Linear(width, width)
        self.norm_alone = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, shape.wider * width), nn.Linear(shape.wider * width, width)

    def forward(self, h: Tensor, words: Tensor) -> Tensor:
        """h [*n, length, width]; words [*n, length] whether there is one."""
        query, key, value = (
            part.unflatten(-1, (self.views, -1)).transpose(-2, -3) for part in self.asked(self.norm(h)).chunk(3, -1)
        )
        score = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        padding = (words.to(score) - 1)[..., None, None, :]
        found = torch.softmax(score + 1e9 * padding, -1) @ value
        h = h + self.taken(found.transpose(-2, -3).flatten(-2))
        out: Tensor = h + self.down(torch.nn.functional.gelu(self.up(self.norm_alone(h))))
        return out


class TransformerNet(nn.Module):
    """Rows come as in `models.tabular`, of one bag [n, 1, length] and nothing else; `head` [n] where there are several.

    >>> rows = {"bag": torch.tensor([[[2, 3, 0]]])}
    >>> TransformerNet(Columns(bag=(5,)), outputs=2)(rows).shape
    torch.Size([1, 2])
    """

    def __init__(self, columns: Columns, shape: Shape = Shape(), outputs: int = 1, heads: int = 1) -> None:
        super().__init__()
        if columns.numeric or columns.categorical or len(columns.bag) != 1:
            got = f"{columns.numeric} numbers, {len(columns.categorical)} categories, {len(columns.bag)} bags"
            raise InputError("rows of one text", got, "use hidden layers for other columns")
        if any(not isinstance(size, int) or size < 1 for size in vars(shape).values()):
            raise InputError("width, layers, views and wider as whole numbers above zero", f"{shape}", "change them")
        if shape.width % (2 * shape.views):
            wanted = f"a width that is a multiple of {2 * shape.views}, twice the views"
            raise InputError(wanted, f"{shape}", "change it")
        self.heads, self.width = heads, shape.width
        self.table = nn.Embedding(columns.bag[0], shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, outputs * heads)

    def features(self, x: dict[str, Tensor]) -> Tensor:
        codes = x["bag"][..., 0, :]
        words = codes > 0
        h = self.table(codes)
        h = h + wave(codes.shape[-1], h)
        for block in self.blocks:
            h = block(h, words)
        there = words.unsqueeze(-1).to(h)
        mean: Tensor = (self.norm(h) * there).sum(-2) / there.sum(-2).clamp(min=1.0)
        return mean

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return own_head(self.head(self.features(x)), x, self.heads)


def wave(length: int, like: Tensor) -> Tensor:
    """[length, width] a place as sines and cosines, from the shortest wave to one of 10,000 times its length."""
    width = like.shape[-1]
    place = torch.arange(length, device=like.device, dtype=like.dtype)[:, None]
    step = torch.arange(0, width, 2, device=like.device, dtype=like.dtype) / width
    angle = place * torch.exp(-math.log(10_000.0) * step)
    return torch.cat([angle.sin(), angle.cos()], -1)
