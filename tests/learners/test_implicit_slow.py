"""iMAML with slow parameters: they move the minimum that a task is adapted to, and the implicit gradient knows it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from warmstart.core import InputError, functional, make_batch, make_task
from warmstart.core.learner import adapt
from warmstart.core.trees import take
from warmstart.engine.stage import LOOPED, PLAIN, TRACED
from warmstart.learners import imaml
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import MLP, seeded

pytestmark = pytest.mark.usefixtures("float64")

SOLVED = imaml.Config(
    inner="newton",
    inner_lr=1.0,
    inner_steps=12,
    inner_solve=25,
    solve_steps=25,
    prox=0.3,
    damping=0.0,
    weight_decay=0.2,
)


@pytest.fixture
def model():
    with seeded(3):
        return functional(MLP(2, (6,), 3), fast="head.*")


@pytest.fixture
def tasks():
    with seeded(4):
        x, y = torch.randn(2, 7, 2), torch.arange(7).remainder(3).expand(2, 7)
        support = make_batch(x, y, w=torch.rand(2, 7) + 0.5)
        return make_task(support, make_batch(torch.randn(2, 12, 2), torch.randint(3, (2, 12))))


def judged(model, theta, task, prox, head_prox=None):
    """The query loss at the minimum of the inner problem, found by torch's own quasi-Newton method."""
    slow = {name: leaf for name, leaf in theta.items() if name not in model.fast}
    anchor = {name: leaf for name, leaf in theta.items() if name in model.fast}
    pull = {name: head_prox if head_prox and name.startswith("head") else prox for name in anchor}
    phi = {name: leaf.clone().requires_grad_() for name, leaf in anchor.items()}
    search = torch.optim.LBFGS(phi.values(), max_iter=500, tolerance_grad=1e-12, tolerance_change=0, history_size=50)
    share = task.support.w / task.support.w.sum()

    def height():
        search.zero_grad()
        rows = F.cross_entropy(model.apply({**slow, **phi}, task.support.x), task.support.y.long(), reduction="none")
        away = sum(pull[name] * ((phi[name] - anchor[name]) ** 2).sum() for name in phi)
        total = (share * rows).sum() + 0.5 * away
        total.backward()
        return total

    search.step(height)
    found = {name: leaf.detach() for name, leaf in phi.items()}
    return F.cross_entropy(model.apply({**slow, **found}, task.query.x), task.query.y.long()).item()


def test_meta_gradient_is_that_of_finite_differences_of_the_minimum(model, tasks):
    """With either curvature, which are one for a head."""
    wanted = {name: slopes(model, model.params, name, tasks, SOLVED.prox) for name in model.params}
    for curvature in ("hessian", "gauss_newton"):
        learner = imaml.build(model, multiclass, replace(SOLVED, curvature=curvature))
        grad = learner.meta_grad(learner.init(model.params), tasks, ())[0].grad
        assert set(grad) == set(model.params)
        for name, leaf in grad.items():
            torch.testing.assert_close(leaf, wanted[name], rtol=1e-4, atol=1e-6)


def slopes(model, theta, name, tasks, *pulls):
    """Finite differences of the query losses at the minima, in one leaf of theta."""
    found = torch.zeros_like(theta[name])
    for place in range(found.numel()):
        sides = []
        for sign in (1, -1):
            moved = {n: v.clone() for n, v in theta.items()}
            moved[name].view(-1)[place] += sign * 1e-4
            sides.append(sum(judged(model, moved, take(tasks, i), *pulls) for i in range(2)))
        found.view(-1)[place] = (sides[0] - sides[1]) / 2e-4
    return found


def test_a_whole_network_with_a_blank_head_has_pulls_of_two_strengths(tasks):
    """The body is tied to theta, the head to zero and more loosely; a Hessian, since the body bends the loss."""
    with seeded(3):
        model = functional(MLP(2, (3,), 3, activation="tanh"))
    cfg = replace(SOLVED, prox=2.0, blank="head.*", blank_prox=0.2)
    learner = imaml.build(model, multiclass, cfg)
    state = learner.init(model.params)
    grad = learner.meta_grad(state, tasks, ())[0].grad
    for name, leaf in grad.items():
        if name.startswith("head"):
            assert (leaf == 0).all() and (state.theta[name] == 0).all()
        else:
            wanted = slopes(model, state.theta, name, tasks, cfg.prox, cfg.blank_prox)
            torch.testing.assert_close(leaf, wanted, rtol=1e-3, atol=1e-6)
    same = imaml.build(model, multiclass, replace(cfg, blank_prox=0.0))
    other = same.meta_grad(state, tasks, ())[0].grad
    assert (other["body.0.weight"] - grad["body.0.weight"]).norm() > 0.05 * grad["body.0.weight"].norm()


def test_without_the_minimums_motion_the_gradient_is_another(model, tasks):
    """What the test above would miss if slow parameters had the plain gradient at phi."""
    whole, plain = (imaml.build(model, multiclass, replace(SOLVED, solve_steps=steps)) for steps in (25, 0))
    state = whole.init(model.params)
    ours, bare = (learner.meta_grad(state, tasks, ())[0].grad for learner in (whole, plain))
    for name in model.params:
        assert (ours[name] - bare[name]).norm() > 0.1 * bare[name].norm()


@pytest.mark.parametrize("stage", [TRACED, LOOPED], ids=["traced", "looped"])
@pytest.mark.parametrize("more", [{}, {"inner": "momentum", "inner_lr": 0.1}, {"halvings": 2}, {"solve_steps": 0}])
def test_every_way_to_run_it_is_the_same(model, tasks, stage, more):
    cfg = replace(SOLVED, **{"inner_steps": 2, "inner_solve": 3, "solve_steps": 3, **more})
    wanted, found = (imaml.build(model, multiclass, cfg, way) for way in (PLAIN, stage))
    state = wanted.init(model.params)
    ours, theirs = (learner.meta_grad(state, tasks, ())[0].grad for learner in (wanted, found))
    for name, leaf in ours.items():
        torch.testing.assert_close(theirs[name], leaf)


def slope_left(model, task, scale, cfg):
    """Of the inner objective where the learner ends, beside that of a head of zeros, for features `scale` as long."""
    theta = {name: leaf * (scale if name.startswith("body") else 1.0) for name, leaf in model.params.items()}
    learner = imaml.build(model, multiclass, cfg)
    phi = adapt(learner, learner.init(theta), task.support, ())
    features = model.features({name: leaf for name, leaf in theta.items() if name.startswith("body")}, task.support.x)
    share = task.support.w / task.support.w.sum()
    anchor = {name: theta[name] * (not cfg.blank) for name in phi}

    def slope(phi):
        head = {name: leaf.clone().requires_grad_() for name, leaf in phi.items()}
        out = features @ head["head.weight"].mT + head["head.bias"]
        rows = F.cross_entropy(out, task.support.y.long(), reduction="none")
        away = sum(((leaf - anchor[name]) ** 2).sum() for name, leaf in head.items())
        total = (share * rows).sum() + 0.5 * cfg.prox * away
        return torch.cat([part.flatten() for part in torch.autograd.grad(total, list(head.values()))]).norm()

    return float(slope(phi) / slope({name: torch.zeros_like(leaf) for name, leaf in phi.items()}))


@pytest.mark.parametrize(("scale", "most"), [(0.3, 1e-6), (3.0, 1e-3), (30.0, 0.02)])
def test_a_blank_head_is_solved(model, tasks, scale, most):
    assert slope_left(model, take(tasks, 0), scale, imaml.HEAD) < most


WIDE = 48  # features


def uneven(count, way, shot, long):
    """Tasks whose rows are features already; two of them are long in every row, and tell no classes apart."""
    with seeded(6):
        drawn = (torch.randn(count, way, 1, WIDE) + 0.7 * torch.randn(count, way, shot, WIDE)).relu()
        drawn[..., :2] += long * torch.rand(count, way, shot, 2)
    rows, label = drawn.flatten(1, 2), torch.arange(way).repeat_interleave(shot).expand(count, -1)
    return make_task(make_batch(rows, label), make_batch(rows, label))


def test_long_features_are_no_obstacle():
    """Conjugate gradient knows them from the rows; where a network does not say what its head is, it does not."""
    with seeded(3):
        model = functional(MLP(WIDE, (), 20), fast="head.*")
    tasks = uneven(3, 20, 5, long=50.0)
    for i in range(3):
        known, unknown = (
            slope_left(each, take(tasks, i), 1.0, imaml.HEAD) for each in (model, model._replace(top=None))
        )
        assert known < 0.005 and unknown > 0.01


def test_heads_that_features_do_not_fit_are_adapted_without_them(tasks):
    """A layer kept the other way round, and one behind features that are made wider."""

    class Turned(MLP):
        def __init__(self):
            super().__init__(2, (6,), 3)
            self.head = torch.nn.Module()
            self.head.weight, self.head.bias = torch.nn.Parameter(torch.randn(6, 3)), torch.nn.Parameter(torch.zeros(3))

        def top(self, features):
            return features @ self.head.weight + self.head.bias

    class Wider(MLP):
        def __init__(self):
            super().__init__(2, (6,), 3)
            self.head = torch.nn.Linear(12, 3)

        def top(self, features):
            return self.head(torch.cat([features, features**2], -1))

    for kind in (Turned, Wider):
        with seeded(3):
            model = functional(kind(), fast="head.*")
        found = [imaml.build(each, multiclass, SOLVED) for each in (model, model._replace(top=None))]
        grads = [learner.meta_grad(learner.init(model.params), tasks, ())[0].grad for learner in found]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("damping", [0.1, 2.0])
def test_damping_is_known_to_the_preconditioner(damping):
    """So few products are as good as many."""
    with seeded(3):
        model = functional(MLP(WIDE, (6,), 5), fast="head.*")
    tasks = uneven(2, 5, 3, long=0.0)
    cfg = replace(imaml.HEAD, damping=damping, inner_steps=12)
    few, many = (imaml.build(model, multiclass, replace(cfg, solve_steps=steps)) for steps in (4, 60))
    ours, exact = (learner.meta_grad(learner.init(model.params), tasks, ())[0].grad for learner in (few, many))
    gap = sum(((ours[name] - exact[name]) ** 2).sum() for name in exact).sqrt()
    assert gap < 0.01 * sum((leaf**2).sum() for leaf in exact.values()).sqrt()


@pytest.mark.parametrize("bad", [{"prox": 0.0}, {"blank": "head.*", "blank_prox": -1.0}, {"blank_prox": 0.1}])
def test_pulls_that_make_no_sense_are_refused(model, bad):
    with pytest.raises(InputError, match="a positive prox"):
        imaml.build(model, multiclass, imaml.Config(**bad))


def test_the_order_of_parameters_does_not_matter(model, tasks):
    turned = dict(reversed(model.params.items()))
    one, other = (
        imaml.build(model, multiclass, imaml.HEAD),
        imaml.build(model._replace(params=turned), multiclass, imaml.HEAD),
    )
    wanted, found = (
        each.meta_grad(each.init(p), tasks, ())[0].grad for each, p in ((one, model.params), (other, turned))
    )
    for name, leaf in wanted.items():
        torch.testing.assert_close(found[name], leaf)


def test_a_head_that_starts_sure_and_wrong_is_not_solved(model, tasks):
    """Why the head is blank: Newton's steps are refused where a softmax is saturated."""
    wrong = model._replace(
        params={name: leaf * (9.0 if "head" in name else 1.0) for name, leaf in model.params.items()}
    )
    assert slope_left(wrong, take(tasks, 0), 30.0, replace(imaml.HEAD, blank="")) > 0.3
    assert slope_left(wrong, take(tasks, 0), 30.0, imaml.HEAD) < 0.02


def test_a_blank_head_stays_blank_and_takes_classes_in_any_order(model, tasks):
    learner = imaml.build(model, multiclass, imaml.HEAD)
    state, task, order = learner.init(model.params), take(tasks, 0), torch.tensor([2, 0, 1])
    state = learner.update(state, learner.meta_grad(state, tasks, ())[0], torch.tensor(2.0))
    for name, leaf in state.theta.items():
        assert (leaf == 0).all() == name.startswith("head")

    def said(support):
        return learner.predict(state, adapt(learner, state, support, ()), task.query.x, ()).mean

    renamed = said(task.support._replace(y=order[task.support.y.long()].to(task.support.y)))
    torch.testing.assert_close(renamed[:, order], said(task.support))


def test_a_pattern_that_names_nothing_is_refused(model):
    with pytest.raises(InputError, match="a fast parameter named like body"):
        imaml.build(model, multiclass, imaml.Config(blank="body.*"))


def test_the_network_runs_once_for_all_inner_steps(tasks):
    """And what comes out is what a model that does not say what its head is gives."""
    calls = []

    class Counted(MLP):
        def features(self, x):
            calls.append(len(x))
            return super().features(x)

    with seeded(3):
        model = functional(Counted(2, (6,), 3), fast="head.*")
    one, other = (imaml.build(each, multiclass, SOLVED) for each in (model, model._replace(top=None)))
    state = one.init(model.params)
    counts = []
    found = []
    for learner in (one, other):
        calls.clear()
        found.append(learner.meta_grad(state, tasks, ())[0].grad)
        counts.append(len(calls))
    assert counts[0] == 2 and counts[1] > SOLVED.inner_steps  # support and query; each step and product
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("fast", ["head.weight", "head.bias", "body.*"])
def test_parts_of_a_network_are_adapted_as_such(tasks, fast):
    """Only a whole head is taken for one: what is slow of it is learned and used."""
    with seeded(3):
        model = functional(MLP(2, (6,), 3), fast=fast)
    learners = [imaml.build(each, multiclass, SOLVED) for each in (model, model._replace(top=None))]
    moved = {name: leaf + 0.1 for name, leaf in model.params.items()}
    found = [learner.meta_grad(learner.init(moved), tasks, ())[0].grad for learner in learners]
    torch.testing.assert_close(*found)
    assert all(leaf.abs().max() > 1e-6 for leaf in found[0].values())


def test_a_network_with_another_forward_has_no_top():
    class Squashed(MLP):
        def forward(self, x):
            return super().forward(torch.tanh(x))

    assert functional(MLP(2, (6,), 3)).top is not None and functional(Squashed(2, (6,), 3)).top is None


def test_tasks_without_query_rows_teach_nothing(model, tasks):
    learner = imaml.build(model, multiclass, imaml.HEAD)
    bare = tasks._replace(query=take(tasks.query, (slice(None), slice(0, 0))))
    delta, info = learner.meta_grad(learner.init(model.params), bare, ())
    assert float(info.loss) == 0 and all((leaf == 0).all() for leaf in delta.grad.values())
