"""Gaussian processes against GPyTorch, against dense formulas, and PIC against the exact process."""

import math

import gpytorch
import pytest
import torch
from torch.testing import assert_close

from warmstart.maths import gp

pytestmark = pytest.mark.usefixtures("float64")
HYPER = gp.Hyper(torch.tensor([0.7, 1.9]).double(), torch.tensor(1.7).double(), torch.tensor(0.03).double())


def problem(n=23, new=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x, at = torch.randn(n, 2, generator=draw), torch.randn(new, 2, generator=draw)
    y = torch.stack([torch.sin(2 * x[:, 0]) + x[:, 1], x[:, 0] * x[:, 1] - 0.3], 1)
    return x, y, at


def dense_pic(x, y, at, rows, inducing, home):
    """Mean, variance and evidence by the n x n matrices themselves."""
    n = len(x)

    def q(a, b):
        middle = gp.kernel(HYPER, inducing, inducing) + gp.JITTER * HYPER.signal * torch.eye(len(inducing))
        return gp.kernel(HYPER, a, inducing) @ torch.linalg.solve(middle, gp.kernel(HYPER, inducing, b))

    block = torch.empty(n, dtype=torch.long)
    for b, line in enumerate(rows):
        block[line[line >= 0]] = b
    same = (block[:, None] == block[None]).double()
    cov = torch.lerp(q(x, x), gp.kernel(HYPER, x, x), same) + (HYPER.noise + gp.JITTER * HYPER.signal) * torch.eye(n)
    c = torch.lerp(q(at, x), gp.kernel(HYPER, at, x), (home[:, None] == block[None]).double())
    weights = torch.linalg.solve(cov, c.T).T
    evidence = sum(
        torch.distributions.MultivariateNormal(torch.zeros(n), cov).log_prob(column).item() for column in y.T
    )
    return weights @ y, HYPER.signal - (weights * c).sum(1), evidence, weights, cov


def test_the_exact_process_agrees_with_gpytorch():
    x, y, at = problem()

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(x, y[:, 0], likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))

        def forward(self, inputs):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))

    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-9))
    model = Exact(likelihood)
    model.covar_module.base_kernel.lengthscale = HYPER.length
    model.covar_module.outputscale = HYPER.signal
    likelihood.noise = HYPER.noise
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    told = evidence(model.train()(x), y[:, 0]) * len(x)
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        found = model.eval()(at)
        belief = gp.condition(HYPER, x, y[:, :1])
        mean, variance = gp.predict(belief, at)
        assert_close(mean[:, 0], found.mean, rtol=1e-5, atol=1e-6)
        assert_close(variance, found.variance, rtol=1e-4, atol=1e-6)
        assert belief.evidence.item() == pytest.approx(told.item(), rel=1e-6)


def test_pic_is_the_dense_formula_with_ragged_blocks():
    x, y, at = problem()
    rows = gp.make_blocks(x, 6)
    inducing = x[gp.spread_out(x, 4)]
    assert (rows == -1).any()
    belief = gp.condition(HYPER, x, y, rows, inducing)
    home = gp._look(belief, at)[0]
    mean, variance, evidence, weights, cov = dense_pic(x, y, at, rows, inducing, home)
    found = gp.predict(belief, at)
    assert_close(found[0], mean)
    assert_close(found[1], variance)
    assert belief.evidence.item() == pytest.approx(evidence)
    assert_close(gp.relevance(belief, at), weights)
    inverse = torch.linalg.inv(cov)
    left_out, spread = gp.leave_one_out(belief)
    assert_close(left_out, y - inverse @ y / inverse.diagonal()[:, None])
    assert_close(spread, 1 / inverse.diagonal())


@pytest.mark.parametrize("way", ["one block", "inducing inputs at all rows"])
def test_pic_is_exact_where_it_should_be(way):
    x, y, at = problem()
    rows, inducing = (None, x[:4]) if way == "one block" else (gp.make_blocks(x, 5), x)
    near, exact = gp.condition(HYPER, x, y, rows, inducing), gp.condition(HYPER, x, y)
    for ours, theirs in zip(gp.predict(near, at), gp.predict(exact, at), strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert near.evidence.item() == pytest.approx(exact.evidence.item(), rel=1e-5)


def test_leaving_a_row_out_is_conditioning_on_the_others():
    x, y, _ = problem()
    mean, variance = gp.leave_one_out(gp.condition(HYPER, x, y))
    others = torch.arange(len(x)) != 7
    told, spread = gp.predict(gp.condition(HYPER, x[others], y[others]), x[7:8])
    assert_close(mean[7], told[0], rtol=1e-6, atol=1e-7)
    assert_close(variance[7], spread[0] + HYPER.noise, rtol=1e-6, atol=1e-7)


def test_far_away_a_process_knows_nothing():
    x, y, _ = problem()
    mean, variance = gp.predict(gp.condition(HYPER, x, y, gp.make_blocks(x, 6), x[:3]), torch.full((1, 2), 50.0))
    assert_close(mean, torch.zeros(1, 2))
    assert_close(variance, HYPER.signal[None])


def test_learning_finds_the_kernel_that_drew_the_rows():
    draw = torch.Generator().manual_seed(3)
    x = torch.rand(90, 2, generator=draw) * 4
    chol = torch.linalg.cholesky(gp.kernel(HYPER, x, x) + HYPER.noise * torch.eye(90))
    y = chol @ torch.randn(90, 30, generator=draw)
    hyper, _ = gp.learn(x, y)
    for ours, true in zip(hyper, HYPER, strict=True):
        assert_close(ours.log(), true.log(), rtol=0, atol=0.12)


def test_inducing_inputs_are_learned_by_the_evidence():
    x, y, _ = problem(40)
    rows, start = gp.make_blocks(x, 8), x[:3] + 2.0
    hyper, moved = gp.learn(x, y, rows, start, iterations=25)
    assert gp.condition(hyper, x, y, rows, moved).evidence > gp.condition(hyper, x, y, rows, start).evidence + 1


def test_many_rows_are_put_in_blocks_and_still_predicted():
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(300, 1, generator=draw) * 6
    belief = gp.fit(x, torch.sin(2 * x), block=64, inducing=12)
    assert belief.rows.shape == (8, 38) and sorted(belief.rows[belief.rows >= 0].tolist()) == list(range(300))
    at = torch.linspace(0.2, 5.8, 50)[:, None]
    mean, variance = gp.predict(belief, at)
    assert (mean - torch.sin(2 * at)).abs().max() < 1e-2 and math.isfinite(float(variance.sum()))
