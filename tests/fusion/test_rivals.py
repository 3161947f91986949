"""Ways of fusing on a pool whose functions are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.testing import assert_close

from warmstart.core.trees import take
from warmstart.fusion import average, function_gp, hypernetwork, nearest, weight_gp, weight_ridge
from warmstart.fusion.network import Pool, run_models
from warmstart.maths.subspace import project, subspace

FAST = hypernetwork.Config(hidden=(16,), steps=150, lr=1e-2, tasks=8, points=16, folds=3)
WAYS = {
    "nearest": (nearest, nearest.Config()),
    "average": (average, average.Config()),
    "aligned_average": (average, average.ALIGNED),
    "weight_gp": (weight_gp, weight_gp.Config()),
    "weight_gp, balanced": (weight_gp, weight_gp.Config(balanced=True)),
    "weight_ridge": (weight_ridge, weight_ridge.Config()),
    "hypernetwork": (hypernetwork, FAST),
    "function_gp": (function_gp, function_gp.Config(steps=40)),
}


def error(network, models, x, wanted):
    return float((run_models(network, models, x)[..., 0] - wanted).square().mean().sqrt())


@pytest.fixture(scope="module", params=WAYS)
def fitted(request, network, pool):
    module, config = WAYS[request.param]
    rival = module.build(network, config)
    return request.param, rival, rival.fit(pool)


def test_every_way_gives_models_of_the_architecture_for_new_tasks_and_for_the_pool(fitted, pool):
    _, rival, state = fitted
    made, held = rival.zero_shot(state, pool.descriptor[:4] + 0.01), rival.held_out(state)
    for name, value in pool.params.items():
        assert made[name].shape == (4, *value.shape[1:]) and held[name].shape == value.shape
        assert made[name].dtype == held[name].dtype == value.dtype


def test_errors_on_new_tasks_are_those_that_held_out_models_promise(fitted, network, pool, times, functions):
    """Tasks between those of the pool; the order of the ways is known: all must see the task, and units the order."""
    name, rival, state = fitted
    x = pool.inputs
    new = (times[1:] + times[:-1]) / 2
    found = error(network, rival.zero_shot(state, new[:, None] / times.std()), x, functions(new, x[:, 0].double()))
    promised = error(network, rival.held_out(state), x, pool.outputs[..., 0])
    limit = {
        "nearest": 0.1,
        "average": 5.0,
        "aligned_average": 1.0,
        "weight_gp": 0.02,
        "weight_gp, balanced": 0.15,
        "weight_ridge": 5.0,
        "hypernetwork": 0.4,
        "function_gp": 0.02,
    }
    assert found < limit[name] and promised < 2.5 * limit[name]


def test_without_alignment_weights_cannot_be_predicted(network, pool):
    held = weight_gp.build(network, weight_gp.UNALIGNED)
    aligned = weight_gp.build(network)
    errors = [error(network, r.held_out(r.fit(pool)), pool.inputs, pool.outputs[..., 0]) for r in (held, aligned)]
    assert errors[0] > 20 * errors[1]


def test_the_nearest_model_is_the_nearest_and_never_the_model_itself(network, pool):
    rival = nearest.build(network)
    state = rival.fit(pool)
    assert_close(rival.zero_shot(state, pool.descriptor[5:6] + 1e-4), take(pool.params, slice(5, 6)))
    assert_close(take(rival.held_out(state), 0), take(pool.params, 1))


def test_an_average_is_the_mean_of_all_or_of_the_others(network, pool):
    rival = average.build(network)
    state = rival.fit(pool)
    weight = pool.params["head.weight"]
    assert_close(rival.zero_shot(state, pool.descriptor[:2])["head.weight"][1], weight.mean(0))
    assert_close(rival.held_out(state)["head.weight"][3], torch.cat([weight[:3], weight[4:]]).mean(0))


def test_ridge_leaves_out_as_one_fitted_without_and_picks_what_that_says(network):
    """Against scikit-learn, each task left out in turn, for weights that need different ridges."""
    draw = torch.Generator().manual_seed(3)
    at = torch.randn(14, 3, generator=draw).double() + torch.tensor([1.0, -2.0, 0.5]).double()
    noise = torch.randn(14, 2, generator=draw)
    gamma = torch.stack([(2 * at[:, 0] - at[:, 2]).float() + 0.01 * noise[:, 0], noise[:, 1] + 4.0], 1)
    pool = Pool({"0.weight": gamma[:, None]}, at, torch.zeros(1, 2), torch.zeros(14, 1, 1).double())
    ridges = (0.03, 3.0, 300.0)
    rival = weight_ridge.build(network, weight_ridge.Config(ridges))
    state = rival.fit(pool)
    made, held = rival.zero_shot(state, at[:2] + 1)["0.weight"][:, 0], rival.held_out(state)["0.weight"][:, 0]
    picked = []
    for d in range(2):
        x, y = at.numpy(), gamma[:, d].double().numpy()
        rest = [np.arange(14) != i for i in range(14)]
        alone = {ridge: np.array([Ridge(ridge).fit(x[r], y[r]).predict(x[~r])[0] for r in rest]) for ridge in ridges}
        best = min(ridges, key=lambda ridge: ((alone[ridge] - y) ** 2).mean())
        picked.append(best)
        assert_close(held[:, d].double(), torch.from_numpy(alone[best]), rtol=1e-5, atol=1e-5)
        new = Ridge(best).fit(x, y).predict(x[:2] + 1)
        assert_close(made[:, d].double(), torch.from_numpy(new), rtol=1e-5, atol=1e-5)
    assert picked == [0.03, 300.0]


def test_a_hypernetwork_that_judges_a_model_has_not_seen_it(network, pool):
    """Other outputs of one fold change the networks of the other folds, but not its own."""
    cfg = replace(FAST, steps=5)
    before = hypernetwork.fit(network, cfg, pool)
    changed = torch.where((before.fold == 1)[:, None, None], pool.outputs * 2 + 1, pool.outputs)
    after = hypernetwork.fit(network, cfg, pool._replace(outputs=changed))
    same = [torch.equal(a, b) for a, b in zip(before.nets["head.bias"], after.nets["head.bias"], strict=True)]
    assert same == [False, True, False, False]


def test_heads_are_the_ridge_solution():
    draw = torch.Generator().manual_seed(0)
    phi, wanted = (torch.randn(20, k, generator=draw).double() for k in (4, 2))
    found = function_gp.solve_heads(phi, wanted[None], 0.3)[0]
    level = 0.3 * (phi.square().sum(0) / 20).mean()
    assert_close(phi.mT @ (phi @ found.mT - wanted) / 20 + level * found.mT, torch.zeros(4, 2).double())


def test_moving_the_shared_body_lowers_its_error(network, pool):
    functions = pool.outputs

    def left(steps):
        body = function_gp.shared_body(network, function_gp.Config(steps=steps, bodies=3), noisy, functions)
        features = torch.cat([network.features(body, pool.inputs), torch.ones(64, 1)], 1).double()
        return float((features @ function_gp.solve_heads(features, functions, 1e-5).mT - functions).square().mean())

    draw = torch.Generator().manual_seed(0)
    worse = {name: value + 0.5 * torch.randn(value.shape, generator=draw) for name, value in pool.params.items()}
    noisy = pool._replace(params=worse)
    assert left(60) < 0.5 * left(1)


def test_a_subspace_of_full_rank_loses_nothing():
    rows = torch.randn(5, 9, generator=torch.Generator().manual_seed(1)).double()
    space, coordinates = subspace(rows, 9)
    assert coordinates.shape == (5, 4)
    assert_close(project(space, coordinates), rows)
    small, first = subspace(rows, 2)
    assert_close(first, coordinates[:, :2])
    assert_close(small.directions @ small.directions.mT, torch.eye(2).double())
