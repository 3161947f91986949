"""Trees of tensors: dicts, tuples and named tuples with tensors at the leaves.

`()` is the empty tree; it stands where a method has nothing to keep, since vmap rejects None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = Any
Params: TypeAlias = dict[str, Tensor]
Structure: TypeAlias = Any  # hashable: None for a leaf, else (type, dict keys or None, children)


class Rows(NamedTuple):
    """A table most of whose rows are zero: the sum of `row` at `place`, where a place may come more than once.

    Known to `add`, `scale`, `dense` and `sparse`; to all else it is a tuple.
    """

    place: Tensor  # [n]
    row: Tensor  # [n, *d]
    table: Tensor  # [m, 0] tells how many rows the table has


def flatten(tree: Tree) -> tuple[list[Any], Structure]:
    """The leaves and the structure that `unflatten` takes.

    >>> leaf_list, structure = flatten({"a": torch.ones(1), "b": ()})
    >>> len(leaf_list), unflatten(leaf_list, structure)
    (1, {'a': tensor([1.]), 'b': ()})
    """
    found: list[Any] = []
    return found, _flatten(tree, found)


def _flatten(tree: Tree, found: list[Any]) -> Structure:
    if isinstance(tree, dict):
        return (dict, tuple(tree), tuple([_flatten(child, found) for child in tree.values()]))
    if isinstance(tree, (tuple, list)):
        return (type(tree), None, tuple([_flatten(child, found) for child in tree]))
    found.append(tree)
    return None


def unflatten(leaf_list: list[Any], structure: Structure) -> Tree:
    return _unflatten(iter(leaf_list), structure)


def _unflatten(source: Iterator[Any], structure: Structure) -> Tree:
    if structure is None:
        return next(source)
    kind, keys, children = structure
    parts = [_unflatten(source, child) for child in children]
    if keys is not None:
        return dict(zip(keys, parts, strict=True))
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def tree_map(fn: Callable[..., Any], tree: Tree, *rest: Tree, rows: Callable[..., Any] | None = None) -> Tree:
    """Apply `fn` leaf by leaf, and `rows`, where it is given, to whole `Rows`; `rest` has the structure of `tree`."""
    if rows is not None and isinstance(tree, Rows):
        return rows(tree, *rest)
    if isinstance(tree, dict):
        return {name: tree_map(fn, child, *(other[name] for other in rest), rows=rows) for name, child in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [tree_map(fn, *children, rows=rows) for children in zip(tree, *rest, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return fn(tree, *rest)


def leaves(tree: Tree) -> list[Any]:
    return flatten(tree)[0]


def named_leaves(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """The leaves by their path, for files.

    >>> list(named_leaves({"a": torch.ones(1), "b": (torch.ones(1), torch.ones(1))}))
    ['a', 'b/0', 'b/1']
    """
    if isinstance(tree, dict):
        parts: Any = tree.items()
    elif isinstance(tree, (tuple, list)):
        parts = zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True)
    else:
        return {prefix: tree}
    named: dict[str, Tensor] = {}
    for name, child in parts:
        named |= named_leaves(child, f"{prefix}/{name}" if prefix else str(name))
    return named


def fill(tree: Tree, named: dict[str, Tensor]) -> Tree:
    """A tree of the structure of `tree` with the leaves of `named_leaves`."""
    return unflatten([named[path] for path in named_leaves(tree)], flatten(tree)[1])


def add(a: Tree, b: Tree) -> Tree:
    """Of `Rows`, those of both."""

    def joined(x: Rows, y: Rows) -> Rows:
        return Rows(torch.cat([x.place, y.place]), torch.cat([x.row, y.row]), x.table)

    return tree_map(torch.add, a, b, rows=joined)


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    return tree_map(lambda leaf: leaf * factor, tree, rows=lambda rows: rows._replace(row=rows.row * factor))


def dense(tree: Tree) -> Tree:
    """`Rows` as the tables they stand for.

    >>> dense(Rows(torch.tensor([2, 0, 2]), torch.ones(3, 1), torch.empty(4, 0))).flatten()
    tensor([1., 0., 2., 0.])
    """

    def table(rows: Rows) -> Tensor:
        return rows.row.new_zeros(len(rows.table), *rows.row.shape[1:]).index_add(0, rows.place, rows.row)

    return tree_map(lambda leaf: leaf, tree, rows=table)


def sparse(tables: Tree, like: Tree) -> Tree:
    """The inverse of `dense`, with every row of a table once; `like` has the structure."""

    def rows(kind: Rows, table: Tensor) -> Rows:
        return Rows(torch.arange(len(table), device=table.device), table, kind.table)

    return tree_map(lambda _, leaf: leaf, like, tables, rows=rows)


def zeros_like(tree: Tree) -> Tree:
    return tree_map(torch.zeros_like, tree)


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product over all leaves."""
    products = [(left * right).sum() for left, right in zip(leaves(a), leaves(b), strict=True)]
    return torch.stack(products).sum() if products else torch.zeros(())


def take(tree: Tree, index: Any) -> Tree:
    """`leaf[index]` for every leaf: one task of a stack, or a slice of it."""
    return tree_map(lambda leaf: leaf[index], tree)


def stack(trees: list[Tree]) -> Tree:
    """Trees of one structure to one tree with a leading axis."""
    return tree_map(lambda *parts: torch.stack(parts), trees[0], *trees[1:])


def concat(trees: list[Tree]) -> Tree:
    """Stacks joined along their leading axis."""
    return tree_map(lambda *parts: torch.cat(parts), trees[0], *trees[1:])


def expand(tree: Tree, count: int) -> Tree:
    """The same tree for `count` tasks, without copying."""
    return tree_map(lambda leaf: leaf.expand(count, *leaf.shape), tree)


def pack(tree: Tree) -> Tensor:
    """All leaves in one vector."""
    return torch.cat([leaf.reshape(-1) for leaf in leaves(tree)])


def unpack(vector: Tensor, like: Tree) -> Tree:
    """The tree that was packed, from one like it; leading axes stay in front.

    >>> unpack(torch.arange(3.0), {"a": torch.zeros(1), "b": torch.zeros(2)})["b"]
    tensor([1., 2.])
    """
    parts, structure = flatten(like)
    lead = vector.shape[:-1]
    pieces = torch.split_with_sizes(vector, [part.numel() for part in parts], -1)
    return unflatten([piece.reshape(lead + part.shape) for piece, part in zip(pieces, parts, strict=True)], structure)


def sum_tasks(tree: Tree) -> Tree:
    """A stack summed over its tasks: joined first, so that it is one sum however many leaves there are."""
    parts, structure = flatten(tree)
    if not parts:
        return tree
    flat = torch.cat([part.reshape(len(part), -1) for part in parts], 1).sum(0)
    pieces = torch.split_with_sizes(flat, [part[0].numel() for part in parts])
    return unflatten([piece.reshape(part.shape[1:]) for piece, part in zip(pieces, parts, strict=True)], structure)


def to_device(tree: Tree, device: torch.device | str) -> Tree:
    return tree_map(lambda leaf: leaf.to(device), tree)
