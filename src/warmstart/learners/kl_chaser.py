"""KL chaser: a prior from which the support's posterior comes close to the one that has seen the query too.

    q1_t = VI(theta; support_t),    q2_t = VI(q1_t; query_t)  or  VI(theta; support_t and query_t)
    theta <- theta - outer_lr * grad_theta sum_t KL(stop(q2_t) || q1_t(theta))

The leader q2_t stands still; the gradient goes through q1_t alone. It is the gradient-EM estimator applied to
the likelihood of query rows under q1_t as their prior.

Zou and Lu, 2020, appendix B.4, after the chaser loss of Yoon et al., 2018. Differs from the papers: see
docs/methods/kl_chaser.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from warmstart.core import Learner, Likelihood, Model, Task, Tree
from warmstart.core.trees import add, sum_tasks, zeros_like
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import last, unroll, value_and_grad
from warmstart.maths.expectation import expectation
from warmstart.maths.mean_field import Gaussian, kl
from warmstart.maths.optim import named
from warmstart.maths.outer import Delta, State, outer
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
    joint: bool = False  # the leader from all rows at once instead of from q1 and the query rows
    inner_lr: float = 1e-3
    inner_steps: int = 5  # of the chaser in training
    leader_steps: int = 5  # of the leader: beyond the chaser's, or from the prior when joint
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    inner: str = "sgd"  # sgd, momentum or adam
    samples: int = 5  # draws in an inner step
    predictions: int = 20  # draws in a prediction
    estimator: str = "weights"  # local or flipout: noise of its own for every row, in `maths.expectation`
    kl_weight: float = 1.0  # of the prior in the inner loop
    noise: float = 0.5  # standard deviation of a row, for a squared likelihood
    sd: float = 0.1  # of the prior, at first
    recompute: bool = False  # keep few states of the inner loop and run it again: less memory, more time
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it


SPACE: dict[str, list[Any]] = {
    "inner_lr": [3e-4, 1e-3, 3e-3, 0.01],
    "inner_steps": [1, 3, 5],
    "leader_steps": [1, 5, 10],
    "test_steps": [5, 10, 20],
    "noise": [0.1, 0.3, 0.5, 1.0],
    "sd": [0.01, 0.03, 0.1],
    "outer_lr": [3e-4, 1e-3, 3e-3],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    counts = {"samples": cfg.samples, "predictions": cfg.predictions, "inner_steps": cfg.inner_steps}
    check(model, cfg.kl_weight, noise=cfg.noise, sd=cfg.sd, **counts, leader_steps=cfg.leader_steps)
    infer = inference(expectation(model, likelihood, cfg.noise, cfg.estimator), named(cfg.inner), cfg.kl_weight)
    out = outer(cfg.outer_lr, cfg.outer_decay)
    common = learned_prior(model, likelihood, infer, rate=cfg.inner_lr, noise=cfg.noise)

    def behind(nothing: Tree, chaser: Gaussian, leader: Gaussian) -> Tensor:
        return kl(leader, chaser)

    loop = unroll(common.descend, stage, cfg.recompute)
    from_prior, from_chaser = last(common.descend, stage), last(common.onward, stage)
    judged = value_and_grad(behind, stage)
    total = stage.run(sum_tasks)

    def lead(prior: Gaussian, chaser: Gaussian, tasks: Task, noise: Tree) -> Gaussian:
        drawn = steps_first(noise)
        if cfg.joint:
            first = common.first(prior, len(tasks.key))
            inner: Inner = from_prior(prior, first, all_rows(tasks), drawn, cfg.leader_steps)
        else:
            _, inner = from_chaser((), common.afresh(prior, chaser), tasks.query, drawn, cfg.leader_steps)
        return inner.q

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Told]:
        prior = prior_of(state.theta)
        first = common.first(prior, len(tasks.key))
        inner, tape = loop.run(prior, first, tasks.support, steps_first(noise["chaser"]), cfg.inner_steps)
        leader = lead(prior, inner.q, tasks, noise["leader"])
        value, _, cotangent = judged((), inner.q, leader)
        anchored, pulled = loop.pull(tape, Inner(cotangent, zeros_like(inner.opt)))
        return Delta(as_theta(add(anchored, total(pulled.q)))), told(value, inner.q.log_sd, leader.log_sd)

    train = {
        "chaser": infer.noise(cfg.inner_steps, cfg.samples),
        "leader": infer.noise(cfg.leader_steps, cfg.samples),
    }
    noise = asked(model, infer, cfg.samples, cfg.predictions, train)
    init, start, step, finish, predict = first_prior(out, cfg.sd), *common[:4]
    return Learner(init, start, step, finish, predict, meta_grad, out.update, cfg.test_steps, noise)
