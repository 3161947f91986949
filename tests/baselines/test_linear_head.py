"""A classifier with a new linear head: the head against scikit-learn, pictures that can be told apart, resuming."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from warmstart.baselines.linear_head import Config, fit, logistic_scores, minibatches
from warmstart.core import InputError, make_batch
from warmstart.core.trees import take
from warmstart.metrics.errors import accuracy, log_loss
from warmstart.tasks.images import draw_episodes, make_images
from warmstart.tasks.pool import limit_support
from warmstart.tasks.warps import SLIGHT, Warp

SMALL = {"filters": 8, "steps": 60, "batch": 32, "lr": 0.01, "every": 20, "tasks": 10, "way": 3, "shot": 2, "query": 4}


def patches(classes, each=12, side=16, seed=0):
    """A class is a coarse pattern of light and dark; its pictures differ in contrast, brightness and noise."""
    g = torch.Generator().manual_seed(seed)
    pattern = torch.randn(classes, 1, 4, 4, generator=g).sign()
    pattern = pattern.repeat_interleave(side // 4, -1).repeat_interleave(side // 4, -2)
    contrast, light = 30 + 40 * torch.rand(2, classes, each, 1, 1, generator=g)
    noise = 10 * torch.randn(classes, each, side, side, generator=g)
    pixels = 80 + light + contrast * pattern + noise
    names = tuple(f"c{i}" for i in range(classes))
    return make_images(pixels.clamp(0, 255).to(torch.uint8).flatten(0, 1)[:, None], torch.full((classes,), each), names)


def split(classes=18):
    """Training, validation and test classes."""
    images = patches(classes)
    kind = torch.arange(classes) % 3
    return tuple(images.select((kind == k).nonzero().flatten()) for k in range(3))


def tasks(images, count=20, shot=4):
    return draw_episodes(images, count, 3, shot, 5, torch.Generator().manual_seed(7))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("strength", [0.02, 0.3])
def test_the_head_is_scikit_learns(strength):
    torch.manual_seed(4)
    shown, asked = (torch.nn.functional.normalize(torch.randn(n, 5), dim=-1) for n in (14, 6))
    mask = (torch.arange(14) < 11).to(shown)
    support = make_batch(shown, torch.tensor([0, 2, 3] * 4 + [1, 1]), torch.rand(14) + 0.2, mask)
    found = logistic_scores(300, 5, strength, shown, asked, support)
    real = mask.bool()
    weight = support.w[real] / support.w[real].sum()
    constant = lambda rows: torch.cat([rows, torch.ones(len(rows), 1)], 1).numpy()  # noqa: E731
    model = LogisticRegression(C=1 / strength, fit_intercept=False, tol=1e-10, max_iter=10_000)
    model.fit(constant(shown[real]), support.y[real].numpy(), sample_weight=weight.numpy())
    chance = found.softmax(-1)
    torch.testing.assert_close(
        chance[:, [0, 2, 3]], torch.from_numpy(model.predict_proba(constant(asked))), atol=1e-5, rtol=1e-4
    )
    assert (chance[:, [1, 4]] == 0).all()


@pytest.mark.parametrize("head", ["logistic", "centroid"])
def test_new_classes_that_can_be_told_apart_are(head):
    train, validation, test = split()
    stack = tasks(test)
    mean = fit(train, validation, 3, Config(**{**SMALL, "head": head}))(stack).mean
    assert float(accuracy(mean, stack.query).mean()) > 0.9
    assert float(log_loss(mean, stack.query).mean()) < 0.5


def test_contract():
    train, validation, test = split()
    few = Config(**{**SMALL, "steps": 2})
    stack, predict = tasks(test, 5), fit(train, validation, 5, few)
    mean = predict(stack).mean
    assert mean.shape == (5, 15, 5) and (mean[..., 3:] == 0).all()
    torch.testing.assert_close(mean.sum(-1), torch.ones(5, 15))
    order = torch.tensor([3, 0, 1, 4, 2])
    torch.testing.assert_close(predict(take(stack, order)).mean, mean[order], atol=1e-4, rtol=1e-3)
    hidden = limit_support(stack, 9)
    spoilt = hidden.support._replace(x={**hidden.support.x, "pixels": hidden.support.x["pixels"].clone()})
    spoilt.x["pixels"][:, 9:] = torch.nan
    narrow = take(hidden.support, (slice(None), slice(9)))
    expected = predict(hidden).mean
    for support in (spoilt, narrow):
        torch.testing.assert_close(predict(stack._replace(support=support)).mean, expected, atol=1e-4, rtol=1e-3)
    for nothing in (limit_support(stack, 0), stack._replace(support=take(stack.support, (slice(None), slice(0))))):
        assert (predict(nothing).mean == 0.2).all()


def test_an_interrupted_training_goes_on_to_the_same_bits(tmp_path):
    train, validation, test = split()
    few, stack = Config(**{**SMALL, "steps": 6, "every": 2}), tasks(test, 3)
    expected = fit(train, validation, 3, few, seed=5)(stack).mean
    told = []

    def stop(done, of, words):
        told.append((done, of))
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(train, validation, 3, few, seed=5, folder=tmp_path, progress=stop)
    assert told == [(2, 6), (4, 6)]
    assert torch.equal(fit(train, validation, 3, few, seed=5, folder=tmp_path)(stack).mean, expected)


def test_bent_minibatches_are_the_same_pictures_bent():
    images = patches(3, each=4)
    plain, still, bent = (minibatches(images, 5, seed=2, warp=warp) for warp in (None, Warp(), SLIGHT))
    torch.testing.assert_close(still(4).x, plain(4).x)
    assert torch.equal(bent(4).y, plain(4).y) and not torch.allclose(bent(4).x["pixels"], plain(4).x["pixels"])
    assert torch.equal(bent(4).x["pixels"], minibatches(images, 5, seed=2, warp=SLIGHT)(4).x["pixels"])


def test_minibatches_are_all_pictures_in_a_new_order_each_round():
    images = patches(3, each=4)._replace(pixels=torch.arange(12, dtype=torch.uint8)[:, None, None, None])
    source = minibatches(images, 5, seed=2)
    ids = [(source(step).x["pixels"] * 255).round().long().flatten() for step in range(4)]
    assert len(set(torch.cat(ids[:2]).tolist())) == 10 == len(set(torch.cat(ids[2:]).tolist()))
    assert ids[0].tolist() != ids[2].tolist()
    assert source(1).y.tolist() == (ids[1] // 4).tolist()
    assert torch.equal(minibatches(images, 5, seed=2)(3).x["pixels"], source(3).x["pixels"])  # of the step alone
    assert len(minibatches(images, 500, seed=2)(0).y) == 12


def test_what_cannot_be_done_is_said_before_training():
    train, validation, _ = split()
    with pytest.raises(InputError, match="a head logistic or centroid"):
        fit(train, validation, 3, Config(head="tree"))
    with pytest.raises(InputError, match="lower the way"):
        fit(train, validation, 3, Config(way=9))
