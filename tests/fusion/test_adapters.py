"""Low-rank adapters: fusing does not depend on which factors a product has, and the best of a rank is found."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from warmstart.core import InputError
from warmstart.fusion import adapter_functions, adapter_gp, adapters, average
from warmstart.fusion.network import make_pool, run_models
from warmstart.models.mlp import seeded

N, RANK = 7, 2
SIZES = {"0": (6, 3), "2": (2, 6)}  # out, in


@pytest.fixture
def base():
    with seeded(5):
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))


def adapters_of(n, seed=0, rank=RANK):
    draw = torch.Generator().manual_seed(seed)
    params = {}
    for layer, (out, width) in SIZES.items():
        params[f"{layer}.lora_A"] = torch.randn(n, rank, width, generator=draw)
        params[f"{layer}.lora_B"] = 0.3 * torch.randn(n, out, rank, generator=draw)
    return params


def turned(params, seed=1):
    """The same products from other factors, B G and G^-1 A with a G of each layer and model."""
    draw, changed = torch.Generator().manual_seed(seed), {}
    for layer in SIZES:
        a, b = params[f"{layer}.lora_A"].double(), params[f"{layer}.lora_B"].double()
        g = torch.randn(len(a), a.shape[1], a.shape[1], generator=draw).double() + 2 * torch.eye(a.shape[1])
        changed[f"{layer}.lora_A"] = torch.linalg.solve(g, a).float()
        changed[f"{layer}.lora_B"] = (b @ g).float()
    return changed


def products(params):
    return {layer: params[f"{layer}.lora_B"].double() @ params[f"{layer}.lora_A"].double() for layer in SIZES}


def one(params):
    return {name: value[0] for name, value in params.items()}


def test_an_adapter_adds_its_product_to_the_frozen_weights(base):
    params, x = adapters_of(1), torch.randn(5, 3)
    network = adapters.attach(base, one(params))
    d = {layer: value[0].float() for layer, value in products(params).items()}
    hidden = torch.tanh(x @ (base[0].weight + d["0"]).T + base[0].bias)
    assert_close(network.apply(one(params), x), hidden @ (base[2].weight + d["2"]).T + base[2].bias)


def test_the_canonical_form_keeps_functions_and_forgets_which_factors_there_were(base):
    params, x = adapters_of(N), torch.randn(20, 3)
    network = adapters.attach(base, one(params))
    ours, theirs = adapters.canonical(params), adapters.canonical(turned(params))
    assert_close(run_models(network, ours, x), run_models(network, params, x), rtol=1e-4, atol=1e-5)
    for name in params:
        assert_close(ours[name], theirs[name], rtol=1e-2, atol=1e-3)
    a, b = ours["0.lora_A"], ours["0.lora_B"]
    assert_close(a @ a.mT, b.mT @ b, rtol=1e-4, atol=1e-5)  # balanced
    assert (b.gather(1, b.abs().argmax(1, keepdim=True)) > 0).all()


def test_inner_products_are_those_of_the_products():
    params = adapters_of(N)
    flat = torch.cat([value.flatten(1) for value in products(params).values()], 1)
    assert_close(adapters.gram(params), flat @ flat.T)


@pytest.mark.parametrize("n", [1, 7])  # ranks below and above the layers' widths
def test_a_mixture_is_the_best_of_its_rank(n):
    params = adapters_of(n)
    weights = torch.linspace(-0.5, 1.2, 3 * n).reshape(3, n)
    made = products(adapters.mix(adapters.bases(params), one(params), weights))
    for layer, whole in products(params).items():
        u, s, v = torch.linalg.svd(torch.einsum("qn,noi->qoi", weights.double(), whole), full_matrices=False)
        best = (u[..., :RANK] * s[..., None, :RANK]) @ v[..., :RANK, :]
        assert_close(made[layer], best, rtol=1e-4, atol=1e-5)


def test_the_average_is_of_products_and_leaves_the_model_out(base):
    params = adapters_of(2, rank=1)
    network = adapters.attach(base, one(params))
    pool = make_pool(network, params, torch.tensor([[0.0], [1.0]]), torch.randn(9, 3))
    rival = average.build(network, average.PRODUCTS)
    left = products(rival.held_out(rival.fit(pool)))
    for layer, value in products(params).items():
        assert_close(left[layer], value.flip(0), rtol=1e-4, atol=1e-6)
    # opposite factors of one product would average to nothing
    same = {
        name: value[:1].repeat(2, 1, 1) * torch.tensor([1.0, -1.0])[:, None, None] for name, value in params.items()
    }
    made = products(rival.zero_shot(rival.fit(pool._replace(params=same)), torch.zeros(1, 1)))
    assert_close(made["0"][0], products(params)["0"][0], rtol=1e-4, atol=1e-6)


def path(t):
    """Adapters whose products move along a curve of two directions, with factors turned at random."""
    first, second = (products(adapters_of(1, seed, 1)) for seed in (3, 4))
    params = {}
    for layer in SIZES:
        whole = torch.sin(2 * t)[:, None, None] * first[layer] + (t**2)[:, None, None] * second[layer]
        u, s, v = torch.linalg.svd(whole, full_matrices=False)
        params[f"{layer}.lora_A"] = (s[..., :RANK, None] * v[:, :RANK]).float()
        params[f"{layer}.lora_B"] = u[..., :RANK].float()
    return turned(params)


def test_the_process_finds_an_unseen_adapter_from_scrambled_factors(base):
    t = torch.linspace(-1, 1, 25).double()
    params = path(t)
    network = adapters.attach(base, one(params))
    pool = make_pool(network, params, t[:, None], torch.randn(9, 3))
    rival = adapter_gp.build(network, adapter_gp.Config(directions=5))
    state = rival.fit(pool)
    new = torch.tensor([-0.52, 0.33, 0.71]).double()
    made, wanted = products(rival.zero_shot(state, new[:, None])), products(path(new))
    for layer in SIZES:
        assert_close(made[layer], wanted[layer], rtol=1e-2, atol=1e-2)
    left = products(rival.held_out(state))
    assert (left["0"] - products(params)["0"])[3:-3].abs().max() < 0.02
    again = rival.zero_shot(rival.fit(pool._replace(params=turned(params, 9))), new[:, None])
    for layer, value in products(again).items():
        assert_close(value, made[layer], rtol=1e-3, atol=1e-3)


def test_directions_rebuild_the_rows_from_their_inner_products():
    rows = torch.randn(6, 4).double()
    weights, coordinates = adapter_gp.directions(rows @ rows.T, 99)
    assert weights.shape == (4, 6)
    assert_close(rows.mean(0) + coordinates @ (weights @ rows), rows)
    assert_close((weights @ rows) @ (weights @ rows).T, torch.eye(4).double())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: p | {"head.weight": torch.zeros(2, 2)}, "pairs lora_A and lora_B alone, got 'head.weight'"),
        (lambda p: {k: v for k, v in p.items() if k != "2.lora_B"}, "got '2.lora_A'"),
        (lambda p: {k.replace("2.", "4."): v for k, v in p.items()}, "a linear layer '4' in Sequential"),
        (lambda p: p | {"2.lora_A": torch.zeros(RANK, 5)}, r"an adapter of '2', \[2, 6\], got factors \[2, 2\]"),
    ],
)
def test_tensors_that_are_no_adapter_of_the_network_are_refused(base, spoil, words):
    with pytest.raises(InputError, match=words):
        adapters.attach(base, spoil(one(adapters_of(1))))


def test_whole_models_are_no_adapters():
    assert adapters.layers({"0.weight": torch.zeros(2, 2), "lora.bias": torch.zeros(2)}) == {}


def test_a_network_learns_to_make_adapters_of_functions(base):
    """Unseen tasks on the curve are told apart, whatever the factors were."""
    t = torch.linspace(-1, 1, 12).double()
    params, x = path(t), torch.randn(40, 3, generator=torch.Generator().manual_seed(6))
    network = adapters.attach(base, one(params))
    pool = make_pool(network, params, t[:, None], x)
    rival = adapter_functions.build(network, adapter_functions.Config(steps=300, hidden=(16,), points=32, rank=6))
    state = rival.fit(pool)
    new = torch.tensor([-0.55, 0.26, 0.64]).double()
    spread = pool.outputs.var(0).mean()
    made, wanted = (run_models(network, some, x) for some in (rival.zero_shot(state, new[:, None]), path(new)))
    assert (made - wanted).square().mean() < 0.05 * spread
    left = run_models(network, rival.held_out(state), x)
    assert (left - pool.outputs)[2:-2].square().mean() < 0.05 * spread
