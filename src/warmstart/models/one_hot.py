"""A perceptron on one-hot rows: the first layer is a table with a line for every value of every column.

    h = sum_c table[code_c] + W numbers + b,    then hidden layers and a head

Equal to one-hot columns and a dense layer, but a row costs as many additions as it has columns. With `heads` the
last layer has one part for each task, and rows say in `head` which one is theirs (hard parameter sharing).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from warmstart.core import Columns, InputError
from warmstart.models.heads import own_head
from warmstart.models.mlp import body, linear


class OneHotNet(nn.Module):
    """Rows come as in `models.tabular`: `numeric`, `categorical`, `bag`, and `head` [n] where there are several."""

    def __init__(
        self, columns: Columns, hidden: Sequence[int] = (32, 32), outputs: int = 1, heads: int = 1, start: float = 0.1
    ) -> None:
        super().__init__()
        if not hidden:
            raise InputError("at least one hidden layer", "none", "pass hidden=(32,)")
        sizes = [*columns.categorical, *columns.bag]
        self.bags, self.heads = len(columns.bag), heads
        # the first line of each column in the table: numbers, since a CUDA graph cannot hold a copy from the host
        self.places = [sum(sizes[:i]) for i in range(len(sizes))]
        self.numbers = linear(columns.numeric, hidden[0])
        self.table = nn.Embedding(max(1, sum(sizes)), hidden[0])
        with torch.no_grad():
            self.table.weight.normal_(0.0, start)
        self.body = body(hidden[0], hidden[1:], "relu")
        self.head = nn.Linear(hidden[-1], outputs * heads)

    def features(self, x: dict[str, Tensor]) -> Tensor:
        first = self.numbers(x["numeric"])
        single = x["categorical"].shape[-1]
        if single:
            codes = [x["categorical"][..., i : i + 1] + self.places[i] for i in range(single)]
            first = first + self.table(torch.cat(codes, -1)).sum(-2)
        for i in range(self.bags):
            index = x["bag"][..., i, :]
            first = first + (self.table(index + self.places[single + i]) * (index > 0).unsqueeze(-1)).sum(-2)
        out: Tensor = self.body(torch.relu(first))
        return out

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return own_head(self.head(self.features(x)), x, self.heads)
