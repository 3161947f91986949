"""The four-block network against torch's own layers, with padding, and its derivatives."""

import pytest
import torch
import torch.nn.functional as F

from warmstart.core import functional, make_task
from warmstart.core.trees import leaves, tree_map
from warmstart.engine.meta import predict_stack
from warmstart.engine.stage import COMPILED, LOOPED, TRACED
from warmstart.learners import maml
from warmstart.models.conv4 import Conv4, fastest_stage
from warmstart.models.likelihoods import multiclass
from warmstart.tasks.images import as_batch


def net(strided=True, filters=3, outputs=2, size=9, channels=2):
    torch.manual_seed(0)
    made = Conv4((channels, size if strided else 16, size if strided else 16), outputs, filters, strided).double()
    with torch.no_grad():
        for value in made.parameters():
            value += 0.2 * torch.randn_like(value)
    return made


def rows(made, count, real=None):
    size = 9 if made.strided else 16
    pixels = torch.rand(count, 2, size, size, dtype=torch.float64)
    return {"pixels": pixels, "real": torch.ones(count, dtype=torch.float64) if real is None else real}


@pytest.mark.parametrize("strided", [True, False], ids=["strided", "pooled"])
def test_blocks_are_convolution_batch_norm_relu(strided):
    made = net(strided)
    x = rows(made, 5)
    out = x["pixels"]
    for block in made.blocks:
        out = F.conv2d(out, block.weight, stride=2 if strided else 1, padding=1)
        out = F.relu(F.batch_norm(out, None, None, block.scale, block.shift, training=True))
        out = out if strided else F.max_pool2d(out, 2)
    expected = out.mean((2, 3)) if strided else out.flatten(1)
    torch.testing.assert_close(made.features(x), expected)
    torch.testing.assert_close(made(x), made.head(expected))


@pytest.mark.parametrize("strided", [True, False], ids=["strided", "pooled"])
def test_padding_stays_out_of_the_statistics(strided):
    made = net(strided)
    x = rows(made, 6, torch.tensor([1.0, 1, 0, 1, 1, 0], dtype=torch.float64))
    kept = x["real"].bool()
    alone = {"pixels": x["pixels"][kept], "real": x["real"][kept]}
    torch.testing.assert_close(made(x)[kept], made(alone))


def episodes(made, tasks=3, shown=4, judged=3):
    def batch(count):
        parts = [rows(made, count) for _ in range(tasks)]
        return as_batch(torch.stack([part["pixels"] for part in parts]), torch.randint(2, (tasks, count)))

    return make_task(batch(shown), batch(judged))


@pytest.mark.parametrize("strided", [True, False], ids=["strided", "pooled"])
def test_meta_gradient_by_finite_differences_and_on_every_path(strided):
    made = net(strided)
    model, task = functional(made), episodes(made)
    cfg = maml.Config(inner_lr=0.3, inner_steps=2)
    plain = maml.build(model, multiclass, cfg)
    state = plain.init(model.params)
    delta, info = plain.meta_grad(state, task, ())
    for stage in (TRACED, LOOPED):
        found = maml.build(model, multiclass, cfg, stage).meta_grad(state, task, ())
        for left, right in zip(leaves(found), leaves((delta, info)), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)
    toward = tree_map(torch.randn_like, model.params)

    def value(step):
        moved = tree_map(lambda p, d: p + step * d, model.params, toward)
        return plain.meta_grad(plain.init(moved), task, ())[1].loss

    slope = sum((g * d).sum() for g, d in zip(leaves(delta.grad), leaves(toward), strict=True))
    torch.testing.assert_close((value(1e-6) - value(-1e-6)) / 2e-6, slope, rtol=2e-4, atol=1e-6)


def test_alone_a_query_picture_does_not_feel_the_others():
    made = net()
    model, task = functional(made), episodes(made, judged=4)
    learner = maml.build(model, multiclass, maml.Config(inner_lr=0.3, test_steps=2))
    state = learner.init(model.params)
    fewer = task._replace(query=tree_map(lambda leaf: leaf[:, :2], task.query))
    whole, part = (predict_stack(learner, state, each, alone=True).mean for each in (task, fewer))
    torch.testing.assert_close(whole[:, :2], part)
    torch.testing.assert_close(predict_stack(learner, state, task, alone=True, chunk=2, at_once=1).mean, whole)
    together, less = (predict_stack(learner, state, each).mean for each in (task, fewer))
    assert not torch.allclose(together[:, :2], less)


@pytest.mark.parametrize(
    ("device", "strided", "updates", "pictures", "stage"),
    [
        ("cpu", False, 60_000, 80, LOOPED),
        ("cpu", True, 60_000, 8 * 80, TRACED),
        ("cpu", True, 60_000, 32 * 80, LOOPED),
        ("cuda", False, 60_000, 32 * 80, COMPILED),
        ("cuda", False, 100, 32 * 80, TRACED),
    ],
)
def test_many_pictures_or_large_maps_on_a_cpu_run_task_after_task(device, strided, updates, pictures, stage):
    assert fastest_stage(torch.device(device), strided, updates, pictures) is stage
