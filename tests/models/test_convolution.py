from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from warmstart.core import Batch, functional, make_task
from warmstart.engine.device import fast_products
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.learners import imaml
from warmstart.models import conv4
from warmstart.models.convolution import by_patches, by_squares, by_torch
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import seeded

SIZES = [(28, 28, 2), (7, 7, 2), (4, 5, 2), (6, 5, 1), (1, 3, 2)]
TORCHS = partial(F.max_pool2d, kernel_size=2)


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


@pytest.mark.parametrize(("height", "width"), [(6, 6), (7, 5), (2, 3)])
def test_squares_are_torchs_pooling(height, width):
    x, _ = made(height, width)
    torch.testing.assert_close(by_squares(x[0]), F.max_pool2d(x[0], 2))
    slopes = [grad(lambda x, pool=pool: (pool(x) ** 3).sum())(x[0]) for pool in (by_squares, TORCHS)]
    torch.testing.assert_close(*slopes)


def test_curvature_of_a_pooled_network_is_known_inside_a_stack_as_a_gpu_runs_it(monkeypatch):
    """Channels last in memory, where torch's pooling has no second derivative inside vmap."""
    rows = {"pixels": torch.rand(2, 4, 1, 16, 16, dtype=torch.float64), "real": torch.ones(2, 4, dtype=torch.float64)}
    task = Batch(rows, torch.tensor([[0, 1, 0, 1]] * 2), *torch.ones(2, 2, 4, dtype=torch.float64))

    def slopes(convolution, pool):
        monkeypatch.setattr(conv4, "pool", pool)
        with seeded(0):
            model = functional(conv4.Conv4((1, 16, 16), 2, 3, False, convolution).double())
        learner = imaml.build(model, multiclass, imaml.Config(inner_lr=0.1, inner_steps=2, prox=0.7), PLAIN)
        return learner.meta_grad(learner.init(model.params), make_task(task, task), ())[0].grad

    torch.testing.assert_close(slopes(by_patches, by_squares), slopes(by_torch, TORCHS))
