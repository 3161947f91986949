"""Curvature against exact Hessians where the two agree, and against a plain loop over rows where they do not."""

import math

import pytest
import torch
from torch.testing import assert_close

from warmstart.core import InputError, functional, make_batch, task_log_likelihood
from warmstart.core.trees import leaves, tree_map
from warmstart.maths.curvature import gauss_newton_product, gauss_newton_root
from warmstart.maths.laplace import precision
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
PRIOR, NOISE = 1.7, 0.6
LIKELIHOODS = {"squared": squared, "binary": binary, "multiclass": multiclass}
likelihoods = pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=list(LIKELIHOODS))
few_and_many = pytest.mark.parametrize("rows", [3, 25])  # fewer and more lines than parameters


def network(likelihood, hidden=(), fast="*"):
    return functional(MLP(2, hidden, 3 if likelihood is multiclass else 1, activation="tanh"), fast)


def batch(likelihood, rows):
    """Rows of unequal weight; the second is padding."""
    y = {squared: torch.randn(rows) + 1, binary: torch.arange(rows) % 2.0, multiclass: torch.arange(rows) % 3}
    mask = torch.ones(rows)
    mask[1] = 0
    return make_batch(torch.randn(rows, 2), y[likelihood], w=torch.rand(rows) + 0.4, mask=mask)


def vector(params):
    return torch.cat([leaf.reshape(-1) for leaf in leaves(params)])


def params_of(model, flat):
    pieces = flat.split([leaf.numel() for leaf in model.params.values()])
    return {n: piece.reshape(p.shape) for (n, p), piece in zip(model.params.items(), pieces, strict=True)}


def hessian(model, likelihood, rows):
    """Of the negative log posterior with the prior's precision."""
    fit = task_log_likelihood(model, likelihood, NOISE)
    value = lambda flat: 0.5 * PRIOR * flat @ flat - fit(params_of(model, flat), rows)  # noqa: E731
    return torch.func.hessian(value)(vector(model.params))


def covariance(form, params, kept):
    """Of the draws, exactly: each unit vector in turn is the noise."""
    d = vector(params).numel()
    noise = torch.eye(d).split([leaf.numel() for leaf in params.values()], 1)
    units = {n: e.reshape(d, *p.shape) for (n, p), e in zip(params.items(), noise, strict=True)}
    drawn = form.draw(params, form.factor(kept), units)
    lines = torch.cat([leaf.reshape(d, -1) for leaf in leaves(drawn)], 1) - vector(params)
    return lines.mT @ lines


@likelihoods
@few_and_many
def test_a_linear_model_has_the_exact_hessian_its_log_det_and_its_inverse(likelihood, rows):
    model, shown = network(likelihood), batch(likelihood, rows)
    exact = hessian(model, likelihood, shown)
    root = gauss_newton_root(model, likelihood, NOISE)({}, model.params, shown)
    assert_close(PRIOR * torch.eye(len(exact)) + root.mT @ root, exact)
    form = precision("full", model, likelihood, PRIOR, NOISE)
    kept = form.of({}, model.params, shown)
    assert_close(form.log_det(kept) + len(exact) * math.log(PRIOR), torch.logdet(exact))
    assert_close(covariance(form, model.params, kept), torch.linalg.inv(exact))


@likelihoods
@few_and_many
def test_a_network_has_the_sum_of_a_loop_over_rows(likelihood, rows):
    model, shown = network(likelihood, (3,)), batch(likelihood, rows)
    d, expected = vector(model.params).numel(), 0.0
    for i in range(rows):
        x = shown.x[i : i + 1]
        params = tree_map(lambda leaf: leaf.clone().requires_grad_(), model.params)
        out = model.apply(params, x)
        lines = [vector(dict(zip(params, torch.autograd.grad(o, leaves(params), retain_graph=True), strict=True)))
                 for o in out[0]]  # fmt: skip
        inner = likelihood.curvature(out.detach())[0] / (2 * NOISE**2 if likelihood is squared else 1)
        jacobian = torch.stack(lines)
        expected = expected + shown.w[i] * shown.mask[i] * jacobian.mT @ inner @ jacobian
    root = gauss_newton_root(model, likelihood, NOISE)({}, model.params, shown)
    assert_close(root.mT @ root, expected)
    whole = PRIOR * torch.eye(d) + expected
    full, diagonal = (precision(kind, model, likelihood, PRIOR, NOISE) for kind in ("full", "diagonal"))
    kept = full.of({}, model.params, shown)
    assert_close(full.log_det(kept), torch.logdet(whole / PRIOR))
    assert_close(covariance(full, model.params, kept), torch.linalg.inv(whole))
    kept = diagonal.of({}, model.params, shown)
    assert_close(PRIOR * kept, whole.diagonal())
    assert_close(diagonal.log_det(kept), torch.log(whole.diagonal() / PRIOR).sum())
    assert_close(covariance(diagonal, model.params, kept), torch.diag(1 / whole.diagonal()))


def test_a_network_that_fits_every_row_has_the_exact_hessian():
    model, shown = network(squared, (4,)), batch(squared, 6)
    shown = shown._replace(y=model.apply(model.params, shown.x).squeeze(-1))
    root = gauss_newton_root(model, squared, NOISE)({}, model.params, shown)
    assert_close(PRIOR * torch.eye(root.shape[1]) + root.mT @ root, hessian(model, squared, shown))


def test_slow_parameters_have_no_curvature_but_count_in_it():
    model, shown = network(squared, (4,), "head.*"), batch(squared, 6)
    fast, slow = model.split(model.params)
    root = gauss_newton_root(model, squared, NOISE)(slow, fast, shown)
    seen = torch.cat([model.features(model.params, shown.x), torch.ones(6, 1)], 1)
    assert_close(root.mT @ root, (seen.mT * shown.w * shown.mask / NOISE**2) @ seen)


@likelihoods
@pytest.mark.parametrize("kind", ["full", "diagonal", "kronecker"])
@few_and_many
def test_the_gradient_of_log_det_matches_finite_differences(likelihood, kind, rows):
    model, shown = network(likelihood, (3,)), batch(likelihood, rows)
    form = precision(kind, model, likelihood, PRIOR, NOISE)
    value = lambda flat: form.log_det(form.of({}, params_of(model, flat), shown))  # noqa: E731
    at = vector(model.params)
    step = 1e-5 * torch.eye(len(at))
    expected = torch.stack([(value(at + e) - value(at - e)) / 2e-5 for e in step])
    assert_close(torch.func.grad(value)(at), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("likelihood", [binary, multiclass])
def test_certain_classes_have_a_finite_gradient_in_single_precision(likelihood):
    torch.set_default_dtype(torch.float32)
    model, shown = network(likelihood), batch(likelihood, 4)
    sure = tree_map(lambda leaf: 200 * leaf + 50 * torch.arange(len(leaf)).reshape(-1, *[1] * (leaf.dim() - 1)),
                    model.params)  # fmt: skip
    assert likelihood.curvature(model.apply(sure, shown.x)).abs().amin() == 0
    form = precision("full", model, likelihood, PRIOR)
    slope = torch.func.grad(lambda phi: form.log_det(form.of({}, phi, shown)))(sure)
    assert all(torch.isfinite(leaf).all() for leaf in leaves(slope))


@pytest.mark.parametrize("kind", ["full", "diagonal", "kronecker"])
@pytest.mark.parametrize("rows", ["absent", "masked"])
def test_without_rows_it_is_the_prior(kind, rows):
    model, shown = network(squared, (3,)), batch(squared, 4)
    none = tree_map(lambda leaf: leaf[:0], shown) if rows == "absent" else shown._replace(mask=torch.zeros(4))
    form = precision(kind, model, squared, PRIOR, NOISE)
    kept = form.of({}, model.params, none)
    assert form.log_det(kept) == 0
    d = vector(model.params).numel()
    assert_close(covariance(form, model.params, kept), torch.eye(d) / PRIOR)


def test_draws_of_low_rank_know_the_strongest_directions_and_are_of_one_size():
    model, shown = network(squared, (3,)), batch(squared, 8)
    form = precision("full", model, squared, PRIOR, NOISE, rank=2)
    c = form.of({}, model.params, shown)
    values, vectors = torch.linalg.eigh(c.mT @ c)
    values[:-2] = 0
    expected = vectors @ torch.diag(1 / (PRIOR * (1 + values))) @ vectors.mT
    assert_close(covariance(form, model.params, c), expected)
    shapes = [[leaf.shape for leaf in form.factor(c[:n])] for n in (1, 2, 8)]
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize("kind", ["full", "diagonal", "kronecker"])
def test_a_stack_is_each_task_alone(kind):
    model = network(multiclass, (3,))
    shown = [batch(multiclass, 4) for _ in range(3)]
    form = precision(kind, model, multiclass, PRIOR)
    one = lambda rows: form.log_det(form.of({}, model.params, rows))  # noqa: E731
    together = torch.func.vmap(one)(tree_map(lambda *parts: torch.stack(parts), *shown))
    assert_close(together, torch.stack([one(rows) for rows in shown]))


@pytest.mark.parametrize("prior", [0.0, -1.0, float("nan"), float("inf")])
def test_a_prior_without_precision_is_refused(prior):
    with pytest.raises(InputError, match="prior precision above 0"):
        precision("full", network(squared), squared, prior)


def test_an_unknown_form_is_refused():
    with pytest.raises(InputError, match="full, diagonal or kronecker"):
        precision("rotated", network(squared), squared, 1.0)


@likelihoods
def test_products_are_those_of_the_matrix(likelihood):
    """Divided by the weights, since the loss is their mean."""
    torch.manual_seed(0)
    model, rows = network(likelihood, (5,)), batch(likelihood, 6)
    root = gauss_newton_root(model, likelihood)({}, model.params, rows)
    v = torch.randn(vector(model.params).numel())
    said = vector(gauss_newton_product(model, likelihood)({}, model.params, rows, params_of(model, v)))
    assert_close(said, root.mT @ (root @ v) / (rows.w * rows.mask).sum())
