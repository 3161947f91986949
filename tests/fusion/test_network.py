"""Networks read off their weights, and pools that do not fit them."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from warmstart.core import InputError
from warmstart.fusion.network import chain, head_params, make_network, make_pool, run_features, run_models
from warmstart.models.mlp import MLP


@pytest.mark.parametrize(
    "module",
    [MLP(3, (7, 5), 2, "tanh"), nn.Linear(3, 2), nn.Linear(3, 2, bias=False)],
    ids=["MLP", "linear", "no bias"],
)
def test_a_chain_is_the_network_its_weights_came_from(module):
    params = dict(sorted((name, value.detach()) for name, value in module.named_parameters()))
    x = torch.randn(6, 3)
    found = chain(params, "tanh")
    found.load_state_dict(params)
    assert_close(found(x), module(x))


def test_layers_are_ordered_by_number_not_by_letter():
    params = {f"layer{i}.weight": torch.randn(4 if i == 10 else 3, 3) for i in (10, 9, 2)}
    assert chain(params).path == ["layer2", "layer9", "layer10"]


@pytest.mark.parametrize(
    "params",
    [
        {"a.weight": torch.zeros(4, 2), "b.weight": torch.zeros(1, 3)},
        {"conv.weight": torch.zeros(4, 2, 3, 3)},
        {"a.weight": torch.zeros(4, 2), "scale": torch.zeros(1)},
    ],
)
def test_weights_that_are_no_chain_are_refused(params):
    with pytest.raises(InputError, match="pass the module"):
        chain(params)


def stacked(module, n=3):
    return {name: torch.randn(n, *value.shape) for name, value in module.named_parameters()}


def test_the_head_reads_the_features():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    network, params, x = make_network(module), stacked(module), torch.randn(5, 1, 4, 4)
    seen = run_features(network, params, x)
    weights = torch.cat([params["3.weight"], params["3.bias"][..., None]], -1)
    assert_close(run_models(network, params, x), seen @ weights.double().mT)
    for name, value in head_params(network, weights).items():
        assert_close(value, params[name])


def test_a_head_without_bias_has_no_last_weight():
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    network, params, x = make_network(module), stacked(module), torch.randn(5, 2)
    assert (run_features(network, params, x)[..., -1] == 0).all()
    assert list(head_params(network, torch.zeros(1, 4))) == ["2.weight"]
    make_pool(network, params, torch.zeros(3, 1), x)


@pytest.mark.parametrize(
    ("module", "inputs", "spoil", "words"),
    [
        (MLP(2, (3,), 1), torch.randn(5, 3), None, "inputs that the models can read"),
        (MLP(2, (3,), 1), torch.randn(5, 2), "rename", "a difference at"),
        (MLP(2, (3,), 1), torch.randn(5, 2), "infinite", "finite outputs"),
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh()), torch.randn(5, 2), None, "ends in its last linear layer"),
    ],
)
def test_pools_that_do_not_fit_are_refused(module, inputs, spoil, words):
    params = stacked(module)
    if spoil == "rename":
        params["other"] = params.pop("head.bias")
    if spoil == "infinite":
        params = {name: value * 1e30 for name, value in params.items()}
    with pytest.raises(InputError, match=words):
        make_pool(make_network(module), params, torch.zeros(3, 1), inputs)


def test_a_network_without_a_linear_layer_is_refused():
    with pytest.raises(InputError, match="last linear layer"):
        make_network(nn.Conv2d(1, 1, 1))
