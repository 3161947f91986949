"""Recorded programs against the functions they were recorded from."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vjp
from torch.fx.experimental.proxy_tensor import make_fx

from warmstart.core.trees import flatten
from warmstart.engine.recording import cut, simplify
from warmstart.engine.stage import record

aten = torch.ops.aten
CONSTANT = torch.tensor([[0.3, -1.0, 2.0], [0.1, 0.2, -0.4], [1.0, 0.0, 0.5]], dtype=torch.float64)


def halved(x, y):
    x[..., :2].mul_(0.5)
    return x + y


def filled(x, y):
    room = torch.zeros_like(x)
    room[0] = y[1]
    return room + x


# operations on two 3 x 3 matrices: plain ones, ones that do nothing, views, copies, mutation
OPERATIONS = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x @ y,
    lambda x, y: torch.tanh(x),
    lambda x, y: x - 0.5,
    lambda x, y: x * 1,
    lambda x, y: aten.mul.Scalar(x, 1),
    lambda x, y: x.transpose(0, 1),
    lambda x, y: x.transpose(0, 1).transpose(1, 0) * y.transpose(-1, -2),
    lambda x, y: x.view(3, 3),
    lambda x, y: x.reshape(9).view(3, 3).squeeze(0),
    lambda x, y: x.sum(0, keepdim=True).expand(3, 3),
    lambda x, y: x[0].unsqueeze(0).expand(3, 3) + y[1],
    lambda x, y: torch.where(x > y, x, y),
    lambda x, y: x.flip(0).permute(1, 0),
    lambda x, y: torch.cat(list(x.split([1, 2]))[::-1]),
    lambda x, y: torch.nn.functional.softplus(x) + torch.nn.functional.softplus(y),
    lambda x, y: x * CONSTANT + CONSTANT.view(3, 3),
    lambda x, y: halved(x.clone(), y.clone()),
    lambda x, y: filled(x, y) * filled(y, x),
]
programs = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=9
)


def run(program, a, b):
    """Each instruction takes two earlier values; the last three values are the results."""
    values = [a, b]
    for which, left, right in program:
        values.append(OPERATIONS[which](values[left % len(values)], values[right % len(values)]))
    return values[-3:]


def inputs():
    source = torch.Generator().manual_seed(3)
    return [0.5 * torch.randn(3, 3, dtype=torch.float64, generator=source) for _ in range(2)]


def outputs(count):
    source = torch.Generator().manual_seed(4)
    return [torch.randn(3, 3, dtype=torch.float64, generator=source) for _ in range(count)]


@settings(max_examples=25)
@given(programs)
def test_a_simplified_program_has_the_values_of_the_function(program):
    given_ = inputs()
    kept = [leaf.clone() for leaf in given_]
    graph, _, _ = record(lambda a, b: run(program, a, b), given_, flatten(tuple(given_))[1])
    for found, expected in zip(graph(*given_), run(program, *given_), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert all(leaf.equal(copy) for leaf, copy in zip(given_, kept, strict=True))


@settings(max_examples=25)
@given(programs)
def test_cut_in_two_a_program_is_the_function_and_its_pullback(program):
    given_ = inputs()
    results = run(program, *given_)
    cotangent = outputs(len(results))

    def joint(a, b, *cotangent):
        value, pullback = vjp(lambda a, b: run(program, a, b), a, b)
        return value, pullback(list(cotangent))

    graph, _, _ = record(joint, given_ + cotangent, flatten((*given_, *cotangent))[1])
    halves = cut(graph, 2, len(results))
    values = list(halves.forward(*given_))
    pulled = halves.backward(*[given_[i] for i in halves.kept], *values[len(results) :], *cotangent)
    for found, expected in zip(values, results, strict=False):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for found, expected in zip(pulled, vjp(lambda a, b: run(program, a, b), *given_)[1](cotangent), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def operations(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_equal_operations_are_computed_once_and_idle_ones_not_at_all():
    def wasteful(a):
        idle = aten.mul.Scalar(a.view(3, 3).transpose(0, 1).transpose(1, 0), 1)
        torch.exp(a)  # nobody looks
        return torch.tanh(a) + torch.tanh(idle) * torch.sin(a)

    graph = simplify(make_fx(wasteful)(inputs()[0]))
    assert sorted(str(target) for target in operations(graph)) == [
        "aten.add.Tensor",
        "aten.mul.Tensor",
        "aten.sin.default",
        "aten.tanh.default",
    ]


def test_one_is_not_true_and_equal_numbers_of_two_kinds_are_two():
    def both(a):
        return aten.add.Scalar(a, 2) * 1.0, aten.add.Scalar(a, 2.0)

    a = torch.tensor([1, 2])
    graph = simplify(make_fx(both)(a))
    assert [value.dtype for value in graph(a)] == [value.dtype for value in both(a)]


@pytest.mark.parametrize("one", [1, 1.0, True])
def test_times_one_that_changes_the_kind_of_number_stays(one):
    a = torch.tensor([True, False])
    graph = simplify(make_fx(lambda a: aten.mul.Scalar(a, one))(a))
    assert graph(a).dtype == aten.mul.Scalar(a, one).dtype


def test_what_is_handed_over_is_small():
    """tanh keeps its result, a product its factors; views are taken again, never handed over."""

    def layers(w, x):
        h = x
        for _ in range(4):
            h = torch.tanh(h @ w.transpose(0, 1))
        return h.reshape(9)

    w, x = inputs()
    cotangent = outputs(1)[0].reshape(9)

    def joint(w, x, c):
        value, pullback = vjp(layers, w, x)
        return value, pullback(c)

    graph, _, _ = record(joint, [w, x, cotangent], flatten((w, x, cotangent))[1])
    halves = cut(graph, 2, 1)
    assert halves.kept == [0, 1]
    assert len(halves.forward(w, x)) == 1 + 4
    assert aten.tanh.default not in operations(halves.backward)
