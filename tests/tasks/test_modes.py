"""Sines, lines and parabolas are what they are said to be, and as common."""

import math

import pytest
import torch

from warmstart.core import InputError
from warmstart.engine.noise import generator
from warmstart.tasks import modes
from warmstart.tasks.modes import BOUNDS, Family, curve, draw

BASES = {
    "sine": lambda x: torch.stack([torch.sin(x), torch.cos(x)], -1),
    "line": lambda x: torch.stack([torch.ones_like(x), x], -1),
    "parabola": lambda x: torch.stack([torch.ones_like(x), x, x**2], -1),
}


def residual(task, basis):
    """What is left of each task's rows after a least-squares fit."""
    x, y = task.query.x.squeeze(-1).double(), task.query.y.double()
    found = torch.linalg.lstsq(basis(x), y[..., None]).solution
    return ((basis(x) @ found).squeeze(-1) - y).abs().amax(-1)


@pytest.mark.parametrize("mode", modes.MODES)
def test_a_mode_s_curves_are_of_its_kind_and_of_no_simpler_one(mode):
    task = draw(Family(modes=(mode,), noise=0.0), 200, 3, 20, generator(0))
    assert residual(task, BASES[mode]).max() < 1e-4
    other = {"sine": "parabola", "line": "sine", "parabola": "line"}[mode]
    assert (residual(task, BASES[other]) > 0.05).double().mean() > 0.9


def test_three_modes_are_equally_common_and_parabolas_open_either_way():
    task = draw(Family(noise=0.0), 3000, 1, 20, generator(1))
    line = residual(task, BASES["line"]) < 1e-4
    parabola = (residual(task, BASES["parabola"]) < 1e-4) & ~line
    for share in (line.double().mean(), parabola.double().mean()):
        assert abs(share - 1 / 3) < 4 * math.sqrt(2 / 9 / 3000)
    x, y = (part[parabola].double() for part in (task.query.x.squeeze(-1), task.query.y))
    opening = torch.linalg.lstsq(BASES["parabola"](x), y[..., None]).solution[:, 2, 0]
    low, high = BOUNDS["parabola"][0]
    assert opening.abs().min() > low - 1e-3 and opening.abs().max() < high + 1e-3
    assert 0.4 < (opening > 0).double().mean() < 0.6


def test_curves_by_hand():
    x = torch.tensor([[0.5, -1.0]])
    given = torch.tensor([[2.0, 0.3, 1.5]])
    assert torch.allclose(curve("sine", given, x), 2 * torch.sin(1.5 * x + 0.3))
    assert torch.allclose(curve("line", given, x), 2 * x + 0.3)
    assert torch.allclose(curve("parabola", given, x), 2 * (x - 1.5) ** 2 + 0.3)


def test_rows_have_the_noise_and_the_same_seed_draws_the_same():
    task, again = (draw(Family(modes=("line",), noise=0.5), 500, 2, 40, generator(3)) for _ in range(2))
    assert torch.equal(task.query.y, again.query.y) and task.support.x.shape == (500, 2, 1)
    x, y = task.query.x.squeeze(-1).double(), task.query.y.double()
    fit = torch.linalg.lstsq(BASES["line"](x), y[..., None]).solution
    rest = (BASES["line"](x) @ fit).squeeze(-1) - y
    assert abs((rest**2).sum() / (500 * 38) - 0.25) < 0.01
    assert len(set(task.key.tolist())) == 500


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match="modes among sine, line, parabola, got 'cubic'"):
        draw(Family(modes=("sine", "cubic")), 2, 1, 1, generator(0))
    with pytest.raises(InputError, match="got 'none'"):
        draw(Family(modes=()), 2, 1, 1, generator(0))
