"""GEM with a mixture of Gaussians as prior, for tasks of several kinds.

    prior = sum_k pi_k N(m_k, s_k),    q_k = VI(N(m_k, s_k), rows),    b_k = the evidence bound of q_k
    responsibilities r_k(rows) = pi_k exp b_k / sum_j pi_j exp b_j
    g_k = r_k(all rows) E_q2k grad log N(m_k, s_k) - r_k(support) E_q1k grad log N(m_k, s_k)
    g of log pi = r(all rows) - r(support)

By the gradient-EM theorem this is the gradient of log p(query | support) when posteriors and bounds are exact; without
`plus` the second terms are gone (log pi: r - pi), and it is that of log p(all rows). A new task is the mixture of its
posteriors with the responsibilities of its rows. One component is `gem`.

After Zou and Lu, 2020, section 2.3, who leave it open. What was chosen here: see docs/methods/gem_mixture.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from warmstart.core import Batch, Learner, Likelihood, Model, Params, Prediction, Task, Tree
from warmstart.core.trees import expand, sum_tasks, take, tree_map
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import last
from warmstart.maths.inferred import inferred
from warmstart.maths.mean_field import Gaussian, expected_score
from warmstart.maths.outer import Delta, State, outer
from warmstart.maths.prior import Told, all_rows, as_theta, asked, check, first_prior, prior_of, steps_first, told
from warmstart.maths.variational import Inner


@dataclass(frozen=True)
class Config:
    components: int = 3
    temperature: float = 100.0  # that the bounds are divided by at first, so that no component takes all tasks
    anneal: int = 1000  # updates over which it falls to 1
    plus: bool = True  # the likelihood of the query given the support; False: the marginal likelihood of all rows
    joint: bool = False  # q2 from all rows at once instead of from q1 and the query rows
    natural: bool = True  # times the inverse Fisher matrix of a component: steps in units of its own width
    inner_lr: float = 1e-3
    inner_steps: int = 5  # of each posterior in training
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    inner: str = "sgd"  # momentum or adam; or newton, by `maths.newton`, which has no use for inner_lr and draws
    samples: int = 5  # draws in an inner step
    predictions: int = 20  # draws in a prediction
    estimator: str = "weights"  # local or flipout: noise of its own for every row, in `maths.expectation`
    kl_weight: float = 1.0  # of the prior in the inner loop
    noise: float = 0.5  # standard deviation of a row, for a squared likelihood
    sd: float = 0.1  # of the components, at first
    head_sd: float = 0.0  # that of the last layer, where it is another
    seed: int = 0  # of all components but the first
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it


SPACE: dict[str, list[Any]] = {
    "components": [2, 3, 5],
    "inner_lr": [3e-4, 1e-3, 3e-3, 0.01],
    "inner_steps": [1, 3, 5],
    "test_steps": [5, 10, 20],
    "noise": [0.1, 0.3, 0.5, 1.0],
    "sd": [0.01, 0.03, 0.1],
    "outer_lr": [3e-4, 1e-3, 3e-3],
}


class Found(NamedTuple):
    """Of every component [k, ...]: its posterior on the way, and the evidence bound of that."""

    inner: Inner
    bound: Tensor


class Adapted(NamedTuple):
    q: Tree  # [k, ...] what a prediction needs of each component's posterior
    share: Tensor  # [k] responsibilities


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    counts = {name: getattr(cfg, name) for name in ("components", "samples", "predictions", "inner_steps")}
    counts |= {"temperature": cfg.temperature}
    check(model, cfg.kl_weight, noise=cfg.noise, sd=cfg.sd, head_sd=cfg.head_sd or cfg.sd, **counts)
    infer, common = inferred(model, likelihood, cfg)
    out = outer(cfg.outer_lr, cfg.outer_decay)
    first_of = first_prior(out, cfg.sd, cfg.head_sd)

    def init(params: Params) -> State:
        """The given network, and others of the same numbers in another order."""
        source = torch.Generator().manual_seed(cfg.seed)

        def others(value: Tensor) -> Tensor:
            orders = [torch.randperm(value.numel(), generator=source) for _ in range(cfg.components - 1)]
            turned = [value.reshape(-1)[order.to(value.device)].reshape(value.shape) for order in orders]
            return torch.stack([value, *turned]).flatten(1)

        means = torch.cat([others(value) for value in params.values()], 1)
        spread = first_of(params).theta["log_sd"].expand(cfg.components, -1).clone()
        return out.init({**as_theta(Gaussian(means, spread)), "logits": means.new_zeros(cfg.components)})

    def begin(prior: Gaussian) -> Found:
        return Found(vmap(infer.start)(prior), prior.mean.new_zeros(cfg.components))

    def start(state: State, descriptor: Tree) -> Found:
        return begin(prior_of(state.theta))

    def one(anchor: Gaussian, inner: Inner, batch: Batch, noise: Tree) -> Found:
        moved = infer.step(anchor, inner, batch, noise, cfg.inner_lr)
        return Found(moved, -infer.bound(moved.q, anchor, batch, noise))

    def descend(prior: Gaussian, found: Found, batch: Batch, noise: Tree) -> Found:
        """All components see the same noise, so that their bounds differ by what they are."""
        stepped: Found = vmap(one, in_dims=(0, 0, None, None))(prior, found.inner, batch, noise)
        return stepped

    def onward(nothing: Tree, own: tuple[Gaussian, Found], batch: Batch, noise: Tree) -> tuple[Gaussian, Found]:
        return own[0], descend(own[0], own[1], batch, noise)

    def step(state: State, found: Found, batch: Batch, noise: Tree) -> Found:
        return descend(prior_of(state.theta), found, batch, noise)

    def alone(state: State, prior: Gaussian) -> State:
        """A component as a prior of its own."""
        return state._replace(theta=as_theta(prior))

    def finish(state: State, found: Found, batch: Batch) -> Adapted:
        def one(prior: Gaussian, inner: Inner) -> Tree:
            return common.finish(alone(state, prior), inner, batch)

        each = vmap(one)(prior_of(state.theta), found.inner)
        return Adapted(each, torch.softmax(state.theta["logits"] + found.bound, -1))

    def predict(state: State, adapted: Adapted, x: Tree, noise: Tree) -> Prediction:
        def one(prior: Gaussian, own: Tree) -> Prediction:
            return common.predict(alone(state, prior), own, x, noise)

        return mixed(vmap(one)(prior_of(state.theta), adapted.q), adapted.share)

    def merge(shared: Tree, shown: Found, both: Found) -> tuple[Gaussian, Tensor, Tensor]:
        """One task's ascent direction, and its responsibilities by the support."""
        prior, logits, heat = shared
        before = torch.softmax((logits + shown.bound) / heat, -1)
        after = torch.softmax((logits + both.bound) / heat, -1)
        ascent = tree_map(lambda score: after.unsqueeze(-1) * score, expected_score(both.inner.q, prior))
        if cfg.plus:
            less = expected_score(shown.inner.q, prior)
            ascent = tree_map(lambda score, other: score - before.unsqueeze(-1) * other, ascent, less)
        if cfg.natural:
            ascent = Gaussian(ascent.mean * torch.exp(2 * prior.log_sd), ascent.log_sd / 2)
        return ascent, after - (before if cfg.plus else torch.softmax(logits, -1)), before

    def judge(nothing: Tree, shown: Found, share: Tensor, query: Batch, noise: Tree) -> Tensor:
        """Minus the mean log likelihood of the query rows at draws from the support's posteriors."""
        weight = (query.w * query.mask).sum()
        fits: Tensor = vmap(infer.fit, in_dims=(0, None, None))(shown.inner.q, query, noise)
        return -(share * fits).sum() / torch.where(weight > 0, weight, 1.0)

    from_prior, from_posterior = last(descend, stage), last(onward, stage)
    merged, judged, total = stage.stack(merge), stage.stack(judge), stage.run(sum_tasks)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Told]:
        prior, steps, count = prior_of(state.theta), cfg.inner_steps, len(tasks.key)
        support, query = steps_first(noise["support"]), steps_first(noise["query"])
        first: Found = expand(begin(prior), count)
        shown: Found = from_prior(prior, first, tasks.support, support, steps)
        if cfg.joint:
            both: Found = from_prior(prior, first, all_rows(tasks), query, steps)
        else:
            anew = Found(Inner(shown.inner.q, first.inner.opt), first.bound)
            both = from_posterior((), (shown.inner.q, anew), tasks.query, query, steps)[1]
            both = both._replace(bound=shown.bound + both.bound)
        done = (state.opt.done / max(cfg.anneal, 1)).clamp(max=1.0)
        heat = cfg.temperature ** (1 - done) if cfg.anneal else torch.ones_like(done)
        ascent, logits, share = merged((prior, state.theta["logits"], heat), shown, both)
        value = judged((), shown, share, tasks.query, take(noise["query"], (slice(None), 0)))
        summed: Gaussian = total(ascent)
        grad = {**as_theta(summed), "logits": logits.sum(0)}
        return Delta(tree_map(torch.neg, grad)), told(value.sum(0), shown.inner.q.log_sd, both.inner.q.log_sd)

    train = {part: infer.noise(cfg.inner_steps, cfg.samples) for part in ("support", "query")}
    noise = asked(model, infer, cfg.samples, cfg.predictions, train)
    return Learner(init, start, step, finish, predict, meta_grad, out.update, cfg.test_steps, noise)


def mixed(each: Prediction, share: Tensor) -> Prediction:
    """The mixture of what components [k] say; of its draws each gives as many as its share says."""

    def total(values: Tensor) -> Tensor:
        return (values * share.reshape(-1, *(1 for _ in values.shape[1:]))).sum(0)

    mean, variance, samples = total(each.mean), each.variance, each.samples
    if isinstance(variance, Tensor):
        variance = total(variance + (each.mean - mean) ** 2)
    if isinstance(samples, Tensor):
        count = samples.shape[1]
        place = (torch.arange(count, device=share.device) + 0.5) / count
        which = (share.cumsum(-1) < place.unsqueeze(-1)).sum(-1).clamp(max=len(share) - 1)
        samples = samples[which, torch.arange(count, device=share.device)]
    return Prediction(mean, variance, samples)
