"""Tables on a CPU: against torch's own embeddings and their derivatives."""

import pytest
import torch
import torch.nn.functional as F

from warmstart.core.trees import flatten
from warmstart.engine import tables
from warmstart.engine.stage import TRACED, over_tasks, record

SMALL = {"rtol": 1e-5, "atol": 1e-5}
INDEX = torch.tensor([[[0, 1, 1], [4, 0, 3]], [[3, 3, 3], [1, 4, 0]]])  # shared, more than once in a row; 2 and 5 never


def slope(table, index, weight, summed=True, padding=None):
    """The gradient of a loss of rows, whose lines are added up or have a weight each."""

    def loss(table):
        lines = F.embedding(index, table, padding_idx=padding)
        rows = lines.sum(-2) * weight.sum(-2) if summed else lines * weight
        return (rows**3).sum()

    return torch.func.grad(loss)(table)


def used(fn, *args):
    """What a recorded program calls after it was made faster."""
    inputs, structure = flatten(args)
    graph, _, _ = record(fn, inputs, structure)
    tables.faster_tables(graph)
    return {node.target for node in graph.graph.nodes}


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("padding", [None, 3])
def test_recorded_gradients_are_torchs(summed, padding):
    """Of one table, and of a stack of them."""
    table, each, weight = torch.randn(6, 2), torch.randn(2, 6, 2), torch.randn(2, 2, 3, 2)

    def fn(table, index, weight):
        return slope(table, index, weight, summed, padding)

    torch.testing.assert_close(TRACED.run(fn)(table, INDEX, weight), fn(table, INDEX, weight), **SMALL)
    stacked = TRACED.stack(lambda nothing, *own: fn(*own))((), each, INDEX, weight)
    torch.testing.assert_close(stacked, over_tasks(lambda nothing, *own: fn(*own))((), each, INDEX, weight), **SMALL)
    for some in (INDEX[:0], INDEX[:, :0]):  # no rows
        nothing = weight[: len(some), : some.shape[1]]
        torch.testing.assert_close(TRACED.run(fn)(table, some, nothing), torch.zeros(6, 2))


def test_both_operations_are_found():
    """In single precision; in double torch's own are faster."""
    table, weight = torch.randn(6, 2), torch.randn(2, 2, 3, 2)
    assert not {tables.rows_of, tables.lines_summed} & used(slope, table.double(), INDEX, weight.double())
    assert {tables.rows_of, tables.lines_summed} <= used(slope, table, INDEX, weight)
    apart = used(lambda *args: slope(*args, summed=False), table, INDEX, weight)
    assert tables.lines_summed in apart and tables.rows_of not in apart


@pytest.mark.parametrize(
    "rows",
    [
        lambda table, index: (lines := F.embedding(index, table)).sum(-2) * lines.prod(),  # asked for twice
        lambda table, index: F.embedding(index, table).sum(-1),
        lambda table, index: F.embedding(index, table).sum(-2, keepdim=True),
        lambda table, index: F.embedding(index, table).sum((-2, -1)),
        lambda table, index: F.embedding(index[..., :0], table).sum(-2),
        lambda table, index: F.embedding(index[0, 0], table).sum(0),
    ],
)
def test_other_sums_are_left(rows):
    table = torch.randn(6, 2)
    assert tables.rows_of not in used(rows, table, INDEX)
    torch.testing.assert_close(TRACED.run(rows)(table, INDEX), rows(table, INDEX))


def test_rows_and_gradients_by_hand():
    table, weight = torch.randn(6, 2, requires_grad=True), torch.randn(2, 2, 2)
    lines = F.embedding(INDEX, table)
    torch.testing.assert_close(tables.rows_of(table.detach(), INDEX), lines.sum(-2).detach())
    assert tables.rows_of(table.detach(), INDEX[:, :0]).shape == (2, 0, 2)
    (expected,) = torch.autograd.grad((lines.sum(-2) * weight).sum(), table)
    torch.testing.assert_close(tables.lines_summed(weight.unsqueeze(-2).expand(2, 2, 3, 2), INDEX, 6), expected)
    torch.testing.assert_close(
        tables.lines_summed(weight.unsqueeze(-2).expand(2, 2, 3, 2).contiguous(), INDEX, 6), expected
    )
