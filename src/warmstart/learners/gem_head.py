"""GEM-BML+ of the last layer alone, where posteriors are exact: deep features, and a Gaussian over what is put on them.

    y = w_t . f(x) + e,    e ~ N(0, noise),    w_t ~ N(m, diag s^2 + U U')
    GEM-BML,  the marginal likelihood of all rows:          log p(y_support, y_query)
    GEM-BML+, the likelihood of query rows given support:   log p(y_query | y_support), or row by row

With `dof` a task has a scale of its own, dof / scale^2 ~ chi2(dof): w_t - m and e are multiples of it, rows together
have a multivariate t density, and support rows that are hard to explain widen what is said of new ones.

The gradient-EM theorem gives the gradient of each as a difference of expectations under two posteriors. Here both are
in closed form, and so is the objective, so it is differentiated as it stands: features, prior and noise together.

A class is regressed on as a corner of a simplex, one w for each of its axes, all from the same prior with m = 0:
classes are exchangeable, and a task may have other ones than those in training. A new row is one of the corners, so

    p(class c | x) ~ N(corner c; mean(x), variance(x))^(heat / C) ~ exp(heat corner_c . mean(x) / (C variance(x)))

for C classes, whose corners are the farther apart the more there are. At first the heat is C. This is the likelihood of
a class where rows are judged one by one; where they are judged together that is the density of the corners, and the
heat is learned apart, by the log loss of query rows.

Zou and Lu, 2020 (the objectives); Harrison, Sharma and Pavone, 2018 (features through the closed form). Differs from
the paper: see docs/methods/gem_head.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from warmstart.core import Batch, InputError, Learner, Likelihood, Model, Params, Prediction, Task, Tree
from warmstart.core.trees import leaves, tree_map
from warmstart.engine.stage import PLAIN, Stage, over_tasks
from warmstart.maths.classes import corners, of_class
from warmstart.maths.gaussian import (
    Evidence,
    Fit,
    fit_of,
    in_units,
    log_normal,
    log_student,
    nothing,
    observe,
    posterior,
)
from warmstart.maths.optim import cosine, descend
from warmstart.maths.outer import Delta, Info, State, outer

OBJECTIVES = ("each", "query", "all")
LEAST = {"squared": 1e-5, "binary": 1e-3, "multiclass": 1e-3}  # noise variance: float32 must hold 1 / noise
# of a task's scale, the least and the most degrees of freedom: with 2 what is said without a row would have no finite
# variance, and from 10,000 on single precision no longer tells more from fewer
FREEDOM = (3.0, 1000.0)


@dataclass(frozen=True)
class Config:
    objective: str = "each"  # the density of query rows given the support, one by one; query: together; all: all rows
    rank: int = 0  # columns of U, directions of w that vary together
    spread: float = 1.0  # standard deviation, at first, of w_t . f(x) over tasks, for features of order one
    noise: float = 0.4  # that of e, at first
    dof: float = 0.0  # degrees of freedom, at first, of the scale that w_t - m and e of a task have; 0: all the same
    outer_lr: float = 1e-3
    outer_b2: float = 0.999  # Adam's memory of squared gradients; less where the noise shrinks, since these then grow
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0  # of the features' network, not of the prior
    seed: int = 0  # of U at first


SPACE: dict[str, list[Any]] = {
    "objective": ["each", "query", "all"],
    "rank": [0, 8],
    "dof": [0.0, 20.0],
    "outer_lr": [3e-4, 1e-3, 3e-3],
    "weight_decay": [0.0, 1e-3, 1e-2],
}


class Inner(NamedTuple):
    seen: Evidence
    rows: Tensor  # [classes] of each; [1] without classes


class Adapted(NamedTuple):
    mean: Tensor  # [d + rank, axes] of v, where w = m + [diag s, U] v
    root: Tensor  # [d + rank, d + rank]: root' root is its covariance, for every axis
    shown: Tensor  # [classes] whether a class showed a row
    scale: Tensor  # [] the square of the task's scale, as its rows have it: what all variances are multiples of
    doubt: Tensor  # [] 1 / its degrees of freedom, 0 where no task has a scale of its own


def build(
    model: Model,
    likelihood: Likelihood,
    cfg: Config = Config(),
    stage: Stage = PLAIN,
    classes: int | None = None,
) -> Learner:
    """`model.features` gives f, and a constant is added. A task may have up to `classes`, else those of the head."""
    if "head.weight" not in model.params:
        found = ", ".join(model.params) or "no parameters"
        raise InputError("a network whose last linear layer is named `head`", found, "name it so")
    if cfg.objective not in OBJECTIVES:
        raise InputError(f"an objective among {', '.join(OBJECTIVES)}", repr(cfg.objective), "use one of these names")
    if min(cfg.spread, cfg.noise) <= 0:
        raise InputError("a positive spread and noise", f"{cfg.spread} and {cfg.noise}", "pass numbers above 0")
    outputs, width = model.params["head.weight"].shape
    many = likelihood.name == "multiclass"
    ways = (classes or outputs) if many else 1
    axes = ways - 1 if many else 1
    least, most = FREEDOM
    if cfg.dof != 0 and not least < cfg.dof < most:
        raise InputError(
            f"a dof between {least:g} and {most:g}, or 0", f"{cfg.dof:g}", "pass 0 where all tasks have one scale"
        )
    if cfg.rank < 0:
        raise InputError("a rank of 0 or more", f"{cfg.rank}", "pass 0 for a diagonal prior")
    if not 0 <= cfg.outer_b2 < 1:
        raise InputError("an outer_b2 from 0 to below 1", f"{cfg.outer_b2:g}", "pass 0.99 or 0.999")
    out = outer(cfg.outer_lr, cfg.outer_decay, b2=cfg.outer_b2)

    def init(params: Params) -> State:
        like = next(iter(params.values()))
        constants = {"log_noise": math.log(cfg.noise), "log_heat": math.log(ways)}
        if cfg.dof:
            constants["log_dof"] = math.log(cfg.dof - least)
        factor = torch.randn(width + 1, cfg.rank, generator=torch.Generator().manual_seed(cfg.seed))
        theta: dict[str, Tree] = {
            "features": {name: value for name, value in params.items() if not name.startswith("head.")},
            "log_sd": like.new_full((width + 1,), math.log(cfg.spread / math.sqrt(width + 1))),
            "factor": (0.3 * cfg.spread / (width + 1) * factor).to(like),
            **{name: like.new_tensor(value) for name, value in constants.items()},
        }
        return out.init(theta if many else {**theta, "mean": like.new_zeros(width + 1)})

    def features(theta: Tree, x: Tree) -> Tensor:
        f = model.features(theta["features"], x)
        return torch.cat([f, torch.ones_like(f[..., :1])], -1)

    def units(theta: Tree, f: Tensor) -> Tensor:
        return in_units(f, theta["log_sd"], theta["factor"])

    def noise(theta: Tree) -> Tensor:
        variance: Tensor = LEAST[likelihood.name] + (2 * theta["log_noise"]).exp()
        return variance

    def doubt_after(theta: Tree, rows: Tensor) -> Tensor:
        """1 / the degrees of freedom of a task's scale after so many rows; 0 where none has its own."""
        if not cfg.dof:
            return torch.zeros_like(rows)
        doubt: Tensor = 1 / (least + theta["log_dof"].clamp(max=math.log(most)).exp() + axes * rows)
        return doubt

    def expected(theta: Tree, f: Tensor) -> Tensor:
        """[n, axes] before any row was seen."""
        return f.new_zeros(len(f), axes) if many else (f @ theta["mean"]).unsqueeze(-1)

    def targets(y: Tensor, like: Tensor) -> Tensor:
        """[n, axes] the numbers to regress on."""
        if many:
            return of_class(y, ways).to(like.dtype) @ corners(ways, like)
        return (2 * y - 1 if likelihood.name == "binary" else y).unsqueeze(-1)

    def residuals(theta: Tree, f: Tensor, batch: Batch) -> Tensor:
        return targets(batch.y, f) - expected(theta, f)

    def begin(theta: Tree) -> Inner:
        like = theta["log_sd"]
        return Inner(nothing(width + 1 + cfg.rank, axes, like), like.new_zeros(ways))

    def condition(theta: Tree, inner: Inner, f: Tensor, batch: Batch) -> Inner:
        weight = batch.w * batch.mask
        seen = observe(inner.seen, units(theta, f), residuals(theta, f, batch), weight, noise(theta))
        rows = of_class(batch.y, ways).to(f.dtype) if many else f.new_ones(len(f), 1)
        return Inner(seen, inner.rows + weight @ rows)

    def settle(theta: Tree, inner: Inner) -> Adapted:
        found, rows = posterior(inner.seen), inner.rows.sum()
        doubt, scale = doubt_after(theta, rows), torch.ones_like(rows)
        if cfg.dof:
            scale = 1 + (found.fit.square.sum() - axes * rows) * doubt
        return Adapted(found.mean, found.root, inner.rows > 0, scale, doubt)

    def density(fit: Fit, rows: Tensor, doubt: Tensor) -> Tensor:
        """Log density of so many rows, over all axes."""
        return log_student(fit, rows, 1 / doubt) if cfg.dof else log_normal(fit).sum(-1)

    def told(theta: Tree, adapted: Adapted, f: Tensor) -> tuple[Tensor, Tensor]:
        """Means [n, axes] and variances [n] of new rows."""
        g = units(theta, f)
        variance = ((g @ adapted.root.mT) ** 2).sum(-1) + noise(theta)
        return expected(theta, f) + g @ adapted.mean, adapted.scale * variance

    def outputs_of(theta: Tree, adapted: Adapted, f: Tensor) -> Tensor:
        """What the likelihood takes for these rows, [n, outputs]: of classes, log probabilities and a constant."""
        mean, variance = told(theta, adapted, f)
        sure: Tensor = theta["log_heat"].exp() / variance.unsqueeze(-1)
        if not many:
            return 2 * sure * mean
        allowed = adapted.shown | ~adapted.shown.any()
        return torch.where(allowed, sure * (mean @ corners(ways, f).mT) / ways, -torch.inf)

    def start(state: State, descriptor: Tree) -> Inner:
        return begin(state.theta)

    def step(state: State, inner: Inner, batch: Batch, noise_: Tree) -> Inner:
        if not leaves(batch.x):  # a task that never had rows
            return inner
        return condition(state.theta, inner, features(state.theta, batch.x), batch)

    def finish(state: State, inner: Inner, batch: Batch) -> Adapted:
        return settle(state.theta, inner)

    def predict(state: State, adapted: Adapted, x: Tree, noise_: Tree) -> Prediction:
        f = features(state.theta, x)
        if likelihood.name == "squared":
            mean, variance = told(state.theta, adapted, f)
            return Prediction(mean.squeeze(-1), variance / (1 - 2 * adapted.doubt))
        p = likelihood.mean(outputs_of(state.theta, adapted, f))
        return Prediction(p) if many else Prediction(p, p * (1 - p))

    def judge(theta: Tree, support: Batch, query: Batch) -> tuple[Tensor, Tensor]:
        """Minus the log likelihood of a row, and what the heat learns by where that does not depend on it."""
        shown, asked = (features(theta, batch.x) for batch in (support, query))  # apart, as a new task's are
        if cfg.objective == "each":
            return one_by_one(theta, shown, asked, support, query), theta["log_heat"].new_zeros(())
        value, weight = jointly(theta, (shown, asked), (support, query))
        objective = -value / torch.where(weight > 0, weight, 1.0)
        if likelihood.name == "squared":
            return objective, torch.zeros_like(objective)
        still = {name: part if name == "log_heat" else tree_map(Tensor.detach, part) for name, part in theta.items()}
        return objective, one_by_one(still, shown.detach(), asked.detach(), support, query)

    def one_by_one(theta: Tree, shown: Tensor, asked: Tensor, support: Batch, query: Batch) -> Tensor:
        """Minus the mean log likelihood of query rows, each given the support alone."""
        known, weight = settle(theta, condition(theta, begin(theta), shown, support)), query.w * query.mask
        if likelihood.name == "squared":
            mean, variance = told(theta, known, asked)
            square = (query.y.unsqueeze(-1) - mean) ** 2 / variance.unsqueeze(-1)
            rows = -density(
                Fit(square, -0.5 * torch.log(2 * math.pi * variance)), torch.ones_like(variance), known.doubt
            )
        else:
            rows = likelihood.loss(outputs_of(theta, known, asked), query.y)
        weight = weight * (rows != torch.inf)  # a row of a class that the support does not show teaches nothing
        total = weight.sum()
        return (torch.where(weight > 0, rows, 0.0) * weight).sum() / torch.where(total > 0, total, 1.0)

    def jointly(theta: Tree, encoded: tuple[Tensor, Tensor], parts: tuple[Batch, Batch]) -> tuple[Tensor, Tensor]:
        """The log likelihood of all rows together, or of the query rows given the support, and their weight."""
        lines = [
            (units(theta, f), residuals(theta, f, batch), batch.w * batch.mask)
            for f, batch in zip(encoded, parts, strict=True)
        ]
        both = [torch.cat(pair) for pair in zip(*lines, strict=True)]
        value = likely(theta, *both)
        if cfg.objective == "all":
            return value, both[2].sum()
        return value - likely(theta, *lines[0]), lines[1][2].sum()

    def likely(theta: Tree, g: Tensor, r: Tensor, weight: Tensor) -> Tensor:
        rows = weight.sum()
        return density(fit_of(g, r, weight, noise(theta)), rows, doubt_after(theta, torch.zeros_like(rows)))

    def together(theta: Tree, support: Batch, query: Batch) -> tuple[Tensor, Tensor]:
        objective, loss = over_tasks(judge)(theta, support, query)
        return (objective + loss).sum(), objective.sum()

    joint = stage.run(grad_and_value(together, has_aux=True))

    def meta_grad(state: State, tasks: Task, noise_: Tree) -> tuple[Delta, Info]:
        grads, (_, value) = joint(state.theta, tasks.support, tasks.query)
        return Delta(grads), Info(value)

    def update(state: State, delta: Delta, count: Tensor) -> State:
        moved = out.update(state, delta, count)
        rate: Any = cfg.outer_lr * cosine(state.opt.done, cfg.outer_decay) * cfg.weight_decay
        kept = descend(moved.theta["features"], state.theta["features"], rate)
        return moved._replace(theta={**moved.theta, "features": kept})

    return Learner(init, start, step, finish, predict, meta_grad, update)
