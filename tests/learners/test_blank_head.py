"""MAML whose tasks start with a head of zeros: no class is preferred before it is seen."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from warmstart.core import InputError, functional, make_batch, make_task
from warmstart.core.learner import adapt
from warmstart.core.trees import take
from warmstart.engine.stage import LOOPED, PLAIN, TRACED
from warmstart.learners import maml
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import MLP, seeded

pytestmark = pytest.mark.usefixtures("float64")

BLANK = maml.Config(inner_lr=0.7, inner_steps=3, test_steps=4, blank="head.*", weight_decay=0.2)


@pytest.fixture
def model():
    with seeded(3):
        return functional(MLP(2, (6,), 3))


@pytest.fixture
def tasks():
    with seeded(4):
        x, y = torch.randn(2, 9, 2), torch.arange(9).remainder(3).expand(2, 9)
        return make_task(make_batch(x, y), make_batch(torch.randn(2, 12, 2), torch.randint(3, (2, 12))))


def judged(model, theta, task, cfg):
    """The query loss after a plain loop of gradient steps from a head of zeros."""
    start = {name: torch.zeros_like(leaf) if name.startswith("head") else leaf for name, leaf in theta.items()}
    phi = {name: leaf.detach().requires_grad_() for name, leaf in start.items()}
    for _ in range(cfg.inner_steps):
        loss = F.cross_entropy(model.apply(phi, task.support.x), task.support.y.long())
        grads = torch.autograd.grad(loss, list(phi.values()))
        phi = {
            name: (leaf - cfg.inner_lr * grad).detach().requires_grad_()
            for (name, leaf), grad in zip(phi.items(), grads, strict=True)
        }
    return F.cross_entropy(model.apply(phi, task.query.x), task.query.y.long()).item()


def test_meta_gradient_is_that_of_finite_differences_and_none_for_the_head(model, tasks):
    learner = maml.build(model, multiclass, BLANK)
    state = learner.init(model.params)
    grad = learner.meta_grad(state, tasks, ())[0].grad
    for name, leaf in state.theta.items():
        found = torch.zeros_like(leaf)
        if not name.startswith("head"):
            for place in range(leaf.numel()):
                sides = []
                for sign in (1, -1):
                    moved = {n: v.clone() for n, v in state.theta.items()}
                    moved[name].view(-1)[place] += sign * 1e-5
                    sides.append(sum(judged(model, moved, take(tasks, i), BLANK) for i in range(2)))
                found.view(-1)[place] = (sides[0] - sides[1]) / 2e-5
        torch.testing.assert_close(grad[name], found, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("stage", [TRACED, LOOPED], ids=["traced", "looped"])
@pytest.mark.parametrize("more", [{}, {"recompute": True}, {"first_order": True}, {"inner": "momentum"}])
def test_every_way_to_run_it_is_the_same(model, tasks, stage, more):
    cfg = replace(BLANK, **more)
    wanted, found = (maml.build(model, multiclass, cfg, way) for way in (PLAIN, stage))
    state = wanted.init(model.params)
    for name, leaf in wanted.meta_grad(state, tasks, ())[0].grad.items():
        torch.testing.assert_close(found.meta_grad(state, tasks, ())[0].grad[name], leaf)


def test_head_stays_blank_and_the_rest_learns(model, tasks):
    learner = maml.build(model, multiclass, BLANK)
    state = learner.init(model.params)
    for _ in range(3):
        state = learner.update(state, learner.meta_grad(state, tasks, ())[0], torch.tensor(2.0))
    for name, leaf in state.theta.items():
        assert (leaf == 0).all() == name.startswith("head")
        assert name.startswith("head") or not torch.equal(leaf, model.params[name])


@pytest.mark.parametrize("blank", [True, False])
def test_classes_in_another_order_get_the_same_probabilities(model, tasks, blank):
    cfg = BLANK if blank else maml.Config(inner_lr=0.7, test_steps=4)
    learner = maml.build(model, multiclass, cfg)
    state, task, order = learner.init(model.params), take(tasks, 0), torch.tensor([2, 0, 1])

    def said(support):
        return learner.predict(state, adapt(learner, state, support, ()), task.query.x, ()).mean

    first = said(task.support)
    renamed = said(task.support._replace(y=order[task.support.y.long()].to(task.support.y)))
    assert torch.allclose(renamed[:, order], first, atol=1e-12) == blank


def test_a_pattern_that_names_nothing_is_refused(model):
    with pytest.raises(InputError, match="a fast parameter named like tail"):
        maml.build(model, multiclass, maml.Config(blank="tail.*"))
