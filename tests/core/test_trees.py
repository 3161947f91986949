from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from warmstart.core.trees import (
    Rows,
    Tree,
    add,
    concat,
    dense,
    dot,
    expand,
    fill,
    flatten,
    leaves,
    named_leaves,
    scale,
    sparse,
    stack,
    take,
    tree_map,
    unflatten,
    zeros_like,
)


class Pair(NamedTuple):
    left: Tree
    right: Tree


names = st.text("abc", min_size=1, max_size=2)
trees = st.recursive(
    st.integers(1, 4).map(lambda n: torch.arange(float(n))),
    lambda child: st.one_of(
        st.dictionaries(names, child, max_size=3),
        st.lists(child, max_size=3).map(tuple),
        st.lists(child, max_size=2),
        st.builds(Pair, child, child),
    ),
    max_leaves=6,
)


def same(a, b):
    """Equal in kind, structure and values."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if type(a) is not type(b) or len(a) != len(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    return all(same(x, y) for x, y in zip(a, b, strict=True))


@given(trees)
def test_round_trips(tree):
    leaf_list, structure = flatten(tree)
    assert same(unflatten(leaf_list, structure), tree)
    hash(structure)
    assert same(tree_map(lambda leaf: leaf.clone(), tree), tree)
    assert same(fill(zeros_like(tree), named_leaves(tree)), tree)
    assert len(named_leaves(tree)) == len(leaf_list)


def test_structures_of_different_trees_differ():
    one = torch.ones(1)
    kinds = [{"a": one}, {"b": one}, (one,), [one], Pair(one, ()), Pair((), one), (one, ()), one, ((one,),)]
    assert len({flatten(tree)[1] for tree in kinds}) == len(kinds)


def test_paths_tell_fields_names_and_places():
    tree = {"opt": Pair({"w": torch.ones(1)}, (torch.ones(1), ())), "x": torch.ones(1)}
    assert list(named_leaves(tree)) == ["opt/left/w", "opt/right/0", "x"]


def test_fill_takes_leaves_by_path_not_by_order():
    tree = {"a": torch.zeros(1), "b": torch.zeros(2)}
    filled = fill(tree, {"b": torch.tensor([2.0, 3.0]), "a": torch.tensor([1.0])})
    assert filled["a"].tolist() == [1.0] and filled["b"].tolist() == [2.0, 3.0]


def test_a_missing_leaf_or_another_structure_is_an_error():
    with pytest.raises(KeyError):
        fill({"a": torch.zeros(1)}, {"b": torch.zeros(1)})
    with pytest.raises(ValueError, match="zip"):
        add((torch.zeros(1),), (torch.zeros(1), torch.zeros(1)))


def test_arithmetic_is_that_of_the_joined_vector():
    a = {"u": torch.randn(2, 3), "v": (torch.randn(4), ())}
    b = tree_map(torch.randn_like, a)
    flat = lambda tree: torch.cat([leaf.reshape(-1) for leaf in leaves(tree)])  # noqa: E731
    torch.testing.assert_close(flat(add(a, b)), flat(a) + flat(b))
    torch.testing.assert_close(flat(scale(a, 0.3)), 0.3 * flat(a))
    torch.testing.assert_close(dot(a, b), flat(a) @ flat(b))
    assert dot((), ()) == 0


def test_rows_are_added_scaled_and_told_as_the_tables_they_stand_for():
    torch.manual_seed(0)
    a, b = (
        {"t": Rows(torch.randint(5, (n,)), torch.randn(n, 2), torch.empty(5, 0)), "u": torch.randn(3)} for n in (4, 7)
    )
    by_hand = torch.zeros(5, 2)
    for tree in (a, b):
        for place, row in zip(tree["t"].place.tolist(), tree["t"].row, strict=True):
            by_hand[place] += row
    torch.testing.assert_close(dense(add(a, b)), {"t": by_hand, "u": a["u"] + b["u"]})
    torch.testing.assert_close(dense(scale(a, -0.3)), scale(dense(a), -0.3))
    again = sparse(dense(a), a)
    assert again["t"].place.tolist() == [0, 1, 2, 3, 4] and torch.equal(again["u"], a["u"])
    torch.testing.assert_close(dense(again), dense(a))


def test_dot_keeps_precision_and_stays_on_the_device_of_its_leaves():
    a = {"u": torch.tensor([1.0, 1e-12], dtype=torch.float64)}
    assert dot(a, a).dtype == torch.float64
    assert dot({"u": torch.ones(2, device="meta")}, {"u": torch.ones(2, device="meta")}).is_meta


def test_dot_creates_and_copies_nothing():
    """A tensor from elsewhere would make the host wait for the device, which a graph under capture forbids."""
    leaf = {"u": torch.ones(2, dtype=torch.float64)}
    used = {node.target for node in make_fx(dot)(leaf, leaf).graph.nodes}
    assert not used & {torch.ops.aten.zeros.default, torch.ops.aten._to_copy.default}


def test_stack_take_concat_expand():
    trees = [{"a": torch.full((2,), float(i)), "b": (torch.tensor(float(i)),)} for i in range(3)]
    stacked = stack(trees)
    assert stacked["a"].shape == (3, 2) and stacked["b"][0].shape == (3,)
    for i, tree in enumerate(trees):
        assert same(take(stacked, i), tree)
    assert same(concat([take(stacked, slice(0, 1)), take(stacked, slice(1, 3))]), stacked)
    assert same(expand(trees[2], 4), stack([trees[2]] * 4))
    assert expand(trees[2], 4)["a"].data_ptr() == trees[2]["a"].data_ptr()
