"""Tables of embeddings on a CPU: lines of a row that are added up, and gradients, faster than torch has them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

aten = torch.ops.aten


def faster_tables(program: fx.GraphModule) -> None:
    """Has these two operations of a program done as below, in single precision, where that is faster."""
    for node in program.graph.nodes:
        if node.op != "call_function" or _kind(node) != torch.float32:
            continue
        if node.target is aten.embedding_dense_backward.default and node.args[3:] == (-1, False):
            node.target, node.args = lines_summed, node.args[:3]
        elif node.target is aten.sum.dim_IntList and _adds_up(node):
            node.target, node.args = rows_of, node.args[0].args[:2]
    program.graph.eliminate_dead_code()


def _kind(node: fx.Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def _adds_up(node: fx.Node) -> bool:
    """Whether it adds up the lines of each row, which nobody else asks for."""
    lines: Any = node.args[0]
    if not isinstance(lines, fx.Node) or lines.target is not aten.embedding.default or len(lines.users) > 1:
        return False
    shape = lines.meta["val"].shape
    return len(shape) > 2 and shape[-2] > 0 and node.args[1:] in (([-2],), ([len(shape) - 2],)) and not node.kwargs


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """Sums [*n, d] of the lines `index` [*n, c] of a table, none of which is copied."""
    return F.embedding_bag(index.flatten(0, -2), table, mode="sum").reshape(*index.shape[:-1], table.shape[-1])


def lines_summed(slope: Tensor, index: Tensor, count: int) -> Tensor:
    """The gradient [count, d] of a table from those [*n, d] of its lines `index` [*n].

    Where the lines of a row were added up their slopes are one, expanded, and no copies of it are made.
    """
    found = slope.new_zeros(count, slope.shape[-1])
    if index.ndim > 1 and slope.stride(-2) == 0:
        for line in index.unbind(-1):
            found.index_add_(0, line.reshape(-1), slope.select(-2, 0).reshape(-1, slope.shape[-1]))
        return found
    return found.index_add_(0, index.reshape(-1), slope.reshape(-1, slope.shape[-1]))
