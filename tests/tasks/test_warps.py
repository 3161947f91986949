"""Pictures bent a little, anew at every draw."""

import math

import pytest
import torch

from warmstart.core import InputError
from warmstart.engine.noise import generator
from warmstart.tasks.images import make_images, sampler
from warmstart.tasks.warps import NUMBERS, Warp, warped

pytestmark = pytest.mark.usefixtures("float64")

TURN, SLANT, WIDE, HIGH, ACROSS, DOWN, SIDE = range(NUMBERS)
SMALL = Warp(turn=15.0, shift=0.1, stretch=0.2, slant=0.1, mirror="pictures")


def numbers(count, **drawn):
    """As many rows of drawn numbers, in the middle of their range but for these."""
    uniform = torch.full((count, NUMBERS), 0.5)
    for name, value in drawn.items():
        uniform[:, globals()[name]] = value
    return uniform


@pytest.fixture
def pictures():
    return torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def test_numbers_in_the_middle_or_no_limits_change_nothing(pictures):
    torch.testing.assert_close(warped(pictures, SMALL, numbers(3)), pictures)
    torch.testing.assert_close(warped(pictures, Warp(), torch.rand(3, NUMBERS)), pictures)


@pytest.mark.parametrize(("drawn", "turns"), [(1.0, 1), (0.0, -1)])
def test_a_quarter_turn(pictures, drawn, turns):
    found = warped(pictures, Warp(turn=90.0), numbers(3, TURN=drawn))
    torch.testing.assert_close(found, pictures.rot90(turns, (2, 3)))


def test_a_shift_moves_whole_pixels_and_repeats_the_edge(pictures):
    found = warped(pictures, Warp(shift=0.25), numbers(3, ACROSS=1.0, DOWN=0.25))
    columns, rows = (torch.arange(8) + 2).clamp(max=7), (torch.arange(8) - 1).clamp(min=0)
    torch.testing.assert_close(found, pictures[..., rows, :][..., columns])


def test_a_mirror_swaps_left_and_right_of_some(pictures):
    uniform = numbers(3)
    uniform[:, SIDE] = torch.tensor([0.9, 0.1, 0.6])
    found = warped(pictures, Warp(mirror="pictures"), uniform)
    torch.testing.assert_close(found, torch.where(uniform[:, SIDE, None, None, None] > 0.5, pictures.flip(3), pictures))


def test_a_turn_keeps_lengths_in_pictures_that_are_not_square():
    """A bar of 30 pixels along the width is as long after a quarter turn, up and down."""
    picture = torch.zeros(1, 1, 41, 81)
    picture[..., 20, 25:56] = 1.0
    found = warped(picture, Warp(turn=90.0), numbers(1, TURN=1.0))[0, 0]
    assert (found[5:36, 40] > 0.99).all() and found.sum() == pytest.approx(31, abs=0.5)


@pytest.mark.parametrize(("height", "width"), [(24, 24), (20, 44)])
def test_every_point_shows_what_the_equation_says(height, width):
    """On a picture that is linear in the coordinates, between its edges, interpolation is exact."""
    how = Warp(turn=20.0, shift=0.05, stretch=0.3, slant=0.2, mirror="pictures")
    across_, down_ = ((2 * torch.arange(size, dtype=torch.float64) + 1) / size - 1 for size in (width, height))
    x, y, ratio = across_.expand(height, width), down_[:, None].expand(height, width), width / height
    uniform = torch.tensor([[0.8, 0.1, 0.2, 0.3, 0.9, 0.35, 0.7]])
    found = warped(torch.stack([x, y])[None], how, uniform)[0]
    turn, slant, wide, high, across, down, _ = (2 * uniform[0] - 1).tolist()
    angle = math.radians(20.0 * turn)
    first = -math.exp(0.3 * wide) * x + 0.2 * slant * y  # mirrored
    second = math.exp(0.3 * high) * y
    wanted = torch.stack(
        [
            math.cos(angle) * first - math.sin(angle) * second / ratio + 2 * 0.05 * across,
            math.sin(angle) * first * ratio + math.cos(angle) * second + 2 * 0.05 * down,
        ]
    )
    inside = (wanted.abs() < 1 - 1 / min(height, width)).all(0)
    assert inside.double().mean() > 0.3
    torch.testing.assert_close(found[:, inside], wanted[:, inside])


def test_episodes_are_the_same_but_for_the_warp():
    pixels = torch.randint(256, (12, 1, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    images = make_images(pixels, torch.tensor([4, 4, 4]), ("a", "b", "c"))
    plain, still, bent = (sampler(images, 2, 1, 2, warp=warp) for warp in (None, Warp(), SMALL))
    one, same, other = (draw(5, generator(7)) for draw in (plain, still, bent))
    torch.testing.assert_close(same.support.x, one.support.x)
    torch.testing.assert_close(other.support.y, one.support.y)
    assert not torch.allclose(other.query.x["pixels"], one.query.x["pixels"])
    again = bent(5, generator(7))
    torch.testing.assert_close(again.query.x, other.query.x)


def test_a_mirrored_class_is_mirrored_wherever_it_is_seen():
    """Left halves are bright: all pictures of a class face one way, support and query alike, and some classes turn."""
    pixels = torch.zeros(24, 1, 6, 6, dtype=torch.uint8)
    pixels[..., :3] = 255
    images = make_images(pixels, torch.tensor([8, 8, 8]), ("a", "b", "c"))
    task = sampler(images, 3, 2, 4, warp=Warp(mirror="classes"))(40, generator(5))
    shown, asked = (
        (batch.x["pixels"][..., 0].mean((-1, -2)) > 0.5).reshape(40, 3, -1) for batch in (task.support, task.query)
    )
    both = torch.cat([shown, asked], -1)
    assert (both == both[..., :1]).all()
    assert 0.3 < both[..., 0].double().mean() < 0.7 and (both[..., 0].sum(-1) % 3 != 0).any()


def test_padding_stays_blank_when_pictures_are_bent():
    images = make_images(torch.full((8, 1, 6, 6), 255, dtype=torch.uint8), torch.tensor([4, 4]), ("a", "b"))
    task = sampler(images, 2, 3, 1, least=0, warp=SMALL)(20, generator(3))
    blank = task.support.mask == 0
    assert blank.any() and (task.support.x["pixels"][blank] == 0).all()


@pytest.mark.parametrize("bad", [Warp(turn=-1.0), Warp(shift=math.nan), Warp(stretch=-0.1), Warp(slant=-0.1)])
def test_limits_below_zero_are_refused(bad):
    images = make_images(torch.zeros(8, 1, 6, 6, dtype=torch.uint8), torch.tensor([4, 4]), ("a", "b"))
    with pytest.raises(InputError, match="limits of at least 0"):
        sampler(images, 2, 1, 1, warp=bad)


def test_an_unknown_mirror_is_refused():
    images = make_images(torch.zeros(8, 1, 6, 6, dtype=torch.uint8), torch.tensor([4, 4]), ("a", "b"))
    with pytest.raises(InputError, match="mirror as"):
        sampler(images, 2, 1, 1, warp=Warp(mirror="rows"))
