import torch

from warmstart.models.mlp import MLP, seeded


def test_is_what_it_says_layer_by_layer():
    net = MLP(3, (5, 4), 2, activation="tanh")
    x = torch.randn(6, 3)
    hidden = x
    for layer in (net.body[0], net.body[2]):
        hidden = torch.tanh(hidden @ layer.weight.T + layer.bias)
    torch.testing.assert_close(net.features(x), hidden)
    torch.testing.assert_close(net(x), hidden @ net.head.weight.T + net.head.bias)


def test_without_hidden_layers_it_is_linear():
    net = MLP(3, (), 1)
    x = torch.randn(6, 3)
    assert net.features(x).equal(x)
    torch.testing.assert_close(net(x), x @ net.head.weight.T + net.head.bias)


def test_names_that_patterns_can_rely_on():
    assert [name for name, _ in MLP(1, (2,), 1).named_parameters()] == [
        "body.0.weight",
        "body.0.bias",
        "head.weight",
        "head.bias",
    ]


def test_seeded_repeats_itself_and_leaves_the_global_generator_alone():
    def build(seed):
        with seeded(seed):
            return torch.cat([p.reshape(-1) for p in MLP(2, (3,), 1).parameters()])

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = build(1)
    assert torch.rand(3).equal(expected)
    assert build(1).equal(first) and not build(2).equal(first)
