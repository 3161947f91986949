"""GEM-BML: a Gaussian prior over parameters, learned from posteriors alone, without differentiating the inner loop.

    q1 = VI(prior, support),    q2 = VI(q1, query)  or  VI(prior, support and query)
    GEM-BML,  the marginal likelihood of all rows:          g = E_q2 grad log prior
    GEM-BML+, the likelihood of query rows given support:   g = E_q2 grad log prior - E_q1 grad log prior

By the gradient-EM theorem g is the gradient of the objective when the posteriors are exact. For mean-field
Gaussians it is in closed form (`maths.mean_field.expected_score`), so a meta-update needs posteriors, not data:
`local_posterior` is what a client computes, `merge_posteriors` what a server does with what it is sent. All
parameters lie in one vector, so that a step is few operations.

Zou and Lu, 2020. Differs from the paper: see docs/methods/gem.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.func import vmap

from warmstart.core import (
    Batch,
    InputError,
    Learner,
    Likelihood,
    Model,
    Noise,
    Params,
    Prediction,
    Task,
    Tree,
    task_log_likelihood,
)
from warmstart.core.trees import expand, named_leaves, pack, sum_tasks, tree_map, unpack
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import last
from warmstart.maths.mean_field import Gaussian, around, bounded, draw, expected_score
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, Info, State, outer
from warmstart.maths.predictive import predictive
from warmstart.maths.variational import Inference, Inner, inference


@dataclass(frozen=True)
class Config:
    plus: bool = True  # the likelihood of the query given the support; False: the marginal likelihood of all rows
    joint: bool = False  # q2 from all rows at once instead of from q1 and the query rows
    natural: bool = True  # times the inverse Fisher matrix of the prior: steps in units of its own width
    inner_lr: float = 1e-3
    inner_steps: int = 5  # of each posterior in training
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    inner: str = "sgd"  # sgd, momentum or adam
    samples: int = 5  # draws in an inner step
    predictions: int = 20  # draws in a prediction
    kl_weight: float = 1.0  # of the prior in the inner loop
    noise: float = 0.5  # standard deviation of a row, for a squared likelihood
    sd: float = 0.1  # of the prior, at first
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it


GEM_BML = Config(plus=False)
GEM_BML_PLUS = Config()

SPACE: dict[str, list[Any]] = {
    "inner_lr": [3e-4, 1e-3, 3e-3, 0.01],
    "inner_steps": [1, 3, 5],
    "test_steps": [5, 10, 20],
    "noise": [0.1, 0.3, 0.5, 1.0],
    "sd": [0.01, 0.03, 0.1],
    "outer_lr": [3e-4, 1e-3, 3e-3],
}


class Posteriors(NamedTuple):
    """What a task says of the parameters, by its support and by all its rows."""

    support: Gaussian
    both: Gaussian


Local: TypeAlias = Callable[[State, Task, Tree], Posteriors]
Merge: TypeAlias = Callable[[State, Posteriors], Delta]


def prior_of(state: State) -> Gaussian:
    return bounded(Gaussian(state.theta["mean"], state.theta["log_sd"]))


def _inference(model: Model, likelihood: Likelihood, cfg: Config) -> Inference:
    log_likelihood = task_log_likelihood(model, likelihood, cfg.noise)
    return inference(
        lambda vector, batch: log_likelihood(unpack(vector, model.params), batch), named(cfg.inner), cfg.kl_weight
    )


def local_posterior(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Local:
    """(State, stack of tasks, noise) -> Posteriors [t]: all that leaves a client."""
    infer = _inference(model, likelihood, cfg)

    def towards(prior: Gaussian, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return infer.step(prior, inner, batch, noise, cfg.inner_lr)

    def onward(nothing: Tree, inner: tuple[Gaussian, Inner], batch: Batch, noise: Tree) -> tuple[Gaussian, Inner]:
        return inner[0], infer.step(inner[0], inner[1], batch, noise, cfg.inner_lr)

    from_prior, from_posterior = last(towards, stage), last(onward, stage)

    def call(state: State, tasks: Task, noise: Tree) -> Posteriors:
        prior, count = prior_of(state), len(tasks.key)
        first, second = (tree_map(lambda leaf: leaf.transpose(0, 1), noise[part]) for part in ("support", "query"))
        begin = expand(infer.start(prior), count)
        shown: Gaussian = from_prior(prior, begin, tasks.support, first, cfg.inner_steps).q
        if cfg.joint:
            rows = tree_map(lambda s, q: torch.cat([s, q], 1), tasks.support, tasks.query)
            return Posteriors(shown, from_prior(prior, begin, rows, second, cfg.inner_steps).q)
        fresh = Inner(shown, expand(infer.start(prior).opt, count))
        return Posteriors(shown, from_posterior((), (shown, fresh), tasks.query, second, cfg.inner_steps)[1].q)

    return call


def merge_posteriors(cfg: Config = Config(), stage: Stage = PLAIN) -> Merge:
    """(State, Posteriors [t]) -> Delta, for the update: in closed form, summed over tasks."""

    def one(prior: Gaussian, found: Posteriors) -> Gaussian:
        ascent = expected_score(found.both, prior)
        if cfg.plus:
            ascent = tree_map(lambda after, before: after - before, ascent, expected_score(found.support, prior))
        if cfg.natural:
            mean = tree_map(lambda g, log_sd: g * torch.exp(2 * log_sd), ascent.mean, prior.log_sd)
            ascent = Gaussian(mean, tree_map(lambda g: g / 2, ascent.log_sd))
        return ascent

    stacked, total = stage.stack(one), stage.run(sum_tasks)

    def call(state: State, found: Posteriors) -> Delta:
        ascent: Gaussian = total(stacked(prior_of(state), found))
        return Delta(tree_map(torch.neg, {"mean": ascent.mean, "log_sd": ascent.log_sd}))

    return call


def check_posteriors(state: State, found: Posteriors, name: str = "a posterior") -> None:
    """What a server asks before it merges: the prior's shapes, finite numbers, a leading task axis."""
    expected = named_leaves(prior_of(state))
    for part in found:
        given = named_leaves(part)
        for key, leaf in expected.items():
            if key not in given or given[key].shape[1:] != leaf.shape:
                got = "none" if key not in given else str(list(given[key].shape))
                raise InputError(f"{key} of shape [tasks, {str(list(leaf.shape))[1:]} in {name}", got, "leave it out")
            if not bool(torch.isfinite(given[key]).all()):
                raise InputError(
                    f"finite numbers in {name}", f"others in {key}", "leave it out; the prior is untouched"
                )


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    if len(model.fast) != len(model.params):
        raise InputError("a model whose parameters are all fast", "some slow ones", "use maml for a fast/slow split")
    if min(cfg.noise, cfg.sd) <= 0 or min(cfg.samples, cfg.predictions, cfg.inner_steps) < 1:
        raise InputError("positive noise, sd, samples, predictions and inner_steps", f"{cfg}", "raise what is zero")
    log_likelihood = task_log_likelihood(model, likelihood, cfg.noise)
    infer = _inference(model, likelihood, cfg)
    out = outer(cfg.outer_lr, cfg.outer_decay)
    local, merge = local_posterior(model, likelihood, cfg, stage), merge_posteriors(cfg, stage)

    def init(params: Params) -> State:
        prior = around(pack(params), cfg.sd)
        return out.init({"mean": prior.mean, "log_sd": prior.log_sd})

    def start(state: State, descriptor: Tree) -> Inner:
        return infer.start(prior_of(state))

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return infer.step(prior_of(state), inner, batch, noise, cfg.inner_lr)

    def finish(state: State, inner: Inner, batch: Batch) -> Gaussian:
        return inner.q

    def predict(state: State, adapted: Gaussian, x: Tree, noise: Tree) -> Prediction:
        draws = vmap(lambda vector: unpack(vector, model.params))(draw(adapted, noise))
        return predictive(model, likelihood, draws, x, cfg.noise)

    def judge(nothing: Tree, shown: Gaussian, query: Batch, noise: Tree) -> Tensor:
        """Minus the mean log likelihood of the query rows at draws from the support's posterior."""
        weight = (query.w * query.mask).sum()
        fits: Tensor = vmap(lambda drawn: log_likelihood(unpack(draw(shown, drawn), model.params), query))(noise)
        return -fits.mean() / torch.where(weight > 0, weight, 1.0)

    judged = stage.stack(judge)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        found = local(state, tasks, noise)
        drawn = tree_map(lambda leaf: leaf[:, 0], noise["query"])
        return merge(state, found), Info(judged((), found.support, tasks.query, drawn).sum(0))

    count = sum(value.numel() for value in model.params.values())
    asked = Noise(
        train={part: torch.Size((cfg.inner_steps, cfg.samples, count)) for part in ("support", "query")},
        step=torch.Size((cfg.samples, count)),
        predict=torch.Size((cfg.predictions, count)),
    )
    return Learner(init, start, step, finish, predict, meta_grad, out.update, steps=cfg.test_steps, noise=asked)
