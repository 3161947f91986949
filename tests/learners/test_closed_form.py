"""Meta-gradients of the gradient family against problems solved on paper.

Each task pulls a point w to its support mean s, and is judged by its distance to q, under a loss
with unequal curvatures: L(w; target) = sum_i a_i (w_i - target_i)^2.
"""

from dataclasses import replace

import pytest
import torch

from warmstart.core import InputError, Likelihood, Model, make_batch, make_task
from warmstart.engine.stage import COMPILED, PLAIN, TRACED
from warmstart.learners import imaml, maml, meta_sgd, pretrain, reptile

pytestmark = pytest.mark.usefixtures("float64")

CURVATURE = torch.tensor([0.5, 1.5], dtype=torch.float64)
THETA = torch.tensor([0.3, -0.7], dtype=torch.float64)
S = torch.tensor([[1.0, 2.0], [-0.5, 0.4], [2.0, -1.0]], dtype=torch.float64)
Q = torch.tensor([[0.2, 1.0], [-1.5, 0.3], [0.7, -2.0]], dtype=torch.float64)

# x is one-hot, so the row of coordinate i sees w_i; the row weight carries the curvature
point = Model(
    apply=lambda params, x: (x * params["w"]).sum(-1, keepdim=True),
    features=lambda params, x: x,
    params={"w": THETA},
    fast=frozenset({"w"}),
)
quadratic = Likelihood(
    "quadratic",
    lambda out, y: (out.squeeze(-1) - y) ** 2,
    lambda out: out.squeeze(-1),
    lambda out: torch.full_like(out, 2.0).unsqueeze(-1),
    lambda out, noise: out.squeeze(-1),
)


def tasks():
    eye = torch.eye(2).expand(3, 2, 2)
    rows = lambda y: make_batch(eye, y, w=CURVATURE.expand(3, 2))  # noqa: E731
    return make_task(rows(S), rows(Q))


A = CURVATURE / CURVATURE.sum()  # mean_loss divides by the sum of weights


def gradient(w, target):
    return 2 * A * (w - target)


def descend(w, target, lr, steps):
    for _ in range(steps):
        w = w - lr * gradient(w, target)
    return w


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_maml(stage, recompute, steps):
    learner = maml.build(point, quadratic, maml.Config(inner_lr=0.3, inner_steps=steps, recompute=recompute), stage)
    delta, info = learner.meta_grad(learner.init({"w": THETA}), tasks(), ())
    phi = descend(THETA, S, 0.3, steps)
    factor = (1 - 0.3 * 2 * A) ** steps
    torch.testing.assert_close(delta.grad["w"], (factor * gradient(phi, Q)).sum(0))
    torch.testing.assert_close(info.loss, (A * (phi - Q) ** 2).sum())


def test_first_order_maml():
    learner = maml.build(point, quadratic, maml.Config(inner_lr=0.3, inner_steps=2, first_order=True))
    delta, _ = learner.meta_grad(learner.init({"w": THETA}), tasks(), ())
    torch.testing.assert_close(delta.grad["w"], gradient(descend(THETA, S, 0.3, 2), Q).sum(0))


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
def test_meta_sgd(stage):
    learner = meta_sgd.build(point, quadratic, meta_sgd.Config(inner_lr=0.3, inner_steps=1), stage)
    rates = torch.tensor([0.2, 0.5], dtype=torch.float64)
    state = learner.init({"w": THETA})
    state = state._replace(theta={"params": {"w": THETA}, "rates": {"w": rates}})
    delta, _ = learner.meta_grad(state, tasks(), ())
    phi = THETA - rates * gradient(THETA, S)
    torch.testing.assert_close(delta.grad["params"]["w"], ((1 - 2 * rates * A) * gradient(phi, Q)).sum(0))
    torch.testing.assert_close(delta.grad["rates"]["w"], (-gradient(THETA, S) * gradient(phi, Q)).sum(0))


@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
def test_meta_sgd_with_relative_rates(stage):
    """alpha = inner_lr e^a: the gradient in a is that in alpha times alpha, and a = 0 is where it starts."""
    learner = meta_sgd.build(point, quadratic, meta_sgd.Config(inner_lr=0.3, relative=True), stage)
    state = learner.init({"w": THETA})
    assert (state.theta["rates"]["w"] == 0).all()
    logs = torch.tensor([-0.4, 0.5], dtype=torch.float64)
    state = state._replace(theta={"params": {"w": THETA}, "rates": {"w": logs}})
    delta, _ = learner.meta_grad(state, tasks(), ())
    rates = 0.3 * logs.exp()
    phi = THETA - rates * gradient(THETA, S)
    torch.testing.assert_close(delta.grad["params"]["w"], ((1 - 2 * rates * A) * gradient(phi, Q)).sum(0))
    torch.testing.assert_close(delta.grad["rates"]["w"], (-rates * gradient(THETA, S) * gradient(phi, Q)).sum(0))


def test_meta_sgd_has_no_multiples_of_nothing():
    with pytest.raises(InputError, match="a positive inner_lr with relative rates"):
        meta_sgd.build(point, quadratic, meta_sgd.Config(inner_lr=0.0, relative=True))


def test_meta_sgd_needs_a_step():
    with pytest.raises(InputError, match="at least one of inner_steps, got 0"):
        meta_sgd.build(point, quadratic, meta_sgd.Config(inner_steps=0))


def test_maml_without_a_step_is_the_gradient_of_the_query():
    learner = maml.build(point, quadratic, maml.Config(inner_steps=0))
    delta, _ = learner.meta_grad(learner.init({"w": THETA}), tasks(), ())
    torch.testing.assert_close(delta.grad["w"], gradient(THETA, Q).sum(0))


def test_reptile():
    learner = reptile.build(point, quadratic, reptile.Config(inner="sgd", inner_lr=0.3, inner_steps=4, outer_lr=0.7))
    state = learner.init({"w": THETA})
    delta, _ = learner.meta_grad(state, tasks(), ())
    phi = descend(THETA, (S + Q) / 2, 0.3, 4)  # support and query rows together pull to their middle
    torch.testing.assert_close(delta.grad["w"], (THETA - phi).sum(0))
    new = learner.update(state, delta, torch.tensor(3.0))
    torch.testing.assert_close(new.theta["w"], THETA - 0.7 * (THETA - phi).mean(0))


def test_reptile_by_minibatches():
    cfg = reptile.Config(inner="sgd", inner_lr=0.3, inner_steps=2, minibatches=True)
    learner = reptile.build(point, quadratic, cfg)
    delta, _ = learner.meta_grad(learner.init({"w": THETA}), tasks(), ())
    phi = THETA - 0.3 * 2 * (THETA - (S + Q) / 2)  # the rows of coordinate 0 first, then those of coordinate 1
    torch.testing.assert_close(delta.grad["w"], (THETA - phi).sum(0))


def test_reptile_rate_falls_to_zero():
    learner = reptile.build(point, quadratic, reptile.Config(outer_lr=0.8, outer_decay=4))
    state = learner.init({"w": THETA})._replace(done=torch.tensor(3.0))
    delta = maml.Delta({"w": torch.tensor([3.0, -6.0])})
    torch.testing.assert_close(
        learner.update(state, delta, torch.tensor(3.0)).theta["w"], THETA - 0.8 * 0.25 * torch.tensor([1.0, -2.0])
    )


def test_imaml():
    """Two coordinates have two eigenvalues, so two conjugate-gradient steps solve exactly."""
    prox, damping = 0.8, 0.1
    cfg = imaml.Config(inner_lr=0.2, inner_steps=400, prox=prox, solve_steps=2, damping=damping)
    learner = imaml.build(point, quadratic, cfg)
    delta, _ = learner.meta_grad(learner.init({"w": THETA}), tasks(), ())
    phi = (2 * A * S + prox * THETA) / (2 * A + prox)
    expected = gradient(phi, Q) / (1 + (2 * A + damping) / prox)
    torch.testing.assert_close(delta.grad["w"], expected.sum(0), rtol=1e-6, atol=1e-8)
    plain = imaml.build(point, quadratic, imaml.Config(inner_lr=0.2, inner_steps=400, prox=prox, solve_steps=0))
    delta, _ = plain.meta_grad(plain.init({"w": THETA}), tasks(), ())
    torch.testing.assert_close(delta.grad["w"], gradient(phi, Q).sum(0), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("curvature", ["hessian", "gauss_newton"])
@pytest.mark.parametrize("stage", [PLAIN, TRACED], ids=["plain", "traced"])
def test_imaml_by_newton(stage, curvature):
    """One step of as many conjugate-gradient steps as there are eigenvalues ends in the minimum."""
    prox, damping = 0.8, 0.1
    cfg = imaml.Config(inner_lr=1.0, inner_steps=1, inner="newton", inner_solve=2, prox=prox, solve_steps=2)
    learner = imaml.build(point, quadratic, replace(cfg, damping=damping, curvature=curvature), stage)
    delta, _ = learner.meta_grad(learner.init({"w": THETA}), tasks(), ())
    phi = (2 * A * S + prox * THETA) / (2 * A + prox)
    torch.testing.assert_close(delta.grad["w"], (gradient(phi, Q) / (1 + (2 * A + damping) / prox)).sum(0))
    with pytest.raises(InputError, match="hessian or gauss_newton"):
        imaml.build(point, quadratic, replace(cfg, curvature="fisher"))


def test_imaml_with_halvings():
    """At a rate far beyond what descent bears, steps that must fall still find the minimum."""
    far = {"inner_lr": 6.0, "inner_steps": 400, "prox": 0.8, "solve_steps": 0}
    learner = imaml.build(point, quadratic, imaml.Config(**far, halvings=6))
    delta, _ = learner.meta_grad(learner.init({"w": THETA}), tasks(), ())
    phi = (2 * A * S + 0.8 * THETA) / (2 * A + 0.8)
    torch.testing.assert_close(delta.grad["w"], gradient(phi, Q).sum(0), rtol=1e-4, atol=1e-6)
    unchecked = imaml.build(point, quadratic, imaml.Config(**far))
    assert not unchecked.meta_grad(unchecked.init({"w": THETA}), tasks(), ())[0].grad["w"].isfinite().all()


def test_pretrain():
    learner = pretrain.build(point, quadratic)
    delta, _ = learner.meta_grad(learner.init({"w": THETA}), tasks(), ())
    torch.testing.assert_close(delta.grad["w"], gradient(THETA, (S + Q) / 2).sum(0))


@pytest.mark.parametrize("inner", ["sgd", "momentum", "adam"])
def test_compiled_maml_agrees(inner):
    cfg = maml.Config(inner_lr=0.3, inner_steps=3, inner=inner)
    plain, fast = (maml.build(point, quadratic, cfg, stage) for stage in (PLAIN, COMPILED))
    expected, _ = plain.meta_grad(plain.init({"w": THETA}), tasks(), ())
    found, _ = fast.meta_grad(fast.init({"w": THETA}), tasks(), ())
    torch.testing.assert_close(found.grad["w"], expected.grad["w"])
