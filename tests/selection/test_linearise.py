"""Linearised estimates: exact for a model that is linear, close to real trainings for one that is not."""

import pytest
import torch
from torch.func import jacrev

from warmstart.core.trees import pack, take
from warmstart.selection import linearise
from warmstart.selection.measures import cross_entropy
from warmstart.selection.subsets import indicators, sample_subsets
from warmstart.selection.training import LIKELIHOODS, Config, form, network, outputs, shares, train_models

CFG = Config(hidden=(8,), steps=150, batch=64, balance=0.0)


def base(transfer):
    """One model trained on all tasks."""
    return take(train_models(transfer, shares(transfer, torch.ones(1, transfer.sources), 0.0), CFG), 0)


@pytest.mark.parametrize("at_once", [4, 500])
def test_features_are_projections_of_gradients(make_planted, monkeypatch, at_once):
    """Rows and directions in several parts, of which the last is not full."""
    monkeypatch.setattr(linearise, "ROWS", at_once)
    transfer = make_planted(classes=3)
    model = network(transfer, Config(hidden=(4,)), 0)
    x = {name: value[:6] for name, value in transfer.validation.x.items()}
    basis = torch.linalg.qr(torch.randn(sum(p.numel() for p in model.params.values()), 5)).Q.T
    features_of = linearise._programs(form(transfer, Config(hidden=(4,)))).features
    out, features = features_of(model.params, x, basis, 2)
    jacobian = jacrev(lambda phi: model.apply(phi, x))(model.params)
    for row in range(6):
        for output in range(3):
            gradient = pack({name: part[row, output] for name, part in jacobian.items()})
            torch.testing.assert_close(features[row, output], (basis @ gradient).double(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(out, model.apply(model.params, x))


def test_a_step_is_the_newton_step_in_the_span(make_planted):
    """Against the minimum of the same quadratic, found from autograd's Hessian of the linearised loss."""
    transfer = make_planted()
    cfg = linearise.Config(rows=50, few=30, penalty=0.2)
    line = linearise.linearise(transfer, base(transfer), CFG, cfg)
    share = shares(transfer, torch.tensor([[1.0, 0, 0, 1, 0, 0]]), 0.0)
    weight = (share / share.sum()).double()[0]
    curvature = torch.einsum("t,tij->ij", weight, line.curvature)
    ridge = 0.2 * line.curvature.diagonal(dim1=1, dim2=2).mean() * torch.eye(7).double()
    w = torch.linalg.solve(curvature + ridge, weight @ line.slope)
    said = line.base + line.features @ w
    expected = cross_entropy(said[None], transfer.validation)
    torch.testing.assert_close(linearise.estimate(transfer, line, share, cross_entropy, cfg), expected)
    assert (torch.linalg.eigvalsh(line.curvature) > -1e-10).all()


def drawn(transfer, seed, count):
    """Rows of each task in an order of its own, no row twice."""
    draw, pool = linearise.generator(seed, 17), transfer.pool
    orders = [torch.randperm(n, generator=draw)[:count] for n in pool.lengths.tolist()]
    return [offset + order for offset, order in zip(pool.offsets.tolist(), orders, strict=False)]


@pytest.mark.parametrize("rows", [80, 10**6])
def test_slopes_are_those_of_the_losses(make_planted, rows):
    """b_t = -P^T grad L_t: the component of a task's own gradient in its own direction is the gradient's length."""
    transfer = make_planted()
    phi = base(transfer)
    line = linearise.linearise(transfer, phi, CFG, linearise.Config(rows=rows, at_once=33, few=40))
    model, likelihood = network(transfer, CFG, 0), LIKELIHOODS["binary"]
    first, after = transfer.pool.offsets[2:4].tolist()
    index = drawn(transfer, 0, rows)[2] if rows < after - first else torch.arange(first, after)
    x = {name: value[index] for name, value in transfer.pool.x.items()}

    def loss(phi):
        return likelihood.loss(model.apply(phi, x), transfer.pool.y[index]).mean()

    torch.testing.assert_close(
        line.slope[2].norm(), pack(torch.func.grad(loss)(phi)).norm().double(), rtol=1e-3, atol=1e-6
    )


def test_estimates_rank_subsets_as_trainings_do(make_planted):
    transfer = make_planted(helpful=6, harmful=4)
    members = indicators(sample_subsets(10, 3, 40), 10)
    share = shares(transfer, members, 0.0)
    phi = train_models(transfer, share, CFG)
    real = cross_entropy(outputs(transfer, CFG, phi, transfer.validation.x), transfer.validation)
    each = linearise.estimates(transfer, share, cross_entropy, CFG, linearise.Config(bases=3, rows=200))
    found = linearise.compare(each.mean(0).float(), real)
    assert found.spearman > 0.85 and found.n == 40
    assert each.shape == (3, 40)
    # every base model has a seed of its own, which it has alone too
    alone = linearise.estimates(transfer, share, cross_entropy, CFG, linearise.Config(bases=1, rows=200), seed=1)
    torch.testing.assert_close(each[1], alone[0], rtol=1e-4, atol=1e-5)
    assert float((each[0] - each[1]).abs().min()) > 1e-4


def test_curvature_is_that_of_few_rows_and_slopes_are_of_all(make_planted):
    """By the Jacobian of all parameters, row by row; seen from the slopes, which know no basis."""
    transfer, cfg = make_planted(), Config(hidden=(3,), steps=40, batch=64, balance=0.0)
    phi = take(train_models(transfer, shares(transfer, torch.ones(1, 6), 0.0), cfg), 0)
    line = linearise.linearise(transfer, phi, cfg, linearise.Config(rows=90, few=25), seed=3)
    model = network(transfer, cfg, 3)
    index = drawn(transfer, 3, 90)

    def gradients(t, count):
        """[rows, params] of the logit, and what the loss makes of it."""
        chosen = index[t][:count]
        x = {name: value[chosen] for name, value in transfer.pool.x.items()}
        x["head"] = torch.full_like(chosen, t)
        rows = jacrev(lambda phi: model.apply(phi, x)[:, 0])(phi)
        g = torch.stack([pack({name: part[i] for name, part in rows.items()}) for i in range(len(chosen))]).double()
        p = torch.sigmoid(model.apply(phi, x)[:, 0]).double()
        return g, p, transfer.pool.y[chosen].double()

    slopes = torch.stack([((p - y)[:, None] * g).mean(0) for g, p, y in (gradients(t, 90) for t in range(7))])
    basis = torch.linalg.qr(slopes.T).Q
    g, p, _ = gradients(2, 25)
    second = (g @ basis).T @ ((p * (1 - p))[:, None] * (g @ basis)) / 25
    # bases differ by signs and by what is rounded away, products with the slopes by neither
    mine, theirs = -(slopes @ basis), line.slope
    torch.testing.assert_close(theirs @ theirs.T, mine @ mine.T, rtol=1e-3, atol=1e-7)
    kept = theirs @ line.curvature[2] @ theirs.T
    torch.testing.assert_close(kept, mine @ second @ mine.T, rtol=1e-3, atol=1e-8)
