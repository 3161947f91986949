import pytest
import torch
from torch import nn

from warmstart.core import InputError, Likelihood, functional, make_batch, task_loss
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP

NAMES = {"body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias", "head.weight", "head.bias"}


def test_apply_and_features_are_the_module():
    net = MLP(2, (5, 4), 3, activation="tanh")
    model = functional(net)
    x = torch.randn(7, 2)
    torch.testing.assert_close(model.apply(model.params, x), net(x))
    torch.testing.assert_close(model.features(model.params, x), net.features(x))
    assert set(model.params) == NAMES


def test_apply_follows_the_parameters_it_is_given():
    net = MLP(2, (5,), 1)
    model, other = functional(net), MLP(2, (5,), 1)
    x = torch.randn(3, 2)
    torch.testing.assert_close(model.apply(dict(other.named_parameters()), x), other(x))
    torch.testing.assert_close(model.features(dict(other.named_parameters()), x), other.features(x))


def test_the_module_and_the_model_do_not_share_memory():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    model = functional(net)
    x = torch.randn(4, 2)
    before = model.apply(model.params, x).clone()
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.add_(1)
    torch.testing.assert_close(model.apply(model.params, x), before)
    assert not any(value.requires_grad for value in model.params.values())


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3, bias=False)
            self.two = nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(self.one(x))

    model = functional(Tied())
    weight = torch.randn(3, 3)
    x = torch.randn(2, 3)
    assert list(model.params) == ["one.weight"]
    torch.testing.assert_close(model.apply({"one.weight": weight}, x), x @ weight.T @ weight.T)


@pytest.mark.parametrize(
    ("patterns", "fast"),
    [
        ("*", NAMES),
        ("head.*", {"head.weight", "head.bias"}),
        ("*.bias", {"body.0.bias", "body.2.bias", "head.bias"}),
        (["head.*", "body.0.weight"], {"head.weight", "head.bias", "body.0.weight"}),
        (["head.*", "nothing"], {"head.weight", "head.bias"}),
    ],
)
def test_patterns_choose_the_fast_parameters(patterns, fast):
    model = functional(MLP(2, (5, 4), 1), fast=patterns)
    assert model.fast == fast
    quick, slow = model.split(model.params)
    assert set(quick) == fast and set(slow) == NAMES - fast
    assert all({**quick, **slow}[name] is value for name, value in model.params.items())


def test_a_pattern_that_fits_nothing_names_what_there_is():
    with pytest.raises(InputError, match=r"heads\.\* or tail.*head\.weight"):
        functional(MLP(1, (2,), 1), fast=["heads.*", "tail"])
    with pytest.raises(InputError, match="no parameters"):
        functional(nn.ReLU())


def test_features_ask_for_the_method():
    model = functional(nn.Linear(2, 1))
    with pytest.raises(InputError, match="features"):
        model.features(model.params, torch.zeros(1, 2))


def test_task_loss_averages_the_likelihood_over_rows():
    model = functional(MLP(2, (3,), 1))
    batch = make_batch(torch.randn(4, 2), torch.randn(4), w=torch.tensor([1.0, 0.0, 2.0, 5.0]))
    out = model.apply(model.params, batch.x).squeeze(-1)
    expected = (batch.w * (out - batch.y) ** 2).sum() / 8
    torch.testing.assert_close(task_loss(model, squared)(model.params, batch), expected)


def test_a_likelihood_of_ones_own_is_used_as_it_is():
    mine = Likelihood("absolute", lambda out, y: (out.squeeze(-1) - y).abs(), squared.mean, squared.curvature, None)
    model = functional(MLP(1, (), 1))
    batch = make_batch(torch.ones(2, 1), torch.tensor([10.0, -10.0]))
    out = model.apply(model.params, batch.x).squeeze(-1)
    torch.testing.assert_close(task_loss(model, mine)(model.params, batch), (out - batch.y).abs().mean())
