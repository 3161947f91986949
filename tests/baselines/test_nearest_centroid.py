"""The nearest class mean on pixels: closed forms by a plain loop, and the temperature against a search."""

import math

import pytest
import torch

from warmstart.baselines.centroids import sharpness
from warmstart.baselines.nearest_centroid import Config, fit, scores
from warmstart.core.trees import take
from warmstart.metrics.errors import accuracy, log_loss
from warmstart.tasks.images import draw_episodes, make_images
from warmstart.tasks.pool import limit_support


def pictures(classes=10, each=12, side=6, noise=90, seed=0):
    g = torch.Generator().manual_seed(seed)
    pattern = torch.randint(noise, 256 - noise, (classes, 1, 1, side, side), generator=g)
    pixels = pattern + torch.randint(-noise, noise, (classes, each, 1, side, side), generator=g)
    names = tuple(f"c{i}" for i in range(classes))
    return make_images(pixels.flatten(0, 1).to(torch.uint8), torch.full((classes,), each), names)


def tasks(images=None, count=6, seed=1, least=None):
    return draw_episodes(images or pictures(), count, 3, 4, 5, torch.Generator().manual_seed(seed), least)


@pytest.mark.usefixtures("float64")
def test_probabilities_are_those_of_a_plain_loop():
    stack = tasks(least=1)
    weighted = stack.support._replace(w=torch.rand(6, 12) + 0.3)
    stack = stack._replace(support=weighted)
    found = fit(pictures(), 4, Config(temperature=0.7))(stack).mean
    for t in range(6):
        support = take(stack.support, t)
        near = []
        for k in range(3):
            kept = [i for i in range(12) if support.mask[i] and support.y[i] == k]
            mean = sum(support.w[i] * support.x["pixels"][i] for i in kept) / sum(support.w[i] for i in kept)
            near.append(torch.exp(-((stack.query.x["pixels"][t] - mean) ** 2).sum((1, 2, 3)) / 0.7))
        expected = torch.stack([*near, torch.zeros(15)], -1)
        torch.testing.assert_close(found[t], expected / expected.sum(-1, keepdim=True))


@pytest.mark.usefixtures("float64")
def test_the_chosen_temperature_is_the_likeliest():
    stack = tasks(count=40)
    found = scores(stack, 3)
    best = sharpness(found, stack.query.y)

    def loss(factor):
        return float(log_loss((factor * found).softmax(-1), stack.query).mean())

    assert loss(best) < min(loss(best * 1.02), loss(best / 1.02)) < loss(3 * best)
    unseen = torch.cat([found, torch.full_like(found[..., :1], -math.inf)], -1)
    assert sharpness(unseen, stack.query.y) == pytest.approx(best)
    labels = torch.where(torch.arange(15) == 3, 3, stack.query.y)  # of a class that showed no row
    assert math.isfinite(sharpness(unseen, labels))


@pytest.mark.usefixtures("float64")
def test_rows_without_a_mistake_leave_a_doubt():
    """n rows at score 1 against 0: the chance of a mistake is half of one in n + 1."""
    found = torch.tensor([1.0, 0.0]).expand(1, 9, 2)
    factor = sharpness(found, torch.zeros(1, 9))
    assert torch.sigmoid(torch.tensor(-factor)).item() == pytest.approx(0.5 / 10)


def test_scores_that_say_nothing_have_any_sharpness():
    assert sharpness(torch.zeros(2, 3, 4), torch.zeros(2, 3)) == 1.0


def test_new_classes_are_told_apart_with_probabilities_that_mean_something():
    images = pictures(classes=30)
    train, test = images.select(torch.arange(20)), images.select(torch.arange(20, 30))
    stack = tasks(test, count=60)
    predict = fit(train, 3, Config(tasks=60, way=3, shot=4, query=5))
    mean = predict(stack).mean
    right = float(accuracy(mean, stack.query).mean())
    assert right > 0.5 and abs(float(mean.max(-1).values.mean()) - right) < 0.05
    assert float(log_loss(mean, stack.query).mean()) < math.log(3)


def test_contract():
    stack, predict = tasks(), fit(pictures(), 5, Config(tasks=4, way=3, shot=2, query=3))
    mean = predict(stack).mean
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    torch.testing.assert_close(predict(take(stack, order)).mean, mean[order])
    hidden = stack.support._replace(mask=stack.support.mask * (torch.arange(12) != 2))
    spoilt = hidden._replace(x={**hidden.x, "pixels": hidden.x["pixels"].clone()})
    spoilt.x["pixels"][:, 2] = torch.nan
    torch.testing.assert_close(
        predict(stack._replace(support=spoilt)).mean, predict(stack._replace(support=hidden)).mean
    )
    assert (predict(limit_support(stack, 0)).mean == 0.2).all()
    assert torch.equal(fit(pictures(), 5, Config(tasks=4, way=3, shot=2, query=3))(stack).mean, mean)
