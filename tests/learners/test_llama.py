"""LLAMA is MAML without the determinant, and exact where the model is linear and the noise normal."""

from dataclasses import asdict, replace

import pytest
import torch
from torch.testing import assert_close

from warmstart.core import InputError, adapt, functional, make_batch, make_task
from warmstart.core.trees import leaves, take, tree_map
from warmstart.engine.noise import adapt_noise, generator
from warmstart.learners import llama, maml
from warmstart.maths.gaussian import fit_of, log_normal, nothing, observe, posterior
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
TASKS = 3
LAPLACE = llama.Config(eta=0.37, prior_precision=2.3, noise=0.45, samples=6, inner_lr=0.08, inner_steps=3, test_steps=4)


def network(likelihood=squared, hidden=(3,), fast="*"):
    return functional(MLP(2, hidden, 3 if likelihood is multiclass else 1, activation="tanh"), fast)


def rows(likelihood, n):
    y = {squared: torch.randn(TASKS, n) + 0.7, binary: torch.randint(2, (TASKS, n)) * 1.0}
    y[multiclass] = torch.randint(3, (TASKS, n))
    mask = torch.ones(TASKS, n)
    mask[1, 0] = 0
    return make_batch(torch.randn(TASKS, n, 2), y[likelihood], w=torch.rand(TASKS, n) + 0.4, mask=mask)


def tasks(likelihood=squared, support=5):
    return make_task(rows(likelihood, support), rows(likelihood, 4))


@pytest.mark.parametrize("likelihood", [squared, binary, multiclass], ids=lambda likelihood: likelihood.name)
@pytest.mark.parametrize(
    ("settings", "fast"),
    [({}, "*"), ({"inner": "momentum"}, "head.*"), ({"first_order": True}, "*"), ({"inner": "adam"}, "body.*")],
)
def test_without_the_determinant_it_is_maml(likelihood, settings, fast):
    shared = {"inner_lr": 0.08, "inner_steps": 3, "test_steps": 4, "weight_decay": 0.1, **settings}
    model, given = network(likelihood, fast=fast), tasks(likelihood)
    plain = maml.build(model, likelihood, maml.Config(**shared))
    same = llama.build(model, likelihood, llama.Config(**shared, eta=0.0))
    state = plain.init(model.params)
    expected, found = plain.meta_grad(state, given, ()), same.meta_grad(same.init(model.params), given, ())
    assert_close(found, expected, rtol=1e-12, atol=1e-12)
    count = torch.tensor(3.0)
    assert_close(same.update(state, found[0], count), plain.update(state, expected[0], count))
    phi = adapt(same, state, take(given.support, 0), ()).phi
    assert_close(phi, adapt(plain, state, take(given.support, 0), ()), rtol=1e-12, atol=1e-12)


def test_their_configurations_share_names_and_defaults():
    theirs = asdict(maml.Config())
    assert theirs.pop("blank") == ""  # of MAML alone
    assert theirs.items() <= asdict(llama.Config()).items()


@pytest.mark.parametrize(
    ("likelihood", "settings", "fast"),
    [
        (squared, {}, "*"),
        (squared, {"curvature": "diagonal"}, "body.*"),
        (squared, {"objective": "evidence"}, "*"),
        (squared, {"objective": "evidence", "inner": "momentum"}, "head.*"),
        (binary, {"inner": "adam", "recompute": True}, "*"),
        (multiclass, {"inner": "momentum"}, "head.*"),
        (multiclass, {"objective": "evidence", "curvature": "diagonal"}, "*"),
    ],
)
def test_the_meta_gradient_matches_finite_differences(likelihood, settings, fast):
    model, given = network(likelihood, fast=fast), tasks(likelihood)
    learner = llama.build(model, likelihood, replace(LAPLACE, **settings))
    value = lambda params: learner.meta_grad(learner.init(params), given, ())[1].loss  # noqa: E731
    delta, _ = learner.meta_grad(learner.init(model.params), given, ())
    for name, leaf in model.params.items():
        slope = torch.zeros(leaf.numel())
        for i, e in enumerate(1e-5 * torch.eye(leaf.numel())):
            there, back = ({**model.params, name: leaf + sign * e.reshape(leaf.shape)} for sign in (1, -1))
            slope[i] = (value(there) - value(back)) / 2e-5
        assert_close(delta.grad[name], slope.reshape(leaf.shape), rtol=1e-6, atol=1e-7)


def test_first_order_drops_the_derivative_of_phi_alone():
    """At each task's own phi the objective is differentiated in full, the determinant too."""
    model, given = network(), tasks()
    cfg = replace(LAPLACE, first_order=True)
    learner = llama.build(model, squared, cfg)
    state = learner.init(model.params)
    delta, _ = learner.meta_grad(state, given, ())
    still = llama.build(model, squared, replace(cfg, inner_steps=0))
    expected = None
    for i in range(TASKS):
        own = take(given, slice(i, i + 1))
        phi = adapt(learner, state, take(own.support, 0), (), steps=cfg.inner_steps).phi
        part = still.meta_grad(still.init(phi), own, ())[0].grad
        expected = part if expected is None else tree_map(torch.add, expected, part)
    assert_close(delta.grad, expected)


@pytest.mark.parametrize("likelihood", [squared, binary], ids=lambda likelihood: likelihood.name)
def test_the_determinant_is_weighed_as_a_summed_negative_log_likelihood(likelihood):
    """(L + eta c log det) / c = -sum w log p(query) + eta log det H, up to constants."""
    model, given = network(likelihood, ()), take(tasks(likelihood), slice(0, 1))
    learner = llama.build(model, likelihood, LAPLACE)
    state = learner.init(model.params)
    _, info = learner.meta_grad(state, given, ())
    phi = adapt(learner, state, take(given.support, 0), (), steps=LAPLACE.inner_steps).phi
    g = torch.cat([given.support.x[0], torch.ones(5, 1)], 1)
    inner = likelihood.curvature(model.apply(phi, given.support.x[0])).reshape(-1)
    query, q = take(given.query, 0), model.apply(phi, given.query.x[0])
    total = (query.w * likelihood.loss(q, query.y)).sum()
    if likelihood is squared:
        inner, total = torch.full((5,), LAPLACE.noise**-2), total / (2 * LAPLACE.noise**2)
    h = LAPLACE.prior_precision * torch.eye(3) + (g.mT * given.support.w[0] * inner) @ g
    expected = total + LAPLACE.eta * torch.logdet(h / LAPLACE.prior_precision)
    c = (2 * LAPLACE.noise**2 if likelihood is squared else 1.0) / query.w.sum()
    assert_close(info.loss / c, expected)


CONVERGED = replace(LAPLACE, objective="evidence", inner_lr=0.2, inner_steps=250, test_steps=250)


def whitened(batch, theta):
    """The rows of a task as those of v ~ N(0, I), with phi = theta + v / sqrt(prior)."""
    g = torch.cat([batch.x, torch.ones(*batch.y.shape, 1)], -1)
    fitted = (g @ torch.cat([theta["head.weight"], theta["head.bias"][:, None]], 1).mT).squeeze(-1)
    return g / LAPLACE.prior_precision**0.5, (batch.y - fitted).unsqueeze(-1), batch.w * batch.mask


@pytest.mark.parametrize("support", [2, 9])
def test_the_evidence_of_a_linear_gaussian_model_is_exact(support):
    model, given = network(hidden=()), tasks(support=support)
    learner = llama.build(model, squared, CONVERGED)
    noise = torch.tensor(LAPLACE.noise**2)

    def exact(theta):
        return -log_normal(fit_of(*whitened(given.support, theta), noise)).sum()

    delta, info = learner.meta_grad(learner.init(model.params), given, ())
    assert_close(info.loss, exact(model.params))
    assert_close(delta.grad, torch.func.grad(exact)(model.params))


@pytest.mark.parametrize("support", [2, 9])
def test_draws_of_a_linear_gaussian_model_are_those_of_the_exact_posterior(support):
    model, given = network(hidden=()), take(tasks(support=support), 0)
    learner = llama.build(model, squared, replace(CONVERGED, samples=3))
    state = learner.init(model.params)
    adapted = adapt(learner, state, given.support, ())
    g, r, weight = whitened(given.support, model.params)
    found = posterior(observe(nothing(3, 1, r), g, r, weight, torch.tensor(LAPLACE.noise**2)))
    covariance = found.root.mT @ found.root / LAPLACE.prior_precision
    mean = found.mean[:, 0] / LAPLACE.prior_precision**0.5
    assert_close(adapted.phi["head.weight"][0], model.params["head.weight"][0] + mean[:2])
    assert_close(adapted.phi["head.bias"], model.params["head.bias"] + mean[2:])
    # with the unit vectors for noise the draws' second moment is the covariance
    noise = {"head.weight": torch.eye(3)[:, None, :2], "head.bias": torch.eye(3)[:, 2:]}
    said = learner.predict(state, adapted, given.query.x, noise)
    x = torch.cat([given.query.x, torch.ones(4, 1)], 1)
    centre = learner.predict(state, adapted, given.query.x, ()).mean
    apart = said.samples - centre
    assert_close(apart.mT @ apart, x @ covariance @ x.mT)
    assert_close(said.mean, said.samples.mean(0))
    assert_close(said.variance, said.samples.var(0, correction=0) + LAPLACE.noise**2)


def test_many_draws_have_the_variance_of_the_exact_prediction():
    model, given = network(hidden=()), tasks()
    learner = llama.build(model, squared, replace(CONVERGED, samples=20_000))
    state = learner.init(model.params)
    noise = take(adapt_noise(learner.noise, 1, 0, generator(3))[1], 0)
    one = take(given, 0)
    said = learner.predict(state, adapt(learner, state, one.support, ()), one.query.x, noise)
    g, r, weight = whitened(one.support, model.params)
    found = posterior(observe(nothing(3, 1, r), g, r, weight, torch.tensor(LAPLACE.noise**2)))
    x = torch.cat([one.query.x, torch.ones(4, 1)], 1)
    expected = ((x @ found.root.mT) ** 2).sum(-1) / LAPLACE.prior_precision + LAPLACE.noise**2
    assert_close(said.variance, expected, rtol=0.03, atol=0.0)


def test_rows_narrow_what_is_said_where_they_are_and_not_before_a_step():
    model = network(hidden=(6,))
    learner = llama.build(model, squared, replace(LAPLACE, prior_precision=30.0, noise=0.1, samples=300))
    state = learner.init(model.params)
    at = torch.tensor([[0.5, -1.0]])
    shown = make_batch(at.expand(8, 2), torch.full((8,), 0.3))
    noise = take(adapt_noise(learner.noise, 1, 0, generator(4))[1], 0)
    spread = [learner.predict(state, adapt(learner, state, shown, (), steps=k), at, noise).variance for k in (0, 4)]
    none = adapt(learner, state, take(shown, slice(0)), ())
    assert spread[1] < 0.5 * spread[0]
    assert_close(spread[0], learner.predict(state, none, at, noise).variance)


@pytest.mark.parametrize("inner", ["sgd", "momentum"])
def test_a_strong_prior_does_not_overshoot_with_one_row(inner):
    model, given = network(hidden=()), take(tasks(support=1), 0)
    cfg = replace(CONVERGED, prior_precision=5000.0, inner=inner)
    learner = llama.build(model, squared, cfg)
    state = learner.init(model.params)
    row = given.support._replace(y=torch.tensor([40.0]))
    phi = adapt(learner, state, row, (), steps=2000).phi
    x = torch.cat([row.x[0], torch.ones(1)])
    narrow = row.w[0] / cfg.noise**2 / cfg.prior_precision  # the mode, theta + x narrow r / (1 + narrow x'x)
    r = row.y[0] - model.apply(model.params, row.x)[0, 0]
    moved = x * narrow * r / (1 + narrow * x @ x)
    assert_close(phi["head.weight"][0] - model.params["head.weight"][0], moved[:2])


def test_an_exploded_task_is_said_and_does_not_stop_the_others():
    model = network()
    learner = llama.build(model, squared, LAPLACE)
    state = learner.init(model.params)
    broken = tree_map(lambda leaf: torch.full_like(leaf, torch.nan), state.theta)
    start = learner.start(state, ())
    bad = start._replace(inner=start.inner._replace(phi=broken), rows=torch.ones(()))
    adapted = learner.finish(state, bad, take(tasks().support, 0))
    assert all(torch.isfinite(leaf).all() for leaf in leaves(adapted.factor))
    assert learner.predict(state, adapted, torch.zeros(1, 2), ()).mean.isnan().all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prior_precision": 0.0}, "prior precision above 0"),
        ({"prior_precision": -2.0}, "prior precision above 0"),
        ({"noise": 0.0}, "noise above 0"),
        ({"eta": -0.1}, "eta of at least 0"),
        ({"samples": 0}, "at least one sample"),
        ({"rank": 0}, "at least one sample"),
        ({"curvature": "rotated"}, "full, diagonal or kronecker"),
        ({"objective": "elbo"}, "query or evidence"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        llama.build(network(), squared, replace(LAPLACE, **settings))
