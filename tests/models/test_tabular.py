"""The tabular network against matrix products made by hand."""

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from warmstart.core import Columns, functional
from warmstart.models.mlp import seeded
from warmstart.models.tabular import Encoder, TabularNet, join

COLUMNS = Columns(2, (5, 40), (7, 4))


def rows(*lead, columns=COLUMNS, length=3, seed=0):
    """Random rows; bags are filled from the left and may be empty."""
    draw = torch.Generator().manual_seed(seed)

    def index(sizes, *shape):
        parts = [torch.randint(0, size, (*lead, *shape), generator=draw) for size in sizes]
        return torch.stack(parts, len(lead)) if parts else torch.zeros(*lead, 0, *shape, dtype=torch.long)

    return {
        "numeric": torch.randn(*lead, columns.numeric, generator=draw),
        "categorical": index(columns.categorical),
        "bag": index(columns.bag, length),
    }


def moved(module):
    """Random parameters everywhere, the two special slots too."""
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(torch.randn(value.shape, generator=draw))
    return module


def multi_hot(index, size):
    """[n, l] -> [n, size] counts, padding (0) left out."""
    out = torch.zeros(len(index), size)
    for row, members in enumerate(index.tolist()):
        for member in members:
            out[row, member] += member > 0
    return out


def test_encoder_is_one_hot_and_multi_hot_products():
    encoder, x = moved(Encoder(COLUMNS, embedding=6)), rows(50)
    expected = [x["numeric"]]
    for i, table in enumerate(encoder.categorical):
        expected.append(torch.eye(COLUMNS.categorical[i])[x["categorical"][:, i]] @ table.weight)
    for i, table in enumerate(encoder.bag):
        expected.append(multi_hot(x["bag"][:, i], COLUMNS.bag[i]) @ table.weight)
    torch.testing.assert_close(encoder(x), torch.cat(expected, 1))
    # an embedding is never wider than its vocabulary
    assert [part.shape[1] for part in expected] == [2, 5, 6, 6, 4] and encoder.width == 23


def test_padding_of_a_bag_adds_nothing_and_learns_nothing():
    model = functional(moved(TabularNet(COLUMNS, (8,))))
    x = rows(6)
    longer = {**x, "bag": torch.nn.functional.pad(x["bag"], (0, 4))}
    torch.testing.assert_close(model.apply(model.params, longer), model.apply(model.params, x))
    gradient = grad(lambda params: model.apply(params, longer).sum())(model.params)
    for i in range(2):
        assert not gradient[f"encoder.bag.{i}.weight"][0].any()
        assert gradient[f"encoder.bag.{i}.weight"][1:].any()


def test_order_within_a_bag_does_not_matter():
    encoder, x = moved(Encoder(COLUMNS)), rows(6)
    torch.testing.assert_close(encoder({**x, "bag": x["bag"].flip(-1)}), encoder(x))


def test_missing_and_unseen_say_nothing_at_first():
    encoder = Encoder(COLUMNS)
    for special in (0, 1):
        x = {name: torch.full_like(part, special) for name, part in rows(3).items()}
        assert not encoder(x)[:, COLUMNS.numeric :].any()


def test_stacked_parameters_under_vmap_equal_a_loop():
    with seeded(3):
        nets = [moved(TabularNet(COLUMNS, (8, 8), outputs=2, activation="tanh"))] + [
            TabularNet(COLUMNS, (8, 8), outputs=2, activation="tanh") for _ in range(3)
        ]
    params, _ = stack_module_state(nets)
    x = rows(4, 10)

    def apply(params, x):
        return functional_call(nets[0], params, (x,))

    expected = torch.stack([net({name: part[t] for name, part in x.items()}) for t, net in enumerate(nets)])
    torch.testing.assert_close(vmap(apply)(params, x), expected)

    stacked = vmap(grad(lambda p, x: apply(p, x).square().sum()))(params, x)
    for t, net in enumerate(nets):
        net.zero_grad()
        net({name: part[t] for name, part in x.items()}).square().sum().backward()
        for name, value in net.named_parameters():
            torch.testing.assert_close(stacked[name][t], value.grad)


def test_features_and_head_make_the_output():
    net, x = TabularNet(COLUMNS, (8, 4), outputs=3), rows(5)
    torch.testing.assert_close(net.head(net.features(x)), net(x))
    assert net.features(x).shape == (5, 4)
    linear = TabularNet(COLUMNS, ())
    torch.testing.assert_close(linear(x), linear.head(linear.encoder(x)))


@pytest.mark.parametrize("lead", [(6,), (3, 6)])
def test_join_appends_every_kind(lead):
    of_task = Columns(1, (3,), (4,))
    x, descriptor = rows(*lead), rows(*lead, columns=of_task, length=5, seed=1)
    both = join(x, descriptor)
    encoder = moved(Encoder(COLUMNS + of_task))
    assert both["bag"].shape == (*lead, 3, 5) and encoder(both).shape == (*lead, encoder.width)
    left, right = Encoder(COLUMNS), Encoder(of_task)
    left.categorical, left.bag = encoder.categorical[:2], encoder.bag[:2]
    right.categorical, right.bag = encoder.categorical[2:], encoder.bag[2:]
    numbers = encoder(both)[..., :3]
    torch.testing.assert_close(numbers, torch.cat([x["numeric"], descriptor["numeric"]], -1))
    a, b = left(x)[..., 2:], right(descriptor)[..., 1:]
    cut = sum(table.embedding_dim for table in left.categorical)
    expected = torch.cat([a[..., :cut], b[..., :3], a[..., cut:], b[..., 3:]], -1)
    torch.testing.assert_close(encoder(both)[..., 3:], expected)


@pytest.mark.parametrize("columns", [Columns(2), Columns(0, (5,)), Columns(0, (), (5,)), Columns(1, (4,), ())])
def test_absent_kinds_are_harmless(columns):
    nothing = rows(6, columns=Columns(), length=0)
    x = rows(6, columns=columns)
    net = TabularNet(columns, (4,))
    torch.testing.assert_close(net(join(x, nothing)), net(x))
    torch.testing.assert_close(net(join(nothing, x)), net(x))
