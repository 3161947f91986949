"""Starts amid adapted parameters are where they are said to be, and scored from there."""

import pytest
import torch

from warmstart.core import InputError
from warmstart.core.trees import pack
from warmstart.engine.noise import generator
from warmstart.learners import maml
from warmstart.studies import small_zone
from warmstart.studies.small_zone import CORNERS, LEARNED, STRAY, adapted_vectors, combinations, on_sines, score_from

TINY = small_zone.Preset(4, 6, 3, 2, 2, 4)


def test_combinations_are_convex_and_use_so_many_corners():
    corners = torch.eye(6)
    for count in (1, 2, 6):
        found = combinations(corners, count, 50, generator(0))
        torch.testing.assert_close(found.sum(1), torch.ones(50))
        assert bool((found >= 0).all()) and bool(((found > 0).sum(1) == count).all())


def test_corners_are_where_ten_steps_of_descent_lead():
    made = on_sines(TINY, 0, torch.device("cpu"), lambda *_: None, None)
    found = adapted_vectors(made)
    x, y = made.corners.support.x[2], made.corners.support.y[2]
    names = list(made.state.theta)
    net = torch.nn.Sequential(
        torch.nn.Linear(1, 40), torch.nn.ReLU(), torch.nn.Linear(40, 40), torch.nn.ReLU(), torch.nn.Linear(40, 1)
    )
    for target, value in zip(net.parameters(), made.state.theta.values(), strict=True):
        target.data = value.clone()
    for _ in range(small_zone.ADAPTED):
        slopes = torch.autograd.grad(((net(x).squeeze(-1) - y) ** 2).mean(), list(net.parameters()))
        for target, slope in zip(net.parameters(), slopes, strict=True):
            target.data -= maml.Config(inner_lr=0.01).inner_lr * slope
    expected = pack(dict(zip(names, (p.detach() for p in net.parameters()), strict=True)))
    torch.testing.assert_close(found[2], expected, rtol=1e-3, atol=1e-4)
    start = dict(zip(names, (p.detach() for p in net.parameters()), strict=True))
    judged = (net(made.test.query.x).squeeze(-1) - made.test.query.y) ** 2
    torch.testing.assert_close(score_from(made, start, 0), judged.mean().detach(), rtol=1e-4, atol=1e-4)


def test_the_study_compares_starts(monkeypatch):
    monkeypatch.setitem(small_zone.PRESETS, "quick", TINY)
    outcome = small_zone.run(seeds=(0,), device="cpu")
    at = {row.method: row for row in outcome.results.rows if row.setting == {"tasks": "sines", "steps": 0}}
    assert set(at) == {LEARNED, STRAY, *CORNERS.values()} and at[STRAY].counts == (4,) and at[LEARNED].counts == (1,)
    with pytest.raises(InputError, match="tasks among"):
        small_zone.run(only=["mnist"])
    with pytest.raises(InputError, match="Omniglot"):
        small_zone.run(only=["omniglot"])
