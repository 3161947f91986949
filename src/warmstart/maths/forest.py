"""Grown trees as arrays, whichever library grew them: they are saved as numbers and walked without that library.

    f(x) = base + sum over trees of the value of the leaf that x falls into;   x goes left where x[feature] <= threshold

Columns are numbers without gaps.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
ALWAYS = float(np.finfo(np.float64).max)  # the threshold of a leaf, below which everything stays
ROWS = 512  # walked at once


class Forest(NamedTuple):
    """Nodes of all trees; the deepest trees come first."""

    feature: Ints  # [nodes] column that is looked at
    threshold: Floats  # [nodes]
    left: Ints  # [nodes] the next one, or the one after it to the right; a leaf leads to itself
    value: Floats  # [nodes] of a leaf
    root: Ints  # [trees]
    depth: Ints  # [trees] steps to the deepest leaf
    base: float


class Node(NamedTuple):
    """Of one tree as a library has it."""

    feature: int
    threshold: float
    value: float
    children: tuple[Any, Any] | None  # where to find them; a leaf has none


def make_forest(model: Any) -> Forest:
    """What a fitted model of `make_trees` says before the link: a number, or the logit of a click."""
    if hasattr(model, "booster_"):
        grown = [tree["tree_structure"] for tree in model.booster_.dump_model()["tree_info"]]
        return _lay_out([_read(tree, _light) for tree in grown], 0.0)
    grown = [each[0].nodes for each in model._predictors]
    base = float(np.ravel(model._baseline_prediction)[0])
    return _lay_out([_read(0, lambda place, nodes=nodes: _scikit(nodes, place)) for nodes in grown], base)


def walk(forest: Forest, x: Floats) -> Floats:
    """[n] of rows [n, columns]; ValueError of nodes that lead nowhere."""
    if min(part.min(initial=0) for part in (forest.feature, forest.left, forest.root)) < 0:
        raise ValueError("negative places")
    found = np.full(len(x), forest.base)
    deepest = int(min(forest.depth.max(initial=0), len(forest.value)))
    going = [int((forest.depth > step).sum()) for step in range(deepest)]
    for start in range(0, len(x), ROWS):
        part = x[start : start + ROWS]
        node = np.tile(forest.root, (len(part), 1))
        rows = np.arange(len(part))[:, None]
        for trees in going:
            here = node[:, :trees]
            node[:, :trees] = forest.left[here] + (part[rows, forest.feature[here]] > forest.threshold[here])
        found[start : start + ROWS] += forest.value[node].sum(1)
    return found


def _light(place: dict[str, Any]) -> Node:
    if "leaf_value" in place:
        return Node(0, ALWAYS, place["leaf_value"], None)
    return Node(place["split_feature"], place["threshold"], 0.0, (place["left_child"], place["right_child"]))


def _scikit(nodes: Any, place: int) -> Node:
    node = nodes[place]
    if node["is_leaf"]:
        return Node(0, ALWAYS, float(node["value"]), None)
    return Node(int(node["feature_idx"]), float(node["num_threshold"]), 0.0, (int(node["left"]), int(node["right"])))


def _read(root: Any, look: Any) -> tuple[list[Node], list[int], int]:
    """Nodes by level, where the children of each begin (its own place for a leaf), and how deep they go."""
    nodes: list[Node] = []
    left: list[int] = []
    level, depth = [look(root)], 0
    while level:
        begin = len(nodes) + len(level)
        below: list[Node] = []
        for node in level:
            left.append(len(nodes) if node.children is None else begin + len(below))
            nodes.append(node)
            below += [look(child) for child in node.children or ()]
        depth += bool(below)
        level = below
    return nodes, left, depth


def _lay_out(trees: list[tuple[list[Node], list[int], int]], base: float) -> Forest:
    trees = sorted(trees, key=lambda tree: -tree[2])
    root = np.cumsum([0, *(len(nodes) for nodes, _, _ in trees)])
    every = [node for nodes, _, _ in trees for node in nodes]
    return Forest(
        np.array([node.feature for node in every], dtype=np.int64),
        np.minimum(np.array([node.threshold for node in every], dtype=np.float64), ALWAYS),
        np.concatenate([np.array(left, dtype=np.int64) + at for (_, left, _), at in zip(trees, root, strict=False)]),
        np.array([node.value for node in every], dtype=np.float64),
        root[:-1].astype(np.int64),
        np.array([depth for _, _, depth in trees], dtype=np.int64),
        base,
    )
