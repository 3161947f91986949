"""Prototypical networks against a plain loop and finite differences. What every learner does: tests/learners."""

import pytest
import torch

from warmstart.baselines.protonet import Config, build
from warmstart.core import InputError, adapt, functional, make_batch, make_task
from warmstart.core.trees import take
from warmstart.engine.meta import Feed, meta_update, predict_stack
from warmstart.engine.stage import TRACED
from warmstart.models.conv4 import Conv4
from warmstart.models.mlp import MLP
from warmstart.tasks.images import draw_episodes, make_images

TASKS, SHOWN, ASKED, CLASSES = 3, 9, 6, 4


def problem(seed=0):
    """Weighted, padded tasks; class 3 of the first and all but one class of the last show no row."""
    g = torch.Generator().manual_seed(seed)

    def rows(count, y, mask):
        x = torch.randn(TASKS, count, 2, generator=g)
        return make_batch(x, y, torch.rand(TASKS, count, generator=g) + 0.3, mask.to(x.dtype))

    shown = torch.randint(CLASSES, (TASKS, SHOWN), generator=g)
    shown[0], shown[1, :4], shown[2] = shown[0] % 3, torch.arange(4), 1
    support = rows(SHOWN, shown, torch.arange(SHOWN) < torch.tensor([[9], [7], [2]]))
    asked = torch.randint(CLASSES, (TASKS, ASKED), generator=g)
    asked[0, 0] = 3
    return make_task(support, rows(ASKED, asked, torch.arange(ASKED) < torch.tensor([[6], [3], [5]])))


def network():
    torch.manual_seed(3)
    return functional(MLP(2, (5,), 1, activation="tanh"))


def by_loop(model, params, tasks):
    """Prototypes, probabilities and the sum over tasks of the mean loss, row by row."""
    prototypes, chances, total = [], [], 0.0
    for t in range(TASKS):
        support, query = take(tasks.support, t), take(tasks.query, t)
        centres = {}
        for k in range(CLASSES):
            kept = [i for i in range(SHOWN) if support.mask[i] and support.y[i] == k]
            if kept:
                weight = sum(support.w[i] for i in kept)
                centres[k] = sum(support.w[i] * model.features(params, support.x[i]) for i in kept) / weight
        prototypes.append(centres)
        loss, weight = 0.0, 0.0
        for i in range(ASKED):
            f = model.features(params, query.x[i])
            near = {k: torch.exp(-((f - c) ** 2).sum()) for k, c in centres.items()}
            chance = {k: value / sum(near.values()) for k, value in near.items()}
            chances.append([chance[k].item() if k in chance else 0.0 for k in range(CLASSES)])
            if query.mask[i] and int(query.y[i]) in chance:
                loss = loss - query.w[i] * chance[int(query.y[i])].log()
                weight = weight + query.w[i]
        total = total + (loss / weight if weight else 0.0)
    return prototypes, torch.tensor(chances).reshape(TASKS, ASKED, CLASSES), total


@pytest.mark.usefixtures("float64")
def test_prototypes_and_probabilities_are_those_of_a_plain_loop():
    model, tasks = network(), problem()
    learner = build(model, CLASSES, Config())
    state = learner.init(model.params)
    prototypes, chances, _ = by_loop(model, model.params, tasks)
    for t in range(TASKS):
        found = adapt(learner, state, take(tasks.support, t), ())
        assert found.seen.nonzero().flatten().tolist() == sorted(prototypes[t])
        for k, centre in prototypes[t].items():
            torch.testing.assert_close(found.mean[k], centre)
    torch.testing.assert_close(predict_stack(learner, state, tasks).mean, chances)


@pytest.mark.usefixtures("float64")
def test_meta_gradient_is_that_of_a_plain_loop_and_of_finite_differences():
    model, tasks = network(), problem()
    learner = build(model, CLASSES, Config())
    delta, info = learner.meta_grad(learner.init(model.params), tasks, ())
    params = {name: value.clone().requires_grad_() for name, value in model.params.items()}
    total = by_loop(model, params, tasks)[2]
    torch.testing.assert_close(info.loss, total.detach())
    grads = torch.autograd.grad(total, list(params.values()), allow_unused=True)
    for (name, value), grad in zip(params.items(), grads, strict=True):
        torch.testing.assert_close(delta.grad[name], torch.zeros_like(value) if grad is None else grad)
    place, step = ("body.0.weight", (1, 0)), 1e-6
    ends = []
    for sign in (1, -1):
        moved = {name: value.clone() for name, value in model.params.items()}
        moved[place[0]][place[1]] += sign * step
        ends.append(learner.meta_grad(learner.init(moved), tasks, ())[1].loss)
    assert float(ends[0] - ends[1]) / (2 * step) == pytest.approx(float(delta.grad[place[0]][place[1]]), rel=1e-5)


@pytest.mark.usefixtures("float64")
def test_later_rows_are_one_more_step():
    model, tasks = network(), problem()
    learner = build(model, CLASSES, Config())
    state, support = learner.init(model.params), take(problem().support, 1)
    inner = learner.start(state, ())
    for part in (slice(0, 2), slice(2, 5), slice(5, None)):
        inner = learner.step(state, inner, take(support, part), ())
    found, expected = learner.finish(state, inner, support), adapt(learner, state, support, ())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(predict_stack(learner, state, tasks, steps=4), predict_stack(learner, state, tasks))


def test_an_unseen_class_has_no_chance_and_nothing_shown_is_even():
    model, tasks = network(), problem()
    learner = build(model, CLASSES, Config())
    state = learner.init(model.params)
    chance = predict_stack(learner, state, tasks).mean
    assert (chance[0, :, 3] == 0).all() and (chance[2, :, 1] == 1).all()
    torch.testing.assert_close(chance.sum(-1), torch.ones(TASKS, ASKED))
    assert (predict_stack(learner, state, tasks, steps=0).mean == 1 / CLASSES).all()


def patterns(classes=8, each=10, side=16):
    """Pictures of a class are one pattern with noise."""
    g = torch.Generator().manual_seed(0)
    pattern = torch.randint(60, 200, (classes, 1, 1, side, side), generator=g)
    pixels = pattern + torch.randint(-60, 56, (classes, each, 1, side, side), generator=g)
    names = tuple(f"c{i}" for i in range(classes))
    return make_images(pixels.flatten(0, 1).to(torch.uint8), torch.full((classes,), each), names)


@pytest.mark.usefixtures("float64")
def test_traced_is_plain_on_pictures():
    torch.manual_seed(0)
    model = functional(Conv4((1, 16, 16), 1, filters=3))
    plain, fast = build(model, 4, Config()), build(model, 4, Config(), TRACED)
    state = plain.init(model.params)
    feed = Feed(draw_episodes(patterns(), 2, 3, 2, 2, torch.Generator().manual_seed(1), least=1))
    for _ in range(2):  # the second time it runs what it has recorded
        torch.testing.assert_close(fast.meta_grad(state, *feed), plain.meta_grad(state, *feed))


def test_training_helps_tasks_of_more_classes_than_it_was_trained_on():
    torch.manual_seed(0)
    model = functional(Conv4((1, 16, 16), 1, filters=8))
    learner = build(model, 8, Config(outer_lr=3e-3), TRACED)
    update, g = meta_update(learner, stage=TRACED), torch.Generator().manual_seed(1)
    state, images = learner.init(model.params), patterns()
    tasks = draw_episodes(images, 20, 8, 1, 4, g)

    def accuracy(state):
        return float((predict_stack(learner, state, tasks).mean.argmax(-1) == tasks.query.y).float().mean())

    before = accuracy(state)
    for _ in range(30):
        state, _ = update(state, Feed(draw_episodes(images, 8, 4, 1, 4, g)))
    assert accuracy(state) > before + 0.1


def test_one_class_is_refused():
    with pytest.raises(InputError, match="at least two classes"):
        build(network(), 1, Config())
