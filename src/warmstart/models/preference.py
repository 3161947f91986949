"""What a user thinks of an item: embeddings of both, which all users share, and decision layers that each adapts.

    out = MLP(item features, user features, item) + m_item + gain . (p q_item, b)

`m_item` is the item's bias and `q_item` its factors; `p` and `b`, the user's taste and bias, are fast like the layers
of the MLP, and `gain`, which is slow, says how much faster they move. Without `identity` the MLP over the features is
all there is: the network of Lee et al. (2019) and Yu et al. (2021), which knows items by their content alone.

Rows come as for `tabular`, the item itself as the first categorical column with `identity`, then what is known of it,
then of the user. Unseen values and items are index 1, whose embeddings start at zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from warmstart.core import Columns
from warmstart.models.mlp import body
from warmstart.models.tabular import Encoder

FAST = "decision.*"  # for `functional`


class Sides(nn.Module):
    """Items and users as vectors."""

    def __init__(self, columns: Columns, embedding: int, factors: int) -> None:
        super().__init__()
        self.features = Encoder(columns, embedding)
        self.factors = nn.Embedding(columns.categorical[0], factors + 1) if factors else None
        if self.factors is not None:
            with torch.no_grad():
                self.factors.weight *= 0.1
                self.factors.weight[:, -1] = 0  # the bias
                self.factors.weight[:2] = 0

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {"features": self.features(x)}
        if self.factors is not None:
            found["item"] = self.factors(x["categorical"][..., 0])
        return found


class Decision(nn.Module):
    """What a user adapts."""

    def __init__(self, width: int, hidden: Sequence[int], outputs: int, factors: int) -> None:
        super().__init__()
        self.body = body(width, hidden, "relu")
        self.head = nn.Linear(hidden[-1] if hidden else width, outputs)
        self.user = nn.Parameter(torch.zeros(factors + 1)) if factors else None

    def forward(self, encoded: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.head(self.body(encoded["features"]))
        return out


class PreferenceNet(nn.Module):
    """`columns` of items and then `described` of users; `identity` says that the first is the item itself."""

    def __init__(
        self,
        columns: Columns,
        described: Columns = Columns(),
        hidden: Sequence[int] = (64, 64),
        outputs: int = 1,
        embedding: int = 32,
        identity: bool = True,
        factors: int = 16,
    ) -> None:
        super().__init__()
        factors = factors if identity else 0
        self.encoder = Sides(columns + described, embedding, factors)
        self.decision = Decision(self.encoder.features.width, hidden, outputs, factors)
        self.gain = nn.Parameter(torch.tensor([1.0, 3.0])) if factors else None  # of the taste, and of the bias
        self.about, self.described = described, self.encoder.features.last_width(described)

    def encode(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = self.encoder(x)
        return out

    def decide(self, encoded: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.decision(encoded)
        if self.decision.user is None or self.gain is None:
            return out
        item, user = encoded["item"], self.decision.user
        more = item[..., -1] + self.gain[0] * (item[..., :-1] @ user[:-1]) + self.gain[1] * user[-1]
        return out + more.unsqueeze(-1)

    def describe(self, descriptor: dict[str, Tensor]) -> Tensor:
        return self.encoder.features.last(descriptor, self.about)

    def features(self, x: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.decision.body(self.encode(x)["features"])
        return out

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.decide(self.encode(x))
