import pytest
import torch

from warmstart.core import Noise
from warmstart.engine.noise import adapt_noise, generator, normals, train_noise


def draw(*place):
    return torch.randint(2**62, (2,), generator=generator(*place)).tolist()


def test_a_place_always_draws_the_same():
    assert draw(3, 5, 1) == draw(3, 5, 1)
    assert draw(3) == draw(3)


def test_order_and_depth_of_a_place_matter():
    places = [(0,), (0, 0), (0, 0, 0), (1, 0), (0, 1), (1, 2, 3), (3, 2, 1), (2, 1, 3), (1, 2, 3, 0)]
    assert len({tuple(draw(*place)) for place in places}) == len(places)


@pytest.mark.parametrize(
    "places",
    [
        lambda: ((seed, step) for seed in range(5) for step in range(20_000)),
        lambda: ((seed, step, rank) for seed in range(3) for step in range(8_000) for rank in range(4)),
    ],
    ids=["seed, step", "seed, step, rank"],
)
def test_a_hundred_thousand_neighbouring_places_draw_apart(places):
    """Two runs that differ in the seed alone must not see the same batches in another order."""
    draws = [tuple(draw(*place)) for place in places()]
    assert len(set(draws)) == len(draws) > 90_000


def test_neighbouring_places_are_uncorrelated():
    rows = torch.stack([torch.randn(64, generator=generator(0, step)) for step in range(400)])
    products = (rows[:-1] * rows[1:]).mean(1)
    assert abs(rows.mean()) < 0.02 and abs(rows.var() - 1) < 0.03
    assert abs(products.mean()) < 0.02  # 400 x 64 products: standard error 0.006


def test_large_and_negative_numbers_have_their_place():
    assert len({tuple(draw(*place)) for place in [(2**40, 1), (2**40 + 1, 1), (-1, 1), (0, -1), (0, 2**63)]}) == 5


def test_normals_have_the_shapes_asked_for_behind_the_leading_axes():
    shapes = {"a": torch.Size([3]), "b": (torch.Size([]), (), [torch.Size([2, 2])])}
    found = normals(shapes, (4, 5), generator(0))
    assert found["a"].shape == (4, 5, 3) and found["b"][0].shape == (4, 5)
    assert found["b"][1] == () and found["b"][2][0].shape == (4, 5, 2, 2)
    assert normals((), (4,), generator(0)) == ()


def test_what_a_learner_asks_for_is_drawn_for_every_task_and_step():
    noise = Noise(train=torch.Size([2]), step={"z": torch.Size([3])}, predict=torch.Size([]))
    assert train_noise(noise, 4, generator(0)).shape == (4, 2)
    steps, predict = adapt_noise(noise, 4, 7, generator(0))
    assert steps["z"].shape == (4, 7, 3) and predict.shape == (4,)
    again, _ = adapt_noise(noise, 4, 7, generator(0))
    assert again["z"].equal(steps["z"])
    assert adapt_noise(Noise(), 4, 7, generator(0)) == ((), ())
