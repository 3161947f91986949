import pytest
import torch
from torch.func import grad, vmap

from warmstart.engine.device import fast_products
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.models.convolution import by_patches, by_torch

SIZES = [(28, 28, 2), (7, 7, 2), (4, 5, 2), (6, 5, 1), (1, 3, 2)]


def after_a_step(convolve, stride):
    """The gradient of a loss after a step of descent: derivatives of the first and the second order."""

    def loss(x, weight):
        return (convolve(x, weight, stride).tanh() ** 2).sum()

    def later(x, weight):
        to_x, to_weight = grad(loss, argnums=(0, 1))(x, weight)
        return loss(x - 0.1 * to_x, weight - 0.1 * to_weight)

    return grad(later, argnums=(0, 1))


def made(height, width, tasks=2):
    draw = torch.Generator().manual_seed(height + width)
    shapes = (tasks, 3, 2, height, width), (tasks, 4, 2, 3, 3)
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize(("height", "width", "stride"), SIZES)
def test_patches_give_torchs_convolution(height, width, stride):
    x, weight = made(height, width)
    torch.testing.assert_close(by_patches(x[0], weight[0], stride), by_torch(x[0], weight[0], stride))


@pytest.mark.parametrize("stage", [PLAIN, TRACED])
@pytest.mark.parametrize(("height", "width", "stride"), SIZES)
def test_patches_have_torchs_derivatives_task_by_task(height, width, stride, stage):
    x, weight = made(height, width)
    run = stage.stack(lambda shared, x, weight: after_a_step(by_patches, stride)(x, weight))
    expected = vmap(after_a_step(by_torch, stride))(x, weight)
    torch.testing.assert_close(run((), x, weight), expected, rtol=1e-9, atol=1e-9)


def test_lower_precision_is_asked_for_by_torchs_switch():
    x, weight = (leaf[0].float() for leaf in made(7, 7))
    exact = by_patches(x, weight, 2)
    with fast_products(torch.device("cuda")):
        rounded = by_patches(x, weight, 2)
        torch.testing.assert_close(by_patches(x.double(), weight.double(), 2), exact.double(), rtol=1e-5, atol=1e-5)
    with fast_products(torch.device("cpu")):
        assert torch.equal(by_patches(x, weight, 2), exact)
    assert rounded.dtype == exact.dtype and not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0.05)
