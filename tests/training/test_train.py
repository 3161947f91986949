"""Early stopping: the state that did best on validation tasks, against updates made one by one."""

import math
from functools import cache

import pytest
import torch

from warmstart.core import functional, make_batch, make_task
from warmstart.core.trees import leaves
from warmstart.engine.meta import Feed, meta_update
from warmstart.engine.noise import generator
from warmstart.learners import maml
from warmstart.models.likelihoods import squared
from warmstart.training.train import Plan, train

EVERY = 2  # steps between looks
VALUES = [5.0, 3.0, 4.0, 1.0, 1.0, 2.0, 0.5]  # what the looks find; an equal value is no improvement


def source(step):
    rows = [torch.randn(2, 3, 3, generator=generator(step, part)) for part in range(2)]
    return Feed(make_task(*(make_batch(part[..., :2], part[..., 2]) for part in rows)))


@cache
def start():
    torch.manual_seed(4)
    model = functional(torch.nn.Linear(2, 1))
    learner = maml.build(model, squared, maml.Config(inner_lr=0.1, inner_steps=1, outer_lr=0.05))
    return learner, learner.init(model.params)


def after(steps):
    """The state of so many updates."""
    learner, state = start()
    for step in range(steps):
        state, _ = meta_update(learner)(state, source(step))
    return state


def same(found, expected):
    pairs = list(zip(leaves(found), leaves(expected), strict=True))
    return len(pairs) > 1 and all(torch.equal(left, right) for left, right in pairs)


def watched(values, seen):
    def validate(state):
        seen.append(state)
        return values[len(seen) - 1]

    return validate


@pytest.mark.parametrize(("patience", "best", "looks"), [(1, 2, 3), (2, 4, 6), (3, 7, 7)])
def test_early_stopping_gives_the_best_state(patience, best, looks):
    seen, told = [], []
    plan = Plan(steps=EVERY * len(VALUES), every=EVERY, patience=patience)
    validate = watched(VALUES, seen)
    found = train(*start(), source, plan, validate, record=lambda step, figures: told.append((step, figures)))
    assert (found.step, found.value) == (EVERY * best, VALUES[best - 1])
    assert same(found.state, after(EVERY * best)) and not same(found.state, after(EVERY * best - 1))
    assert [(step, figures["validation"]) for step, figures in told] == [
        (EVERY * (i + 1), VALUES[i]) for i in range(looks)
    ]
    assert all(same(state, after(EVERY * (i + 1))) for i, state in enumerate(seen))


def test_a_value_that_is_no_number_is_never_the_best():
    plan = Plan(steps=4, every=1, patience=9)
    found = train(*start(), source, plan, watched([math.nan, 2.0, math.nan, 3.0], []))
    assert (found.step, found.value) == (2, 2.0) and same(found.state, after(2))


def test_without_validation_tasks_it_is_the_last_state():
    found = train(*start(), source, Plan(steps=5, every=2, patience=1))
    assert found.step == 5 and math.isnan(found.value) and same(found.state, after(5))


def test_a_stopped_training_stays_stopped_in_its_folder(tmp_path):
    plan = Plan(steps=14, every=EVERY, patience=2)
    first = train(*start(), source, plan, watched(VALUES, []), folder=tmp_path)
    again = train(*start(), source, plan, lambda state: pytest.fail("looked again"), folder=tmp_path)
    assert (again.step, again.value) == (first.step, first.value) and same(again.state, first.state)
