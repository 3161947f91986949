"""Empirical Bayes: a linear model on learned features, with a learned prior and exact conditioning.

    y = w_t . f(x) + e,    e ~ N(0, noise)
    w_t ~ sum_k pi_k(d) N(m_k + A h(d), R R'),    R = [diag(s), U],    d: the task's descriptor

The posterior is again a mixture, in closed form, and `step` is conditioning: rows add up, in any
order, one by one or all at once. Features f and h, prior and noise are trained end to end by

    - log p(y_query | y_support, d) - evidence * log p(y_support | d).

evidence = 1 is the marginal likelihood of all rows, the better judge when tasks are short. Labels
are regressed on, as -1 and 1 or one-hot with one w per class, and the mean is clipped to a probability.

Lindley and Smith, 1972 (the hierarchy); Harrison, Sharma and Pavone, 2018 (features through the
closed form); Bertinetto et al., 2019 (one-hot targets). The mixture given a descriptor is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from warmstart.core import Batch, InputError, Learner, Likelihood, Model, Params, Prediction, Task, Tree
from warmstart.core.trees import stack, take, tree_map
from warmstart.engine.stage import PLAIN, Stage
from warmstart.maths.classes import of_class
from warmstart.maths.gaussian import Evidence, fit_of, in_units, log_normal, nothing, observe, posterior
from warmstart.maths.optim import adam, cosine, descend
from warmstart.maths.outer import CLIP, Delta, Info, State, clipped

T = TypeVar("T")
FLOOR = 1e-5  # least noise variance: targets are of order one, and float32 must hold 1 / noise


@dataclass(frozen=True)
class Config:
    members: int = 1  # networks, trained apart; their predictions are averaged
    components: int = 8  # of the mixture; 1 is one Gaussian
    rank: int = 0  # of U, directions of w that vary together
    evidence: float = 1.0  # weight of the support's own marginal likelihood in the objective
    spread: float = 0.7  # standard deviation, at first, of w_t . f(x) over tasks
    noise: float = 0.4  # that of e, at first
    clip: float = 0.01  # least probability of a class
    outer_lr: float = 6e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.35  # of the two networks, not of the prior
    seed: int = 0  # of the components' first means


SPACE: dict[str, list[Any]] = {
    "components": [1, 4, 8, 16],
    "rank": [0, 8],
    "weight_decay": [0.1, 0.2, 0.35, 0.5, 1.0],
    "outer_lr": [3e-3, 6e-3],
}


class Inner(NamedTuple):
    """What is believed of one task: the prior its descriptor gives, and what its rows said."""

    logit: Tensor  # [k] log pi
    mean: Tensor  # [k, c, d]
    seen: Evidence  # k c columns that share one precision


class Adapted(NamedTuple):
    weight: Tensor  # [k] of the components
    mean: Tensor  # [k, c, d] of w
    root: Tensor  # [q, d]: root' root is the covariance of w within each component


def build(
    model: Model, likelihood: Likelihood, cfg: Config = Config(), prior: Model | None = None, stage: Stage = PLAIN
) -> Learner:
    """`model.features` gives f, a constant is added; `prior.features` of the descriptor gives h (None: no h).

    Every tensor of theta, Inner and Adapted leads with an axis of members.
    """
    if min(cfg.members, cfg.components) < 1:
        raise InputError("at least one member and component", f"{cfg.members} and {cfg.components}", "pass 1 or more")
    if not min(cfg.spread, cfg.noise) > 0:
        raise InputError("a positive spread and noise", f"{cfg.spread} and {cfg.noise}", "pass numbers above 0")
    columns, width = _head(model)
    width += 1
    encoded = 0 if prior is None else _head(prior)[1]
    optimiser = adam(b2=0.99)

    def init(params: Params) -> State:
        generator = torch.Generator().manual_seed(cfg.seed)
        theta = stack(
            [first(params if i == 0 else _shuffled(params, generator), generator) for i in range(cfg.members)]
        )
        return State(theta, optimiser.init(theta))

    def first(params: Params, generator: torch.Generator) -> Tree:
        like = next(iter(params.values()))
        mean = torch.randn(cfg.components, columns, width, generator=generator) * 0.3 / width**0.5
        factor = torch.randn(width, cfg.rank, generator=generator) * 0.3 * cfg.spread / width
        return {
            "features": _body(params),
            "descriptor": {} if prior is None else tree_map(lambda leaf: leaf.to(like), _body(prior.params)),
            "prior": {
                "mean": mean.to(like),
                "shift": like.new_zeros(encoded, columns, width),
                "gate": like.new_zeros(encoded, cfg.components),
                "share": like.new_zeros(cfg.components),
                "log_scale": torch.full_like(mean[0, 0], cfg.spread / width**0.5).log().to(like),
                "factor": factor.to(like),
                "log_noise": torch.tensor(cfg.noise).log().to(like),
            },
        }

    def features(theta: Tree, x: Tree) -> Tensor:
        f = model.features(theta["features"], x)
        return torch.cat([f, torch.ones_like(f[..., :1])], -1)

    def root(theta: Tree, f: Tensor) -> Tensor:
        return in_units(f, theta["prior"]["log_scale"], theta["prior"]["factor"])

    def noise(theta: Tree) -> Tensor:
        variance: Tensor = FLOOR + (2 * theta["prior"]["log_noise"]).exp()
        return variance

    def believe(theta: Tree, descriptor: Tree) -> tuple[Tensor, Tensor]:
        """log pi [..., k] and means [..., k, c, d]."""
        own = theta["prior"]
        if prior is None:
            return torch.log_softmax(own["share"], -1), own["mean"]
        h = prior.features(theta["descriptor"], descriptor)
        shift = (h @ own["shift"].flatten(1)).reshape(*h.shape[:-1], 1, columns, width)
        return torch.log_softmax(own["share"] + h @ own["gate"], -1), own["mean"] + shift

    def residuals(f: Tensor, mean: Tensor, y: Tensor) -> Tensor:
        """[..., n, k c] of the targets, for each component and class."""
        fitted = f @ mean.flatten(-3, -2).mT
        return _targets(likelihood, y, columns).repeat(*(1,) * y.dim(), cfg.components) - fitted

    def components(found: Tensor) -> Tensor:
        """[..., k c] -> [..., k]: classes are independent given the component."""
        return found.reshape(*found.shape[:-1], cfg.components, columns).sum(-1)

    def each(one: Callable[..., T], *trees: Tree) -> T:
        """`one` for each member. A loop: there are few, and an exporter cannot look into vmap."""
        stacked: T = stack([one(*take(trees, i)) for i in range(cfg.members)])
        return stacked

    def start(state: State, descriptor: Tree) -> Inner:
        def one(theta: Tree) -> Inner:
            logit, mean = believe(theta, descriptor)
            return Inner(logit, mean, nothing(width + cfg.rank, cfg.components * columns, mean))

        return each(one, state.theta)

    def step(state: State, inner: Inner, batch: Batch, noise_: Tree) -> Inner:
        def one(theta: Tree, inner: Inner) -> Inner:
            f = features(theta, batch.x)
            r = residuals(f, inner.mean, batch.y)
            return inner._replace(seen=observe(inner.seen, root(theta, f), r, batch.w * batch.mask, noise(theta)))

        return each(one, state.theta, inner)

    def finish(state: State, inner: Inner, batch: Batch) -> Adapted:
        def one(theta: Tree, inner: Inner) -> Adapted:
            found = posterior(inner.seen)
            own = theta["prior"]
            spread = torch.cat([torch.diag_embed(own["log_scale"].exp()), own["factor"]], -1)  # R
            moved = inner.mean + (spread @ found.mean).mT.reshape(inner.mean.shape)
            weight = torch.softmax(inner.logit + components(log_normal(found.fit)), -1)
            return Adapted(weight, moved, found.root @ spread.mT)

        return each(one, state.theta, inner)

    def predict(state: State, adapted: Adapted, x: Tree, noise_: Tree) -> Prediction:
        def one(theta: Tree, adapted: Adapted) -> tuple[Tensor, Tensor]:
            f = features(theta, x)
            mean, between = _moments(torch.einsum("nd,kcd->knc", f, adapted.mean), adapted.weight)
            within = ((f @ adapted.root.mT) ** 2).sum(-1, keepdim=True) + noise(theta)
            return mean, within + between

        means, variances = each(one, state.theta, adapted)
        equal = torch.full_like(means[:, 0, 0], 1 / cfg.members)
        mean, between = _moments(means, equal)
        return _predicted(likelihood, mean, _moments(variances, equal)[0] + between, cfg.clip)

    def log_density(theta: Tree, tasks: Task) -> Tensor:
        """The objective of one member, without its sign, summed over a stack of tasks."""
        logit, mean = believe(theta, tasks.descriptor)

        def density(batch: Batch) -> Tensor:
            # all tasks' rows in one call: a network sees rows, not tasks
            flat = tree_map(lambda leaf: leaf.flatten(0, 1), batch.x)
            f = features(theta, flat).reshape(*batch.y.shape, width)
            found = log_normal(fit_of(root(theta, f), residuals(f, mean, batch.y), batch.w * batch.mask, noise(theta)))
            return torch.logsumexp(logit + components(found), -1).sum()

        total = density(tree_map(lambda a, b: torch.cat([a, b], 1), tasks.support, tasks.query))
        return total if cfg.evidence == 1 else total - (1 - cfg.evidence) * density(tasks.support)

    descent = stage.run(grad_and_value(lambda theta, tasks: -vmap(log_density, (0, None))(theta, tasks).sum()))

    def meta_grad(state: State, tasks: Task, noise_: Tree) -> tuple[Delta, Info]:
        grads, value = descent(state.theta, tasks)
        return Delta(grads), Info(value / cfg.members)

    def update(state: State, delta: Delta, count: Tensor) -> State:
        rate: Any = cfg.outer_lr * cosine(state.opt.done, cfg.outer_decay)
        grads = vmap(lambda own: clipped(own, count, CLIP))(delta.grad)
        theta, opt = optimiser.update(state.theta, grads, state.opt, rate)
        for name in ("features", "descriptor"):
            theta[name] = descend(theta[name], state.theta[name], rate * cfg.weight_decay)
        return State(theta, opt)

    return Learner(init, start, step, finish, predict, meta_grad, update)


def _moments(each: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance [n, c] over what each [k, n, c] says."""
    mean = torch.einsum("k,knc->nc", weight, each)
    return mean, torch.einsum("k,knc->nc", weight, (each - mean) ** 2)


def _head(model: Model) -> tuple[int, int]:
    """Outputs and inputs of the last layer."""
    if "head.weight" not in model.params:
        found = ", ".join(model.params) or "no parameters"
        raise InputError("a network whose last linear layer is named `head`", found, "name it so")
    outputs, inputs = model.params["head.weight"].shape
    return outputs, inputs


def _body(params: Params) -> Params:
    return {name: value for name, value in params.items() if not name.startswith("head.")}


def _shuffled(params: Params, generator: torch.Generator) -> Params:
    """Another draw of the first parameters: the entries of every row in random order."""

    def shuffle(leaf: Tensor) -> Tensor:
        rows = leaf.reshape(len(leaf) if leaf.dim() > 1 else 1, -1)
        order = torch.rand(rows.shape, generator=generator).argsort(1).to(leaf.device)
        return rows.gather(1, order).reshape(leaf.shape)

    return {name: shuffle(leaf) for name, leaf in params.items()}


def _targets(likelihood: Likelihood, y: Tensor, columns: int) -> Tensor:
    """[..., n, c] the numbers to regress on."""
    if likelihood.name == "multiclass":
        return of_class(y, columns).to(torch.get_default_dtype())
    return (2 * y - 1 if likelihood.name == "binary" else y).unsqueeze(-1)


def _predicted(likelihood: Likelihood, mean: Tensor, variance: Tensor, clip: float) -> Prediction:
    if likelihood.name == "multiclass":
        p = mean.clamp(clip, 1 - clip)
        return Prediction(p / p.sum(-1, keepdim=True))
    mean, variance = mean.squeeze(-1), variance.squeeze(-1)
    if likelihood.name == "binary":
        p = ((1 + mean) / 2).clamp(clip, 1 - clip)
        return Prediction(p, p * (1 - p))
    return Prediction(mean, variance)
