"""GEM with a mixture as prior: one component is GEM, exact posteriors give the exact gradient, and shares are known."""

from dataclasses import replace

import pytest
import torch
from torch.distributions import MultivariateNormal

from warmstart.core import InputError, Prediction, adapt, functional, make_batch, make_task
from warmstart.core.trees import leaves, take, tree_map, unpack
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import adapt_noise, generator, train_noise
from warmstart.engine.stage import TRACED
from warmstart.learners import gem, gem_mixture
from warmstart.learners.gem_mixture import Config, mixed
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
COMPONENTS, COLD = 2, {"anneal": 0}


def close(found, expected, tolerance=1e-12):
    for left, right in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("joint", [False, True], ids=["sequential", "joint"])
@pytest.mark.parametrize("plus", [False, True], ids=["marginal", "plus"])
def test_one_component_is_gem(by_hand, plus, joint):
    model, tasks = functional(MLP(2, (3,), 1, activation="tanh")), by_hand.uneven()
    shared = {"inner_lr": 0.02, "inner_steps": 3, "samples": 2, "predictions": 3, "kl_weight": 0.7, "sd": 0.2}
    shared |= {"plus": plus, "joint": joint, "noise": 0.6}
    one = gem_mixture.build(model, squared, Config(components=1, **shared))
    plain = gem.build(model, squared, gem.Config(**shared))
    assert one.noise == plain.noise
    state, expected = one.init(model.params), plain.init(model.params)
    for k in range(3):
        noise = train_noise(plain.noise, len(tasks.key), generator(k))
        (delta, info), (grad, told) = (
            each.meta_grad(at, tasks, noise) for each, at in ((one, state), (plain, expected))
        )
        close(
            (delta.grad["mean"][0], delta.grad["log_sd"][0], info.loss),
            (grad.grad["mean"], grad.grad["log_sd"], told.loss),
        )
        assert not delta.grad["logits"].any()
        state, expected = one.update(state, delta, torch.tensor(4.0)), plain.update(expected, grad, torch.tensor(4.0))
    noise = adapt_noise(plain.noise, len(tasks.key), plain.steps, generator(9))
    close(predict_stack(one, state, tasks, noise), predict_stack(plain, expected, tasks, noise), 1e-10)


def linear_mixture(by_hand):
    """Two Gaussians over the weights of y = w x, neither like the other; inputs along the axes."""
    model, theta, tasks = by_hand.linear()
    mixture = {
        "mean": torch.stack([theta["mean"], torch.tensor([-0.2, 0.3, 0.9])]),
        "log_sd": torch.stack([theta["log_sd"], torch.tensor([0.1, -0.5, -0.2])]),
        "logits": torch.tensor([0.4, -0.3]),
    }
    return model, mixture, tasks


def log_evidence(theta, batch, noise):
    """[t, k]: log pi_k + log N(y; x m_k, x S_k x' + noise)."""

    def one(x, y, k):
        covariance = (x * torch.exp(2 * theta["log_sd"][k])) @ x.T + noise**2 * torch.eye(len(x))
        return MultivariateNormal(x @ theta["mean"][k], covariance).log_prob(y)

    each = [[one(x, y, k) for k in range(COMPONENTS)] for x, y in zip(batch.x, batch.y, strict=True)]
    return torch.stack([torch.stack(line) for line in each]) + torch.log_softmax(theta["logits"], -1)


@pytest.mark.parametrize("joint", [False, True], ids=["sequential", "joint"])
@pytest.mark.parametrize("plus", [False, True], ids=["marginal", "plus"])
def test_inference_that_converges_gives_the_gradient_of_the_mixture_s_likelihood(by_hand, plus, joint):
    model, theta, tasks = linear_mixture(by_hand)
    cfg = Config(
        components=COMPONENTS, plus=plus, joint=joint, natural=False, noise=by_hand.NOISE, inner_lr=0.04,
        inner_steps=300, samples=6, **COLD,
    )  # fmt: skip
    learner = gem_mixture.build(model, squared, cfg, TRACED)
    noise = {part: by_hand.exact_draws(len(tasks.key), cfg.inner_steps) for part in ("support", "query")}
    delta, _ = learner.meta_grad(learner.init(model.params)._replace(theta=theta), tasks, noise)

    def objective(theta):
        total = log_evidence(theta, by_hand.both(tasks), by_hand.NOISE).logsumexp(-1).sum()
        return total - plus * log_evidence(theta, tasks.support, by_hand.NOISE).logsumexp(-1).sum()

    slope = torch.func.grad(objective)(theta)
    for name, g in slope.items():
        assert g.abs().max() > 1e-3
        torch.testing.assert_close(-delta.grad[name], g, rtol=1e-7, atol=1e-8)


def test_a_task_s_shares_are_its_responsibilities_and_heat_evens_them(by_hand):
    model, theta, tasks = linear_mixture(by_hand)
    cfg = Config(components=COMPONENTS, noise=by_hand.NOISE, inner_lr=0.04, inner_steps=300, samples=6, **COLD)
    learner = gem_mixture.build(model, squared, cfg, TRACED)
    state = learner.init(model.params)._replace(theta=theta)
    evidence = log_evidence(theta, tasks.support, by_hand.NOISE)
    for i in range(len(tasks.key)):
        task = take(tasks, i)
        found = adapt(learner, state, task.support, (), by_hand.exact_draws(300), 300)
        torch.testing.assert_close(found.share, torch.softmax(evidence[i], -1), rtol=1e-7, atol=1e-8)
    assert 0.02 < torch.softmax(evidence, -1).amin() < 0.98
    # half way through the annealing the bounds count a tenth
    hot = gem_mixture.build(model, squared, replace(cfg, temperature=100.0, anneal=8, plus=False), TRACED)
    there = state._replace(opt=state.opt._replace(done=torch.tensor(4.0)))
    noise = {part: by_hand.exact_draws(len(tasks.key), 300) for part in ("support", "query")}
    delta, _ = hot.meta_grad(there, tasks, noise)
    bounds = log_evidence(theta, by_hand.both(tasks), by_hand.NOISE) + theta["logits"].logsumexp(-1)
    expected = (torch.softmax(bounds / 10, -1) - torch.softmax(theta["logits"], -1)).sum(0)
    torch.testing.assert_close(-delta.grad["logits"], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("plus", [False, True], ids=["marginal", "plus"])
def test_gauss_newton_steps_give_the_exact_gradient_of_any_linear_model(by_hand, plus):
    """Inputs are correlated: evidences come from whole covariances, moments are the marginal ones."""
    model, theta, _ = linear_mixture(by_hand)
    tasks = make_task(
        make_batch(torch.randn(4, 5, 3) + 0.5, torch.randn(4, 5) + 0.7),
        make_batch(torch.randn(4, 2, 3), torch.randn(4, 2) - 0.4),
    )
    shared = {"inner": "newton", "joint": True, "inner_steps": 1, "noise": by_hand.NOISE}
    learner = gem_mixture.build(
        model, squared, Config(components=COMPONENTS, plus=plus, natural=False, **shared, **COLD)
    )
    state = learner.init(model.params)._replace(theta=theta)
    delta, _ = learner.meta_grad(state, tasks, train_noise(learner.noise, 4, generator(0)))

    def objective(theta):
        total = log_evidence(theta, by_hand.both(tasks), by_hand.NOISE).logsumexp(-1).sum()
        return total - plus * log_evidence(theta, tasks.support, by_hand.NOISE).logsumexp(-1).sum()

    for name, slope in torch.func.grad(objective)(theta).items():
        assert slope.abs().max() > 1e-3
        torch.testing.assert_close(-delta.grad[name], slope, rtol=1e-8, atol=1e-9)
    # and the mixture of the components' exact predictions
    said = predict_stack(learner, state, tasks, steps=1)
    share = torch.softmax(log_evidence(theta, tasks.support, by_hand.NOISE), -1)
    for i in range(4):
        x, new = tasks.support.x[i], tasks.query.x[i]
        means, spreads = [], []
        for k in range(COMPONENTS):
            covariance = torch.linalg.inv(torch.diag(torch.exp(-2 * theta["log_sd"][k])) + x.T @ x / by_hand.NOISE**2)
            pull = torch.exp(-2 * theta["log_sd"][k]) * theta["mean"][k] + x.T @ tasks.support.y[i] / by_hand.NOISE**2
            means.append(new @ covariance @ pull)
            spreads.append((new @ covariance * new).sum(-1) + by_hand.NOISE**2)
        mean = share[i] @ torch.stack(means)
        torch.testing.assert_close(said.mean[i], mean)
        second = share[i] @ (torch.stack(spreads) + torch.stack(means) ** 2)
        torch.testing.assert_close(said.variance[i], second - mean**2)


def test_a_mixture_s_draws_are_of_each_component_as_its_share_says():
    each = Prediction(
        torch.tensor([[1.0], [5.0], [-3.0]]),
        torch.tensor([[0.2], [0.1], [0.4]]),
        torch.arange(30.0).reshape(3, 10, 1),
    )
    said = mixed(each, torch.tensor([0.61, 0.0, 0.39]))
    assert said.samples.squeeze(-1).tolist() == [0, 1, 2, 3, 4, 5, 26, 27, 28, 29]
    torch.testing.assert_close(said.mean, torch.tensor([0.61 - 3 * 0.39]))
    torch.testing.assert_close(said.variance, torch.tensor([0.61 * 1.2 + 0.39 * 9.4]) - said.mean**2)
    assert mixed(Prediction(each.mean), torch.tensor([0.61, 0.0, 0.39])) == Prediction(said.mean)


def test_the_last_layer_of_every_component_may_begin_wider():
    model = functional(MLP(2, (3,), 1))
    learner = gem_mixture.build(model, squared, Config(components=2, sd=0.02, head_sd=0.3))
    for widths in learner.init(model.params).theta["log_sd"].exp():
        for name, value in unpack(widths, model.params).items():
            torch.testing.assert_close(value, torch.full_like(value, 0.3 if name.startswith("head.") else 0.02))


def test_components_begin_as_the_same_numbers_in_another_order():
    model = functional(MLP(1, (20,), 1))
    theta = gem_mixture.build(model, squared, Config(components=3, seed=2, sd=0.2)).init(model.params).theta
    first, *others = theta["mean"]
    assert torch.equal(first, torch.cat([value.reshape(-1) for value in model.params.values()]))
    for other in others:
        assert not torch.equal(other, first)
        assert torch.equal(other[:20].sort().values, first[:20].sort().values)  # tensor by tensor
    assert not torch.equal(*others)


def test_what_cannot_be_is_refused():
    model = functional(MLP(1, (2,), 1))
    for change in ({"components": 0}, {"noise": 0.0}, {"temperature": 0.0}):
        with pytest.raises(InputError, match=f"a positive {next(iter(change))}"):
            gem_mixture.build(model, squared, replace(Config(), **change))
    assert tree_map(len, gem_mixture.build(model, squared).init(model.params).theta)["mean"] == 3
