"""Hard parameter sharing: the last layer has one part for each task, and a row takes its own."""

from __future__ import annotations

from torch import Tensor


def own_head(out: Tensor, x: dict[str, Tensor], heads: int) -> Tensor:
    """[*n, heads * outputs] -> [*n, outputs]: of every row the part that `head` [*n] says; as it is with one head."""
    if heads == 1:
        return out
    each = out.reshape(*out.shape[:-1], heads, -1)
    own = x["head"].unsqueeze(-1).unsqueeze(-1).expand(*each.shape[:-2], 1, each.shape[-1])
    return each.gather(-2, own).squeeze(-2)
