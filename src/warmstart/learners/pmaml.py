"""Probabilistic MAML: the prior is judged by the query rows under what the support rows have made of it.

`platipus`, with all parameters of N(mean, sd) drawn once and then adapted as MAML does:

    q_t = N(mean - posterior_rate * grad NLL(mean; query_t), posterior_sd)          (in training only)
    p_t = N(mean - prior_rate * grad NLL(mean; support_t), sd)
    phi ~ q_t in training, ~ p_t for a new task;    phi_t = phi - inner_lr * grad NLL(phi; support_t)
    theta <- theta - outer_lr * grad_theta sum_t [ E_{q_t} NLL(phi_t; query_t) + kl_weight KL(q_t || p_t) ]

`bound`, the evidence bound of the query rows whose prior is the support's posterior:

    q1_t = VI(theta; support_t),    q2_t = VI(q1_t; query_t)  or  VI(theta; support_t and query_t)
    theta <- theta + outer_lr * grad_theta sum_t [ E_{q2_t} log p(query_t | phi) - kl_weight KL(q2_t || q1_t) ]

Finn, Xu and Levine, 2018; Zou and Lu, 2020, appendix B.4. Differs from the papers: see docs/methods/pmaml.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

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
from warmstart.core.trees import add, expand, pack, sum_tasks, tree_map, unpack, zeros_like
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import unroll, value_and_grad
from warmstart.maths.expectation import expectation, size
from warmstart.maths.mean_field import Gaussian, around, bounded, draw, kl
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, State, outer
from warmstart.maths.predictive import predictive
from warmstart.maths.prior import (
    Told,
    all_rows,
    as_theta,
    asked,
    check,
    first_prior,
    learned_prior,
    prior_of,
    steps_first,
    told,
)
from warmstart.maths.variational import Inner, inference


@dataclass(frozen=True)
class Config:
    algorithm: str = "bound"  # bound or platipus
    joint: bool = False  # bound: q2 from all rows at once instead of from q1 and the query rows
    inner_lr: float = 1e-3
    inner_steps: int = 5  # of training; of each posterior in `bound`
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    inner: str = "sgd"  # sgd, momentum or adam
    samples: int = 5  # draws in an inner step and in the bound; in `platipus` networks adapted in training
    predictions: int = 20  # draws in a prediction; in `platipus` networks that a new task adapts
    estimator: str = "weights"  # local or flipout: noise of its own for every row, in `maths.expectation`; `bound` only
    kl_weight: float = 1.0
    noise: float = 0.5  # standard deviation of a row, for a squared likelihood
    sd: float = 0.03  # of the prior, at first; in `platipus` of q too
    shift_lr: float = 1e-3  # platipus: where prior_rate and posterior_rate start
    recompute: bool = False  # keep few states of the inner loop and run it again: less memory, more time
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it


PLATIPUS = Config(algorithm="platipus", sd=0.01)

SPACE: dict[str, list[Any]] = {
    "inner_lr": [3e-4, 1e-3, 3e-3, 0.01],
    "inner_steps": [1, 3, 5],
    "test_steps": [5, 10, 20],
    "noise": [0.1, 0.3, 0.5, 1.0],
    "sd": [0.003, 0.01, 0.03, 0.1],
    "outer_lr": [3e-4, 1e-3, 3e-3],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    counts = {"samples": cfg.samples, "predictions": cfg.predictions, "inner_steps": cfg.inner_steps}
    check(model, cfg.kl_weight, noise=cfg.noise, sd=cfg.sd, **counts)
    match cfg.algorithm:
        case "bound":
            return _bound(model, likelihood, cfg, stage)
        case "platipus":
            return _platipus(model, likelihood, cfg, stage)
    raise InputError("an algorithm bound or platipus", repr(cfg.algorithm), "use one of these names")


def _bound(model: Model, likelihood: Likelihood, cfg: Config, stage: Stage) -> Learner:
    infer = inference(expectation(model, likelihood, cfg.noise, cfg.estimator), named(cfg.inner), cfg.kl_weight)
    out = outer(cfg.outer_lr, cfg.outer_decay)
    common = learned_prior(model, likelihood, infer, rate=cfg.inner_lr, noise=cfg.noise)

    def judge(nothing: Tree, found: tuple[Gaussian, Gaussian], query: Batch, noise: Tree) -> Tensor:
        return infer.bound(found[1], found[0], query, noise)

    from_prior = unroll(common.descend, stage, cfg.recompute)
    from_support = unroll(common.onward, stage, cfg.recompute)
    judged = value_and_grad(judge, stage)
    total = stage.run(sum_tasks)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Told]:
        prior, steps = prior_of(state.theta), cfg.inner_steps
        first = common.first(prior, len(tasks.key))
        support, query = steps_first(noise["support"]), steps_first(noise["query"])
        shown, tape = from_prior.run(prior, first, tasks.support, support, steps)
        if cfg.joint:
            after, tape2 = from_prior.run(prior, first, all_rows(tasks), query, steps)
        else:
            (_, after), tape2 = from_support.run((), common.afresh(prior, shown.q), tasks.query, query, steps)
        value, _, (before, both) = judged((), (shown.q, after.q), tasks.query, noise["bound"])
        end = Inner(both, zeros_like(after.opt))
        slope = zeros_like(prior)
        if cfg.joint:
            anchored, pulled = from_prior.pull(tape2, end)
            slope = add(anchored, total(pulled.q))
        else:
            _, (anchor, pulled) = from_support.pull(tape2, (before, end))
            before = add(anchor, pulled.q)  # q1 was the anchor, in the steps and in the bound, and the start
        anchored, pulled = from_prior.pull(tape, Inner(before, zeros_like(shown.opt)))
        slope = add(slope, add(anchored, total(pulled.q)))
        return Delta(as_theta(slope)), told(value, shown.q.log_sd, after.q.log_sd)

    train = {part: infer.noise(cfg.inner_steps, cfg.samples) for part in ("support", "query")}
    noise = asked(model, infer, cfg.samples, cfg.predictions, {**train, "bound": infer.noise(cfg.samples)})
    init, start, step, finish, predict = first_prior(out, cfg.sd), *common[:4]
    return Learner(init, start, step, finish, predict, meta_grad, out.update, cfg.test_steps, noise)


class Drawn(NamedTuple):
    """Networks on their way."""

    phi: Tensor  # [draws, d]
    opt: Any


class Started(NamedTuple):
    drawn: Drawn
    fresh: Tensor  # 1 before any row is seen: the networks are still to be drawn


class Adapted(NamedTuple):
    phi: Tensor
    fresh: Tensor


def _platipus(model: Model, likelihood: Likelihood, cfg: Config, stage: Stage) -> Learner:
    fit = task_log_likelihood(model, likelihood, cfg.noise)
    optimiser, out = named(cfg.inner), outer(cfg.outer_lr, cfg.outer_decay)

    def misfit(phi: Tensor, batch: Batch) -> Tensor:
        return -fit(unpack(phi, model.params), batch)

    def shifted(theta: Tree, role: str, log_sd: Tensor, batch: Batch) -> Gaussian:
        """The prior's mean, one step down the rows' misfit with learned rates."""
        return bounded(Gaussian(theta["mean"] - theta[role] * grad(misfit)(theta["mean"], batch), log_sd))

    def begin(phi: Tensor) -> Drawn:
        return Drawn(phi, optimiser.init(phi))

    def adapt(nothing: Tree, drawn: Drawn, batch: Batch, noise: Tree) -> Drawn:
        slope = vmap(grad(misfit), in_dims=(0, None))(drawn.phi, batch)
        return Drawn(*optimiser.update(drawn.phi, slope, drawn.opt, cfg.inner_lr))

    def init(params: Params) -> State:
        prior = around(pack(params), cfg.sd)
        rates = torch.full_like(prior.mean, cfg.shift_lr)
        return out.init(
            {**as_theta(prior), "posterior_log_sd": prior.log_sd, "prior_rate": rates, "posterior_rate": rates}
        )

    def start(state: State, descriptor: Tree) -> Started:
        phi = expand(state.theta["mean"], cfg.predictions)
        return Started(begin(phi), phi.new_ones(()))

    def step(state: State, inner: Started, batch: Batch, noise: Tree) -> Started:
        """Networks are drawn at the first step that sees a row, and adapted from then on."""
        found = draw(shifted(state.theta, "prior_rate", state.theta["log_sd"], batch), noise)
        phi = torch.where(inner.fresh > 0, found, inner.drawn.phi)
        moved = Started(adapt((), inner.drawn._replace(phi=phi), batch, ()), torch.zeros_like(inner.fresh))
        seen = (batch.w * batch.mask).sum() > 0
        kept: Started = tree_map(lambda new, old: torch.where(seen, new, old), moved, inner)
        return kept

    def finish(state: State, inner: Started, batch: Batch) -> Adapted:
        return Adapted(inner.drawn.phi, inner.fresh)

    def predict(state: State, adapted: Adapted, x: Tree, noise: Tree) -> Prediction:
        spread = adapted.fresh * noise  # nothing is added to networks that were drawn before
        drawn = draw(Gaussian(adapted.phi, prior_of(state.theta).log_sd), spread)
        return predictive(model, likelihood, unpack(drawn, model.params), x, cfg.noise)

    def propose(theta: Tree, nothing: Tree, support: Batch, query: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        q = shifted(theta, "posterior_rate", theta["posterior_log_sd"], query)
        return draw(q, noise), cfg.kl_weight * kl(q, shifted(theta, "prior_rate", theta["log_sd"], support))

    def judge(nothing: Tree, phi: Tensor, query: Batch) -> Tensor:
        each: Tensor = vmap(misfit, in_dims=(0, None))(phi, query)
        return each.mean()

    proposed, loop = stage.differentiate(propose), unroll(adapt, stage, cfg.recompute)
    judged = value_and_grad(judge, stage)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Told]:
        (phi, distance), saved = proposed.forward(state.theta, (), tasks.support, tasks.query, noise)
        first = Drawn(phi, expand(optimiser.init(phi[0]), len(tasks.key)))
        drawn, tape = loop.run((), first, tasks.support, (), cfg.inner_steps)
        value, _, cotangent = judged((), drawn.phi, tasks.query)
        _, pulled = loop.pull(tape, Drawn(cotangent, zeros_like(drawn.opt)))
        slope, _ = proposed.backward(saved, (pulled.phi, torch.ones_like(distance)))
        widths = [expand(state.theta[name], len(tasks.key)) for name in ("log_sd", "posterior_log_sd")]
        return Delta(slope), told(value + distance.sum(0), *widths)

    count = size(model)
    draws = torch.Size((cfg.predictions, count))
    noise = Noise(torch.Size((cfg.samples, count)), draws, draws)
    return Learner(init, start, step, finish, predict, meta_grad, out.update, cfg.test_steps, noise)
