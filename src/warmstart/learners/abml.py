"""ABML: a Gaussian prior over parameters that makes the evidence bound of every task's own posterior large.

    q_t = VI(theta; shown rows of t)                  (inner_steps from the prior, anchored at it)
    theta <- theta + outer_lr * grad_theta sum_t [ E_{q_t} log p(judged rows | phi) - kl_weight KL(q_t || theta) ]
             + outer_lr * grad log hyper-prior(theta)

The gradient goes through q_t, a function of theta, as well as through the bound's own theta. Which rows are shown
and which are judged is `objective`; `difference` is the bound of all rows less that of the support rows.

Ravi and Beatson, 2019; Zou and Lu, 2020, appendix B.4. Differs from the papers: see docs/methods/abml.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from warmstart.core import Batch, InputError, Learner, Likelihood, Model, Task, Tree
from warmstart.core.trees import add, scale, sum_tasks, tree_map, zeros_like
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import unroll, value_and_grad
from warmstart.maths.expectation import expectation
from warmstart.maths.mean_field import Gaussian
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
    objective: str = "both"  # a key of OBJECTIVES
    inner_lr: float = 1e-3
    inner_steps: int = 5  # of training
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    inner: str = "sgd"  # sgd, momentum or adam
    samples: int = 5  # draws in an inner step and in the bound
    predictions: int = 20  # draws in a prediction
    estimator: str = "weights"  # local or flipout: noise of its own for every row, in `maths.expectation`
    kl_weight: float = 1.0  # of the KL, in the inner loop and in the bound
    noise: float = 0.5  # standard deviation of a row, for a squared likelihood
    sd: float = 0.1  # of the prior, at first
    hyper_weight: float = 1e-3  # of the log hyper-prior in one task's bound: 1 / training tasks; 0: no hyper-prior
    mean_precision: float = 1.0  # of the normal hyper-prior of every mean around 0; 0: none
    gamma_shape: float = 2.0  # of the Gamma hyper-prior of every precision, whose mode is (shape - 1) / rate
    gamma_rate: float = 0.01  # 0: none
    recompute: bool = False  # keep few states of the inner loop and run it again: less memory, more time
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it


SPACE: dict[str, list[Any]] = {
    "inner_lr": [3e-4, 1e-3, 3e-3, 0.01],
    "inner_steps": [1, 3, 5],
    "test_steps": [5, 10, 20],
    "noise": [0.1, 0.3, 0.5, 1.0],
    "sd": [0.01, 0.03, 0.1],
    "outer_lr": [3e-4, 1e-3, 3e-3],
}

# bounds that are added up: their sign, the rows that q_t is inferred from, the rows whose likelihood counts
OBJECTIVES = {
    "support": [(1.0, "support", "support")],
    "query": [(1.0, "support", "query")],
    "both": [(1.0, "support", "all")],
    "all": [(1.0, "all", "all")],
    "difference": [(1.0, "all", "all"), (-1.0, "support", "support")],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    if cfg.objective not in OBJECTIVES:
        raise InputError(f"an objective among {', '.join(OBJECTIVES)}", repr(cfg.objective), "use one of these names")
    counts = {"samples": cfg.samples, "predictions": cfg.predictions, "inner_steps": cfg.inner_steps}
    check(model, cfg.kl_weight, noise=cfg.noise, sd=cfg.sd, **counts)
    infer = inference(expectation(model, likelihood, cfg.noise, cfg.estimator), named(cfg.inner), cfg.kl_weight)
    out = outer(cfg.outer_lr, cfg.outer_decay)
    common = learned_prior(model, likelihood, infer, rate=cfg.inner_lr, noise=cfg.noise)

    def bound(prior: Gaussian, q: Gaussian, batch: Batch, noise: Tree) -> Tensor:
        return infer.bound(q, prior, batch, noise)

    def hyper(prior: Gaussian) -> Tensor:
        """Minus the log density of means and precisions, up to a constant."""
        total = cfg.mean_precision / 2 * (prior.mean**2).sum()
        if cfg.gamma_rate:
            precision = torch.exp(-2 * prior.log_sd)
            total = total + (2 * (cfg.gamma_shape - 1) * prior.log_sd + cfg.gamma_rate * precision).sum()
        return cfg.hyper_weight * total

    loop = unroll(common.descend, stage, cfg.recompute)
    judged = value_and_grad(bound, stage)
    total = stage.run(sum_tasks)
    regular = stage.run(grad_and_value(hyper))

    def bounds(prior: Gaussian, shown: Batch, judge: Batch, noise: Tree) -> tuple[Tree, Gaussian]:
        """The negative bound, summed over tasks, with its gradient in the prior by all three ways; the posteriors."""
        first = common.first(prior, len(judge.y))
        inner, tape = loop.run(prior, first, shown, steps_first(noise["inner"]), cfg.inner_steps)
        value, direct, cotangent = judged(prior, inner.q, judge, noise["bound"])  # as the bound's prior
        anchored, pulled = loop.pull(tape, Inner(cotangent, zeros_like(inner.opt)))  # as the anchor
        return (add(add(direct, anchored), total(pulled.q)), value), inner.q  # and as the start

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Told]:
        prior = prior_of(state.theta)
        rows = {"support": tasks.support, "query": tasks.query, "all": all_rows(tasks)}
        signs, shown, judge = zip(*OBJECTIVES[cfg.objective], strict=True)
        found = [bounds(prior, rows[a], rows[b], noise) for a, b in zip(shown, judge, strict=True)]
        parts = [scale(part, sign) for (part, _), sign in zip(found, signs, strict=True)]
        if cfg.hyper_weight:
            parts.append(scale(regular(prior), float(len(tasks.key))))
        slope, value = tree_map(lambda *each: sum(each[1:], each[0]), *parts)
        return Delta(as_theta(slope)), told(value, *(q.log_sd for _, q in found))

    train = {"inner": infer.noise(cfg.inner_steps, cfg.samples), "bound": infer.noise(cfg.samples)}
    noise = asked(model, infer, cfg.samples, cfg.predictions, train)
    init, start, step, finish, predict = first_prior(out, cfg.sd), *common[:4]
    return Learner(init, start, step, finish, predict, meta_grad, out.update, cfg.test_steps, noise)
