"""The tabular network: embeddings, bags for multi-valued columns, standardised numbers, head.

Rows come as a dict: `numeric` [n, d] already standardised, `categorical` [n, c] and
`bag` [n, b, l] holding indices. Index 0 is *missing* (and the padding of a bag), index 1 is
*unseen*, values start at 2; both special slots start at zero, so that they say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from warmstart.core import Columns
from warmstart.models.mlp import body


class Encoder(nn.Module):
    """Rows of a table to vectors: numbers, embedded categories, summed embeddings of bags."""

    def __init__(self, columns: Columns, embedding: int = 16) -> None:
        super().__init__()
        self.categorical = nn.ModuleList(_embedding(size, embedding) for size in columns.categorical)
        self.bag = nn.ModuleList(_embedding(size, embedding) for size in columns.bag)
        widths = [int(e.embedding_dim) for e in (*self.categorical, *self.bag)]
        self.width = columns.numeric + sum(widths)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return _embedded(x, self.categorical, self.bag)

    def last(self, x: dict[str, Tensor], columns: Columns) -> Tensor:
        """The same of the last columns alone: those of the descriptor, which `join` appends."""
        first, bags = len(self.categorical) - len(columns.categorical), len(self.bag) - len(columns.bag)
        return _embedded(x, self.categorical[first:], self.bag[bags:])

    def last_width(self, columns: Columns) -> int:
        first, bags = len(self.categorical) - len(columns.categorical), len(self.bag) - len(columns.bag)
        tables = (*self.categorical[first:], *self.bag[bags:])
        return columns.numeric + sum(int(table.embedding_dim) for table in tables)


def _embedded(x: dict[str, Tensor], categorical: nn.ModuleList, bag: nn.ModuleList) -> Tensor:
    parts = [x["numeric"]]
    parts += [table(x["categorical"][..., i]) for i, table in enumerate(categorical)]
    for i, table in enumerate(bag):
        index = x["bag"][..., i, :]
        parts.append((table(index) * (index > 0).unsqueeze(-1)).sum(-2))
    return torch.cat(parts, -1)


def _embedding(size: int, width: int) -> nn.Embedding:
    table = nn.Embedding(size, min(width, size))
    with torch.no_grad():
        table.weight[:2] = 0
    return table


class TabularNet(nn.Module):
    """Encoder, hidden layers, linear head. `described` are those of its columns, the last, that describe the task."""

    def __init__(
        self,
        columns: Columns,
        hidden: Sequence[int] = (64, 64),
        outputs: int = 1,
        activation: str = "relu",
        embedding: int = 16,
        described: Columns = Columns(),
    ) -> None:
        super().__init__()
        self.encoder = Encoder(columns, embedding)
        self.about, self.described = described, self.encoder.last_width(described)
        self.body = body(self.encoder.width, hidden, activation)
        self.head = nn.Linear(hidden[-1] if hidden else self.encoder.width, outputs)

    def features(self, x: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.body(self.encoder(x))
        return out

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.decide(self.encode(x))

    def encode(self, x: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.encoder(x)
        return out

    def decide(self, encoded: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(encoded))
        return out

    def describe(self, descriptor: dict[str, Tensor]) -> Tensor:
        return self.encoder.last(descriptor, self.about)


def join(x: dict[str, Tensor], descriptor: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows with their task's descriptor appended; both in the same form, leading axes equal."""
    longest = max(x["bag"].shape[-1], descriptor["bag"].shape[-1])

    def widen(bag: Tensor) -> Tensor:
        return torch.nn.functional.pad(bag, (0, longest - bag.shape[-1]))

    return {
        "numeric": torch.cat([x["numeric"], descriptor["numeric"]], -1),
        "categorical": torch.cat([x["categorical"], descriptor["categorical"]], -1),
        "bag": torch.cat([widen(x["bag"]), widen(descriptor["bag"])], -2),
    }
