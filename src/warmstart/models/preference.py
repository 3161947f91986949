"""What a user thinks of an item: embeddings of both, which all users share, and decision layers that each adapts.

    out = MLP(item features, user features) + m_item + gain_p p . q_item + gain_b b

`m_item` is the item's bias and `q_item` its factors; `p` and `b`, the user's taste and bias, are fast like the layers
of the MLP, and the gains, which are slow, say how much faster they move. Without `items` the MLP over the features is
all there is: the network of Lee et al. (2019) and Yu et al. (2021), which knows items by their content alone.

Rows come as for `tabular`: with `items` the item itself as the first categorical column, then what is known of it,
then of the user. Unseen values and items are index 1, whose embeddings start at zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from warmstart.core import Columns
from warmstart.models.mlp import body, linear
from warmstart.models.tabular import Encoder

FAST = "decision.*"  # for `functional`
SLOW = 0.3  # on an item's own numbers, which Adam would move too far by a few ratings

FIRST = 0.3  # standard deviation of its factors, times that


class Sides(nn.Module):
    """Items and users as vectors: by their features and, with `items` of them, as themselves."""

    def __init__(self, columns: Columns, embedding: int, items: int, factors: int) -> None:
        super().__init__()
        self.features = Encoder(columns, embedding)
        self.item = nn.Embedding(items, factors + 1) if items else None  # factors, and the bias
        if self.item is not None:
            with torch.no_grad():
                self.item.weight *= FIRST
                self.item.weight[:, -1] = 0
                self.item.weight[:2] = 0

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.item is None:
            return {"features": self.features(x)}
        index = x["categorical"]
        own = {**x, "categorical": index[..., 1:]}
        return {"features": self.features(own), "item": SLOW * self.item(index[..., 0])}


class Decision(nn.Module):
    """What a user adapts."""

    def __init__(self, width: int, hidden: Sequence[int], outputs: int, factors: int) -> None:
        super().__init__()
        self.body = body(width, hidden, "relu")
        self.head = linear(hidden[-1] if hidden else width, outputs)
        self.user = nn.Parameter(torch.zeros(factors + 1)) if factors >= 0 else None

    def forward(self, encoded: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.head(self.body(encoded["features"]))
        return out


class PreferenceNet(nn.Module):
    """`columns` of items and then `described` of users; with `items`, a column with so many goes before them all."""

    def __init__(
        self,
        columns: Columns,
        described: Columns = Columns(),
        hidden: Sequence[int] = (64, 64),
        outputs: int = 1,
        embedding: int = 32,
        items: int = 0,
        factors: int = 16,
    ) -> None:
        super().__init__()
        self.encoder = Sides(columns + described, embedding, items, factors)
        self.decision = Decision(self.encoder.features.width, hidden, outputs, factors if items else -1)
        self.gain = nn.Parameter(torch.tensor([3.0, 3.0])) if items else None  # of the taste, and of the bias
        self.about, self.described = described, self.encoder.features.last_width(described)

    def begin(
        self,
        effects: Tensor,
        rate: float,
        level: float = 0.0,
        curvature: float = 2.0,
        factors: Tensor | None = None,
    ) -> None:
        """At a level and items' effects alone, with a gain by which one step at this rate finds a user's effect.

        `curvature`: of the loss of a row, 2 of a squared error. `factors`: of items, instead of random ones.
        """
        assert self.encoder.item is not None and self.gain is not None
        with torch.no_grad():
            self.encoder.item.weight[:, -1] = effects / SLOW
            if factors is not None:
                self.encoder.item.weight[:, :-1] = factors / SLOW
            self.gain[1] = (curvature * rate) ** -0.5
            self.decision.head.weight.zero_()
            self.decision.head.bias.fill_(level)

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
