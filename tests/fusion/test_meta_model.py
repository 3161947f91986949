"""The paper's meta-model: its bound against closed forms, orders that change no function, and what fitting reaches."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from warmstart.core import InputError
from warmstart.core.trees import unpack
from warmstart.fusion import bound, meta_model
from warmstart.fusion.alignment import permute, symmetries
from warmstart.fusion.network import run_models
from warmstart.maths import gp
from warmstart.models.mlp import MLP

SMALL = meta_model.Config(
    base=5, specific=6, gps=3, inducing=7, warp=16, crossing=(24, 16), samples=4, epochs=40, tasks=10, lr=1e-2, every=10
)


def theta_of(cfg=SMALL, size=9, columns=2, seed=0):
    descriptor = torch.randn(20, columns, generator=torch.Generator().manual_seed(seed))
    return meta_model.init(cfg, descriptor, size), descriptor


def test_processes_are_sparse_processes_with_their_inducing_outputs_summed_out():
    theta, at = theta_of()
    mean, variance = meta_model.process(theta, at[:4])
    for k in range(SMALL.gps):
        hyper = gp.Hyper(theta["log_length"][k].double().exp(), torch.tensor(1.0).double(), torch.tensor(0.0).double())
        z = theta["inducing"][k].double()
        square = gp.kernel(hyper, z, z) + 1e-5 * torch.eye(len(z)).double()
        reach = torch.linalg.solve(square, gp.kernel(hyper, z, at[:4].double())).mT
        chol = torch.linalg.cholesky(square)
        told = chol @ theta["outputs_mean"][k].double()
        cov = chol @ torch.diag(theta["outputs_log_sd"][k].double().exp().square()) @ chol.mT
        assert_close(mean[k].double(), reach @ told, rtol=1e-4, atol=1e-4)
        want = 1 - (reach @ square * reach).sum(1) + (reach @ cov * reach).sum(1)
        assert_close(variance[k].double(), want.clamp(min=1e-9), rtol=1e-3, atol=1e-5)


def test_the_bound_is_its_likelihood_less_its_divergence():
    theta, at = theta_of()
    draw = torch.Generator().manual_seed(1)
    noise, gamma = meta_model.draws(SMALL, 4, draw), torch.randn(4, 9, generator=draw)
    mean, variance = meta_model.sample(theta, at[:4], None, noise)
    likelihood = torch.distributions.Normal(mean, variance.sqrt()).log_prob(gamma).sum(-1).mean(0).sum() * 5
    found = meta_model.evidence_bound(theta, gamma, at[:4], None, noise, 20)
    assert_close(found, likelihood - meta_model.divergence(theta, noise))


def test_the_divergence_is_that_of_normals():
    theta, _ = theta_of()
    noise = meta_model.draws(SMALL, 1, torch.Generator().manual_seed(2))
    theta |= {name: torch.zeros_like(theta[name]) for name in ("prior_mean", "prior_var")}  # mean 0, variance log 2
    own = torch.distributions.Normal(theta["base_mean"], theta["base_log_sd"].exp())
    prior = torch.distributions.Normal(torch.zeros(5), torch.full((5,), math.sqrt(math.log(2) + 1e-3)))
    outputs = torch.distributions.Normal(theta["outputs_mean"], theta["outputs_log_sd"].exp())
    unit = torch.distributions.Normal(torch.zeros(3, 7), torch.ones(3, 7))
    kl = torch.distributions.kl_divergence
    assert_close(meta_model.divergence(theta, noise), kl(own, prior).sum() + kl(outputs, unit).sum())


def test_an_order_of_the_latent_coordinates_is_found_again():
    """Weights made with shuffled coordinates; columns that do not overlap make the assignment exact."""
    theta, at = theta_of(size=16 * 3)
    columns = torch.zeros(17, 48)
    for u in range(16):
        columns[u, 3 * u : 3 * u + 3] = 1.0 + 0.1 * u
    theta["mean"] = columns
    draw = torch.Generator().manual_seed(3)
    order = torch.stack([torch.randperm(16, generator=draw) for _ in range(20)])
    g = meta_model.process(theta, at)[0].mT
    gamma, _ = meta_model.cross(theta, theta["base_mean"], g, order)
    found = meta_model._latent_order(theta, gamma, at)
    assert_close(meta_model.cross(theta, theta["base_mean"], g, found)[0], gamma)


def test_units_are_assigned_by_the_density_of_the_normals(pool, network):
    """Against all orders of three units, by the log density itself."""
    draw = torch.Generator().manual_seed(5)
    shapes = {"body.0.bias": (3,), "body.0.weight": (3, 1), "head.bias": (1,), "head.weight": (1, 3)}
    gamma, mean = ({name: torch.randn(4, *shape, generator=draw) for name, shape in shapes.items()} for _ in range(2))
    variance = {name: 0.2 + torch.rand(4, *shape, generator=draw) for name, shape in shapes.items()}
    (hidden,) = symmetries(MLP(1, (3,), 1))
    found = meta_model._assign_units(gamma, (hidden,), mean, variance)

    def density(stack):
        parts = [torch.distributions.Normal(mean[k], variance[k].sqrt()).log_prob(stack[k]).flatten(1) for k in shapes]
        return torch.cat(parts, 1).sum(1)

    orders = [torch.tensor(order).expand(4, -1) for order in itertools.permutations(range(3))]
    best = torch.stack([density(permute(gamma, hidden, order)) for order in orders]).amax(0)
    assert_close(density(found), best)


def error(network, models, pool):
    return float((run_models(network, models, pool.inputs) - pool.outputs).square().mean().sqrt())


@pytest.fixture(scope="module")
def fitted(network, pool):
    log = []
    return meta_model.fit(network, SMALL, pool, log), log


def test_alignment_is_what_makes_weights_predictable(network, pool, fitted):
    state, log = fitted
    aligned = error(network, meta_model.zero_shot(state, pool.descriptor)[0], pool)
    loose = {
        kind: error(
            network,
            meta_model.zero_shot(meta_model.fit(network, replace(SMALL, alignment=kind), pool), pool.descriptor)[0],
            pool,
        )
        for kind in ("latent", "none")
    }
    assert aligned < 0.3 * min(loose.values()) and log[-1].bound > log[0].bound


def test_the_aligned_weights_are_the_pools_functions(network, pool, fitted):
    state, _ = fitted
    models = unpack(state.centre + state.scale * state.gamma, state.one)
    assert_close(run_models(network, models, pool.inputs), pool.outputs, rtol=1e-3, atol=1e-3)


def test_steps_in_function_space_lower_the_error_of_functions(network, pool, fitted):
    state, _ = fitted
    worse = state._replace(theta={**state.theta, "mean": state.theta["mean"] * 0.3})
    again = meta_model.refit(network, replace(SMALL, refit=120), pool, worse)
    before, after = (error(network, meta_model.zero_shot(each, pool.descriptor)[0], pool) for each in (worse, again))
    assert after < 0.6 * before


def test_variances_have_the_form_of_the_weights(pool, fitted):
    models, variances = meta_model.zero_shot(fitted[0], pool.descriptor[:3])
    assert all(variances[name].shape == value.shape and (variances[name] > 0).all() for name, value in models.items())


def test_an_unknown_alignment_is_refused(network, pool):
    with pytest.raises(InputError, match="units, latent, none"):
        meta_model.fit(network, replace(SMALL, alignment="all"), pool)


def test_the_best_base_is_the_one_of_lemma_one():
    draw = torch.Generator().manual_seed(0)
    log_prior = torch.log_softmax(torch.randn(12, generator=draw).double(), 0)
    told = -3 * torch.rand(12, generator=draw).double()
    best, log_z = bound.optimal_base(log_prior, told)

    def elbo(log_q):
        return (log_q.exp() * (told + log_prior - log_q)).sum()

    assert_close(elbo(best), log_z)
    for _ in range(20):
        other = torch.log_softmax(best + 0.3 * torch.randn(12, generator=draw).double(), 0)
        assert elbo(other) < log_z


def test_the_bounded_loss_is_a_metric_and_squared_error_is_none():
    a, b, c = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)) * 3
    loss = bound.bounded_loss
    assert (loss(a, c, 2.0) <= loss(a, b, 2.0) + loss(b, c, 2.0) + 1e-6).all() and loss(a, b, 2.0).max() == 1
    assert ((a - c) ** 2 > (a - b) ** 2 + (b - c) ** 2).any()


def test_the_bound_holds_where_everything_is_known():
    """Two models, q and pi over them: the gap of the expected loss is below the bound, term by term."""
    draw = torch.Generator().manual_seed(0)
    oracle, other = 0.05 * torch.rand(4000, generator=draw), 0.3 + 0.4 * torch.rand(4000, generator=draw)
    q, pi = torch.tensor([0.7, 0.3]), torch.tensor([0.4, 0.6])
    divergence = float((q * (q / pi).log()).sum())
    rows = torch.randperm(4000, generator=draw)[:200]
    drawn = torch.stack([oracle[rows]] * 4 + [other[rows]] * 6)  # as often as pi draws each
    terms = bound.bound(divergence, oracle, drawn, r=1.2)
    gap = float(q[0] * oracle.mean() + q[1] * other.mean() - oracle.mean())
    assert gap <= terms.total == pytest.approx(sum(terms[:-1]))
    assert terms.data == pytest.approx(float(drawn.double().exp().mean().log()))
    assert terms.oracle == pytest.approx(float(oracle.mean()) / 1.2)


def test_the_data_term_does_not_vanish_with_many_rows():
    """The paper's Corollary 1 says that it does; it is the logarithm of a mean of numbers of at least 1."""
    losses = 0.2 * torch.ones(3, 100_000)
    assert bound.data_term(losses).item() == pytest.approx(0.2, rel=1e-4)


def test_r_must_be_above_one():
    with pytest.raises(InputError, match="r above 1"):
        bound.bound(0.0, torch.zeros(3), torch.zeros(2, 3), 1.0)


def test_fine_tuning_by_h_fits_the_rows(network, pool, fitted):
    state, _ = fitted
    x = torch.tensor([[-2.0], [0.0], [1.5]])
    y = run_models(network, meta_model.zero_shot(state, pool.descriptor[9:10])[0], x)[0].float() + 0.5
    tuned = bound.fine_tune(network, SMALL, pool, state, pool.descriptor[9], x, y, steps=40, lr=3e-3, weight=0.0)
    before, after = (
        float((run_models(network, meta_model.zero_shot(each, pool.descriptor[9:10])[0], x)[0] - y).abs().mean())
        for each in (state, tuned)
    )
    held = bound.fine_tune(network, SMALL, pool, state, pool.descriptor[9], x, y, steps=40, lr=3e-3, weight=1.0)
    stiff = float((run_models(network, meta_model.zero_shot(held, pool.descriptor[9:10])[0], x)[0] - y).abs().mean())
    assert after < 0.7 * before and after < stiff


def test_lengths_start_about_the_one_asked_for(pool):
    one, long = (meta_model.init(meta_model.Config(gps=3, length=k), pool.descriptor, 5) for k in (1.0, 4.2))
    assert_close(long["log_length"].exp(), 4.2 * one["log_length"].exp())
    far = pool.descriptor[[0, -1]].float()
    apart, near = (meta_model.process(theta, far)[1].mean() for theta in (one, long))
    assert near < apart  # longer kernels know more of tasks away from inducing inputs
