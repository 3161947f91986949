"""Conditioning on a few rows: the formula, the choice, and that it stays where rows would harm."""

import pytest
import torch
from torch.testing import assert_close

from warmstart.core.trees import take
from warmstart.fusion import few_shot, function_gp
from warmstart.fusion.network import run_features, run_models


@pytest.fixture(scope="module")
def made(network, pool):
    rival = function_gp.build(network, function_gp.Config(steps=20))
    state = rival.fit(pool)
    held = rival.held_out(state)
    n = len(pool.descriptor)
    draw = torch.Generator().manual_seed(4)
    # the pool's functions are predicted too well to need rows, so let the held-out models err along two functions
    tilt = {name: value.clone() for name, value in held.items()}
    tilt["head.bias"] = tilt["head.bias"] + 0.5 * torch.randn(n, 1, generator=draw)
    tilt["head.weight"] = tilt["head.weight"] * (1 + 0.2 * torch.randn(n, 1, 1, generator=draw))
    errors = few_shot.some_errors(network, pool.params, tilt, torch.ones(n).double(), pool.descriptor, pool.inputs)
    return errors, take(held, 7), take(pool.params, 7)


def test_a_correction_of_each_model_uses_the_errors_of_the_others_only():
    draw = torch.Generator().manual_seed(0)
    relative, own = torch.randn(6, 9, generator=draw).double(), torch.randn(9, 9, generator=draw).double()
    own = (own @ own.mT)[:, -3:]
    share, noise, k = 0.3, 0.2, 3
    found = few_shot._left_out(relative, relative.mT @ relative[:, -k:] / 6, own, share, noise, k)
    for i in range(6):
        rest = torch.cat([relative[:i], relative[i + 1 :]])
        c = (1 - share) * rest.mT @ rest[:, -k:] / 5 + share * own
        square = c[-k:]
        level = (noise + 1e-9) * square.diagonal().mean()
        want = c @ torch.linalg.solve(square + level * torch.eye(k).double(), relative[i, -k:])
        assert_close(found[i], want)


def test_rows_bring_the_model_to_the_function_they_come_from(network, pool, made):
    errors, start, goal = made
    start = {**start, "head.bias": start["head.bias"] + 0.4}
    x = torch.tensor([[-2.0], [-0.3], [0.8], [2.2], [2.9]])
    y = run_models(network, take(goal, None), x)[0]
    found = few_shot.adapt(network, few_shot.Config(), errors, start, x, y)
    wanted = run_models(network, take(goal, None), pool.inputs)[0]
    before, after = (
        (run_models(network, take(one, None), pool.inputs)[0] - wanted).square().mean().sqrt()
        for one in (start, found.params)
    )
    assert after < 0.2 * before and found.noise < 1
    assert found.left.square().mean() < 0.1 * errors.values.square().mean()


def test_only_the_last_layer_changes(network, pool, made):
    errors, start, _ = made
    found = few_shot.adapt(network, few_shot.Config(), errors, start, torch.ones(1, 1), torch.ones(1, 1))
    assert torch.equal(found.params["body.0.weight"], start["body.0.weight"])
    assert not torch.equal(found.params["head.weight"], start["head.weight"])


def test_where_rows_would_harm_the_model_stays(network, pool, made):
    """Errors of two kinds that look alike at the row: what is right for one is wrong for the other."""
    errors, start, _ = made
    draw = torch.Generator().manual_seed(2)
    held = {name: value.clone() for name, value in errors.params.items()}
    held["head.bias"] += torch.randn(held["head.bias"].shape, generator=draw)
    held["head.weight"] += 0.3 * torch.randn(held["head.weight"].shape, generator=draw)
    alien = few_shot.some_errors(network, errors.params, held, errors.spread, pool.descriptor, pool.inputs)
    x, y = torch.zeros(1, 1), torch.full((1, 1), 9.0)
    strict = few_shot.Config(harm=0.0, noises=(0.01, 0.1), shares=(0.05,))
    found = few_shot.adapt(network, strict, alien, start, x, y)
    assert found.noise == float("inf")
    for name, value in start.items():
        assert torch.equal(found.params[name], value)
    lax = few_shot.Config(harm=1.0, noises=(0.01, 0.1), shares=(0.05,))
    assert few_shot.adapt(network, lax, alien, start, x, y).noise <= 0.1


def test_many_models_are_thinned(network, pool):
    few, ones = few_shot.Config(models=5), torch.ones(len(pool.descriptor))
    kept = few_shot.some_errors(network, pool.params, pool.params, ones, pool.descriptor, pool.inputs, few)
    assert len(kept.size) == 5


def test_plain_steps_are_gradient_descent(network, made):
    _, start, goal = made
    x = torch.linspace(-2, 2, 6)[None, :, None]
    y = run_models(network, take(goal, None), x[0]).float()
    found = few_shot.fine_tune(network, take(start, None), x, y, steps=1, lr=0.1)
    phi = run_features(network, take(start, None), x[0])[0]
    gap = run_models(network, take(start, None), x[0])[0] - y[0]
    slope = 2 * phi.mT @ gap / 6
    assert_close(found["head.bias"][0].double(), start["head.bias"].double() - 0.1 * slope[-1], rtol=1e-4, atol=1e-5)


def test_standard_errors_are_added_to_the_share_of_harmed(network, pool, made):
    """A limit that is just met without them is missed with them."""
    errors, start, _ = made
    x, y = torch.tensor([[0.4]]), torch.tensor([[1.2]])
    grid = {"shares": (0.3,), "noises": (0.1,)}
    lowest = next(
        harm / 1000
        for harm in range(1001)
        if few_shot.adapt(network, few_shot.Config(harm=harm / 1000, sure=0.0, **grid), errors, start, x, y).noise < 1
    )
    n = len(errors.size)
    needed = lowest + 2 * (lowest * (1 - lowest) / n) ** 0.5
    assert 0 < lowest < needed
    for harm, stays in ((needed - 0.005, True), (needed + 0.005, False)):
        found = few_shot.adapt(network, few_shot.Config(harm=harm, sure=2.0, **grid), errors, start, x, y)
        assert (found.noise == float("inf")) == stays
