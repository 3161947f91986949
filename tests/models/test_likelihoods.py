import math

import pytest
import torch
import torch.nn.functional as F
from torch.func import hessian, vmap

from warmstart.models.likelihoods import binary, multiclass, squared, weighed_binary

ROWS = 6
CASES = {
    "squared": (squared, 1, torch.randn(ROWS, generator=torch.Generator().manual_seed(1)).double()),
    "binary": (binary, 1, torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]).double()),
    "multiclass": (multiclass, 4, torch.tensor([3, 0, 1, 2, 0, 3])),
}
parametrise = pytest.mark.parametrize(("likelihood", "width", "y"), CASES.values(), ids=CASES)


def outputs(width, size=2.0):
    return size * torch.randn(ROWS, width, dtype=torch.float64)


def test_losses_are_those_of_torch():
    out, y = outputs(1), CASES["squared"][2]
    torch.testing.assert_close(squared.loss(out, y), F.mse_loss(out[:, 0], y, reduction="none"))
    y = CASES["binary"][2]
    expected = F.binary_cross_entropy_with_logits(out[:, 0], y, reduction="none")
    torch.testing.assert_close(binary.loss(out, y), expected)
    out, y = outputs(4), CASES["multiclass"][2]
    torch.testing.assert_close(multiclass.loss(out, y), F.cross_entropy(out, y, reduction="none"))
    torch.testing.assert_close(multiclass.loss(out, y.double()), F.cross_entropy(out, y, reduction="none"))


@parametrise
def test_curvature_is_the_hessian_of_a_rows_loss(likelihood, width, y):
    out = outputs(width)
    rows = [hessian(lambda o, i=i: likelihood.loss(o[None], y[i : i + 1])[0])(out[i]) for i in range(ROWS)]
    torch.testing.assert_close(likelihood.curvature(out), torch.stack(rows))


@parametrise
def test_far_outputs_stay_finite(likelihood, width, y):
    out = outputs(width, 500.0).requires_grad_()
    likelihood.loss(out, y).sum().backward()
    assert out.grad.isfinite().all() and likelihood.loss(out, y).isfinite().all()
    assert likelihood.mean(out).isfinite().all() and likelihood.curvature(out).isfinite().all()


@parametrise
def test_under_vmap_as_row_by_row(likelihood, width, y):
    out = outputs(width)
    split = lambda leaf: leaf.reshape(3, 2, *leaf.shape[1:])  # noqa: E731
    torch.testing.assert_close(vmap(likelihood.loss)(split(out), split(y)), split(likelihood.loss(out, y)))
    torch.testing.assert_close(vmap(likelihood.mean)(split(out)), split(likelihood.mean(out)))


def test_samples_have_the_mean_and_variance_of_the_model():
    draws = 40_000
    noise = torch.randn(draws, 1, dtype=torch.float64)
    out = torch.full((draws, 1), 0.7, dtype=torch.float64)
    found = squared.sample(out, noise)
    assert found.shape == (draws,)
    assert abs(found.mean() - 0.7) < 0.015 and abs(found.var() - 0.5) < 0.015  # exp(-(y - f)^2) has variance 1/2
    found = binary.sample(out, noise)
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert abs(found.mean() - torch.sigmoid(torch.tensor(0.7))) < 0.01
    logits = torch.tensor([0.3, -1.0, 1.2], dtype=torch.float64)
    found = multiclass.sample(logits.expand(draws, 3), torch.randn(draws, 3, dtype=torch.float64))
    shares = torch.bincount(found, minlength=3) / draws
    torch.testing.assert_close(shares.double(), torch.softmax(logits, -1), rtol=0, atol=0.01)


def test_means_are_probabilities():
    out = outputs(4)
    torch.testing.assert_close(multiclass.mean(out).sum(-1), torch.ones(ROWS).double())
    assert multiclass.mean(out).argmax(-1).equal(out.argmax(-1))
    torch.testing.assert_close(binary.mean(torch.zeros(2, 1)), torch.full((2,), 0.5))


def test_weights_of_classes_stand_beside_the_loss_and_move_the_logit():
    out, y = torch.tensor([[-1.2], [0.3], [2.0]]).double(), torch.tensor([0.0, 1.0, 1.0]).double()
    weighed = weighed_binary(0.1, 0.9)
    torch.testing.assert_close(weighed.loss(out, y), 2 * torch.tensor([0.1, 0.9, 0.9]) * binary.loss(out, y))
    assert weighed_binary(0.5, 0.5) is binary
    # the best logit of a rate of .3 is that rate's own and log 9
    rate, best = 0.3, torch.tensor([[math.log(0.3 / 0.7 * 9)]], dtype=torch.float64)

    def expected(logit):
        one, none = (weighed.loss(logit, label) for label in torch.tensor([[1.0], [0.0]]).double())
        return (rate * one + (1 - rate) * none).sum()

    torch.testing.assert_close(torch.func.grad(expected)(best), torch.zeros(1, 1).double(), atol=1e-12, rtol=0)
    # the curvature is that of labels as often one as the model says
    p = torch.sigmoid(out[:, 0])

    def own(logit, p):
        one, none = (weighed.loss(logit[None, None], label) for label in (torch.ones(1), torch.zeros(1)))
        return (p * one + (1 - p) * none).sum()

    second = torch.stack([torch.func.hessian(own)(z, q) for z, q in zip(out[:, 0], p, strict=True)])
    torch.testing.assert_close(weighed.curvature(out)[:, 0, 0], second)
