"""Alignment changes no function, undoes a shuffle, and refuses what it does not know."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from warmstart.core import InputError
from warmstart.fusion.alignment import (
    activations,
    align,
    balance,
    match_activations,
    match_weights,
    permute,
    reaches,
    symmetries,
)
from warmstart.models.mlp import MLP, seeded

pytestmark = pytest.mark.usefixtures("float64")


class Plain(nn.Module):
    """Convolutions with batch statistics, flattened into linear layers; written with functions."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(5, track_running_stats=False)
        self.body, self.head = nn.Linear(4 * 9, 7), nn.Linear(7, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = torch.flatten(torch.relu(self.second(x)), 1)
        return self.head(torch.tanh(self.body(x)))


class Between(nn.Module):
    """A function between a convolution and a linear layer."""

    def __init__(self, function, width=5, conv=nn.Conv2d):
        super().__init__()
        self.function, self.conv, self.head = function, conv(2, 5, 3), nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.function(torch.relu(self.conv(x))))


def named_relu(activation):
    """The activation by a name that is also a method's."""
    return nn.Sequential(OrderedDict(body=nn.Linear(2, 8), relu=activation, head=nn.Linear(8, 3)))


NETWORKS = {
    "mlp": (lambda: MLP(3, (6, 5), 2), (11, 3), [6, 5]),
    "convolutions": (Plain, (4, 2, 6, 6), [5, 4, 7]),
    "sequence": (lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.0), nn.LeakyReLU(), nn.Linear(8, 2)), (9, 3), [8]),
}


KEPT = {
    "method flatten": (lambda: Between(lambda x: x.flatten(1), 80), (4, 2, 6, 6)),
    "method flatten by name": (lambda: Between(lambda x: x.flatten(start_dim=1), 80), (4, 2, 6, 6)),
    "function flatten": (lambda: Between(lambda x: torch.flatten(x, 1), 80), (4, 2, 6, 6)),
    "flatten twice": (lambda: Between(lambda x: x.flatten(1).flatten(1), 80), (4, 2, 6, 6)),
    "mean": (lambda: Between(lambda x: x.mean((2, 3))), (4, 2, 6, 6)),
    "mean by name": (lambda: Between(lambda x: x.mean(dim=(2, 3))), (4, 2, 6, 6)),
    "mean from the end": (lambda: Between(lambda x: x.mean([-2, -1])), (4, 2, 6, 6)),
    "function mean": (lambda: Between(lambda x: torch.mean(x, dim=(3, 2))), (4, 2, 6, 6)),
    "mean of a line": (lambda: Between(lambda x: x.mean(2), conv=nn.Conv1d), (4, 2, 6)),
    "last axis": (lambda: nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3)), (4, 5, 2)),
    "flat rows": (
        lambda: nn.Sequential(
            *(nn.Flatten(), nn.Linear(10, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(6, 3)),
        ),
        (4, 5, 2),
    ),
    "pools": (
        lambda: nn.Sequential(
            *(nn.AvgPool1d(2), nn.Conv1d(2, 5, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(5, 4, 1), nn.ReLU()),
            *(nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(8, 3)),
        ),
        (4, 2, 12),
    ),
    "norm of a flat picture": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 5, 3), nn.Flatten(), nn.BatchNorm1d(80, track_running_stats=False)),
            *(nn.ReLU(), nn.Linear(80, 3)),
        ),
        (4, 2, 6, 6),
    ),
    "GELU named relu": (lambda: named_relu(nn.GELU()), (9, 2)),
}


def stack(make, n=4):
    params = []
    for seed in range(n):
        with seeded(seed):
            module = make()
            with torch.no_grad():
                for value in module.parameters():
                    value.add_(torch.randn_like(value) * 0.3)  # biases and norms off their start
        params.append(dict(module.named_parameters()))
    return module, {name: torch.stack([one[name].detach() for one in params]) for name in params[0]}


def outputs(module, params, x):
    return torch.func.vmap(lambda one: torch.func.functional_call(module, one, (x,)))(params)


def shuffled(params, layers, seed=9):
    draw = torch.Generator().manual_seed(seed)
    n = len(next(iter(params.values())))
    for hidden in layers:
        order = torch.stack([torch.randperm(hidden.units, generator=draw) for _ in range(n)])
        params = permute(params, hidden, order)
    return params


@pytest.mark.parametrize("name", NETWORKS)
def test_units_are_read_off_the_module_and_moving_them_changes_no_output(name):
    make, shape, units = NETWORKS[name]
    module, params = stack(make)
    x = torch.randn(shape)
    layers = symmetries(module)
    assert [hidden.units for hidden in layers] == units
    moved = shuffled(params, layers)
    assert any(not torch.equal(moved[key], params[key]) for key in params)
    assert_close(outputs(module, moved, x), outputs(module, params, x))


@pytest.mark.parametrize("name", KEPT)
def test_neither_order_nor_scale_of_units_changes_an_output(name):
    make, shape = KEPT[name]
    module, params = stack(make)
    x, layers = torch.randn(shape), symmetries(module)
    assert layers
    for changed in (shuffled(params, layers), balance(params, layers)):
        assert_close(outputs(module, changed, x), outputs(module, params, x), atol=1e-5, rtol=0)
    far = 5 * torch.randn(80, *shape[1:])
    for key, value in match_activations(shuffled(params, layers), module, far, params).items():
        assert_close(value, params[key])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_shuffle_is_undone_by_weights_and_by_activations(name):
    make, shape, _ = NETWORKS[name]
    module, params = stack(make)
    layers = symmetries(module)
    moved = shuffled(params, layers)
    for key, value in match_weights(moved, layers, params).items():
        assert_close(value, params[key])
    for key, value in match_activations(moved, module, 5 * torch.randn(80, *shape[1:]), params).items():
        assert_close(value, params[key])


@pytest.mark.parametrize(("name", "equal"), [("mlp", [True, True]), ("convolutions", [False, True, False])])
def test_balancing_changes_no_output_and_makes_norms_equal_where_it_may(name, equal):
    make, shape, _ = NETWORKS[name]
    module, params = stack(make)
    layers = symmetries(module)
    x = torch.randn(shape)
    even = balance(params, layers)
    assert_close(outputs(module, even, x), outputs(module, params, x))
    assert [hidden.scalable for hidden in layers] == equal
    if name == "mlp":
        into = torch.cat([even["body.2.weight"], even["body.2.bias"][..., None]], -1).norm(dim=-1)
        assert_close(into, even["head.weight"].norm(dim=1))


def test_activations_are_those_of_the_units():
    module, params = stack(NETWORKS["mlp"][0], 2)
    x = torch.randn(7, 3)
    said = torch.relu(x @ params["body.0.weight"][1].T + params["body.0.bias"][1])
    said = said - said.mean(0)
    assert_close(activations(params, module, x)[0][1], said / said.norm(dim=0).clamp(min=1e-9))


def test_incoming_weights_count_by_what_they_multiply():
    module, params = stack(NETWORKS["mlp"][0], 2)
    x = 3 * torch.randn(50, 3)
    first = torch.relu(x @ params["body.0.weight"].mT + params["body.0.bias"][:, None])
    assert reaches(params, module, x) == pytest.approx(
        [(float(x.square().mean()) / 2) ** 0.5, (float(first.square().mean()) / 2) ** 0.5]
    )
    # two units, of which the second model's have the slope of one and the offset of the other
    module = MLP(1, (2,), 1)
    ours, theirs = (
        {
            "body.0.weight": torch.tensor([[[1.0], [-1.0]]]),
            "body.0.bias": torch.tensor([[bias, -bias]]),
            "head.weight": torch.ones(1, 1, 2),
            "head.bias": torch.zeros(1, 1),
        }
        for bias in (1.5, -1.5)
    )
    for far, slope in ((1.0, -1.0), (2.0, 1.0)):
        found = match_weights(ours, symmetries(module), theirs, [far])
        assert float(found["body.0.weight"][0, 0, 0]) == slope


def test_aligning_to_predictions_brings_models_together():
    """Models that are one function of a number, shuffled apart: the mean of the others is what to match."""
    module, base = stack(lambda: MLP(1, (12,), 1), 1)
    slope = {name: torch.randn_like(value) * 0.1 for name, value in base.items()}
    t = torch.linspace(-1, 1, 9)
    params = {name: torch.cat([value + at * slope[name] for at in t]) for name, value in base.items()}
    layers = symmetries(module)

    def others(stack):
        return {name: (value.sum(0, keepdim=True) - value) / (len(value) - 1) for name, value in stack.items()}

    found = align(shuffled(params, layers), layers, 4, others)
    spread = sum(float(value.var(0).sum()) for value in found.values())
    assert spread <= sum(float(value.var(0).sum()) for value in params.values()) + 1e-12


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(x + torch.relu(self.a(x)))


class Parallel(nn.Module):
    """Two chains, of which the second could read what the first writes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = MLP(4, (5,), 4), MLP(4, (5,), 4)

    def forward(self, x):
        return self.a(x), self.b(x)


def repeated(part):
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 4), part, nn.Linear(4, 4), part, nn.Linear(4, 2))


def tied(name):
    """Two layers that own one parameter."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    setattr(module[2], name, getattr(module[0], name))
    return module


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Residual(), "paths that part or meet"),
        (nn.TransformerEncoderLayer(4, 2), "TransformerEncoderLayer"),
        (Branching(), "cannot be traced"),
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "'1'"),
        (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "running statistics"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 2, 3)), "grouped"),
        (Parallel(), "paths that part or meet"),
        (nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(20, 2)), "'2', which may cut across"),
        (nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.MaxPool1d(2), nn.Linear(4, 2)), "'2', which may cut across"),
        (nn.Sequential(nn.Flatten(), nn.Linear(2, 8), nn.MaxPool1d(2), nn.Linear(4, 2)), "'2', which may cut across"),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Linear(4, 2)), "'2', which may cut across"),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.MaxPool2d(1), nn.Conv1d(4, 2, 3)), "'1', which may cut across"),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(2), nn.Conv1d(4, 2, 3)), "'1', which may cut across"),
        (nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Conv1d(4, 2, 3)), "'2', which may cut across"),
        (
            nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)),
            "'1', which may cut across",
        ),
        (Between(lambda x: x.flatten(), 80), "'flatten', which may cut across"),
        (Between(lambda x: x.mean(1)), "'mean', which may cut across"),
        (Between(lambda x: x.mean()), "'mean', which may cut across"),
        (Between(lambda x: x.mean(3)), "'mean', which may cut across"),
        (Between(lambda x: x.flatten(1).mean(1)), "'mean', which may cut across"),
        (named_relu(nn.PReLU(8)), "'relu'"),
        (repeated(nn.Linear(4, 4)), "repeated"),
        (repeated(nn.BatchNorm1d(4, track_running_stats=False)), "repeated"),
        (tied("weight"), "share"),
        (tied("bias"), "share"),
        (nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2)), "'0"),
    ],
)
def test_a_network_of_unknown_symmetry_is_refused_by_name(module, words):
    with pytest.raises(InputError, match="symmetry is known") as error:
        symmetries(module)
    assert words in str(error.value)
