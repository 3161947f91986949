"""GEM-BML: a Gaussian prior over parameters, learned from posteriors alone, without differentiating the inner loop.

    q1 = VI(prior, support),    q2 = VI(q1, query)  or  VI(prior, support and query)
    GEM-BML,  the marginal likelihood of all rows:          g = E_q2 grad log prior
    GEM-BML+, the likelihood of query rows given support:   g = E_q2 grad log prior - E_q1 grad log prior

By the gradient-EM theorem g is the gradient of the objective when the posteriors are exact. For mean-field
Gaussians it is in closed form (`maths.mean_field.expected_score`), so a meta-update needs posteriors, not data:
`local_posterior` is what a client computes, `merge_posteriors` what a server does with what it is sent.

`learners.gem_head` has a prior over the last layer alone, where posteriors are exact.

Zou and Lu, 2020. Differs from the paper: see docs/methods/gem.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.core import Batch, InputError, Learner, Likelihood, Model, Noise, Task, Tree
from warmstart.core.trees import leaves, named_leaves, pack, sum_tasks, take, tree_map
from warmstart.engine.stage import PLAIN, Stage
from warmstart.engine.unroll import last
from warmstart.maths.inferred import inferred
from warmstart.maths.mean_field import Gaussian, expected_score
from warmstart.maths.outer import Delta, State, outer
from warmstart.maths.prior import (
    Told,
    all_rows,
    as_theta,
    asked,
    check,
    first_prior,
    prior_of,
    steps_first,
    told,
)
from warmstart.maths.variational import Inference


@dataclass(frozen=True)
class Config:
    plus: bool = True  # the likelihood of the query given the support; False: the marginal likelihood of all rows
    joint: bool = False  # q2 from all rows at once instead of from q1 and the query rows
    natural: bool = True  # times the inverse Fisher matrix of the prior: steps in units of its own width
    inner: str = "sgd"  # momentum or adam; or newton, of `maths.newton`, which needs neither the next two nor draws
    inner_lr: float = 1e-3
    per_row: bool = False  # divide inner_lr by the weight of the rows: a step is along their mean, not their sum
    inner_steps: int = 5  # of each posterior in training
    test_steps: int = 10  # of adaptation, unless the caller says otherwise
    samples: int = 5  # draws in an inner step
    rounds: int = (
        5  # steps of training that have draws of their own; later ones use them again, so memory does not grow
    )
    predictions: int = 20  # draws in a prediction
    estimator: str = "weights"  # local or flipout: noise of its own for every row, in `maths.expectation`
    kl_weight: float = 1.0  # of the prior in the inner loop
    noise: float = 0.5  # standard deviation of a row, for a squared likelihood
    sd: float = 0.1  # of the prior, at first
    head_sd: float = 0.0  # that of the last layer, where it is another
    widths: bool = True  # learn the prior's; by an inner loop that ends before it feels the prior they would only grow
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

    support: Gaussian  # [t, d]
    both: Gaussian
    prior: Tree = ()  # [t] `fingerprint` of the prior from which they were inferred


Local: TypeAlias = Callable[[State, Task, Tree], Posteriors]
Merge: TypeAlias = Callable[[State, Posteriors], Delta]


def local_posterior(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Local:
    """(State, stack of tasks, noise) -> Posteriors [t]: all that leaves a client."""
    check(model, cfg.kl_weight)
    infer = _local(model, likelihood, cfg, stage)

    def call(state: State, tasks: Task, noise: Tree) -> Posteriors:
        return infer(state, tasks, noise)._replace(prior=fingerprint(state).expand(len(tasks.key)))

    return call


def fingerprint(state: State) -> Tensor:
    """A number that tells this very prior from any other."""
    flat = pack(state.theta).detach().cpu().view(torch.uint8)
    return torch.tensor(int.from_bytes(blake2b(bytes(flat.numpy()), digest_size=8).digest(), signed=True))


def _local(model: Model, likelihood: Likelihood, cfg: Config, stage: Stage) -> Local:
    common = inferred(model, likelihood, cfg, cfg.per_row)[1]
    from_prior, from_posterior = last(common.descend, stage), last(common.onward, stage)

    def call(state: State, tasks: Task, noise: Tree) -> Posteriors:
        prior, steps = prior_of(state.theta), cfg.inner_steps
        support, query = steps_first(noise["support"]), steps_first(noise["query"])
        first = common.first(prior, len(tasks.key))
        shown: Gaussian = from_prior(prior, first, tasks.support, support, steps).q
        if cfg.joint:
            both: Gaussian = from_prior(prior, first, all_rows(tasks), query, steps).q
        else:
            both = from_posterior((), common.afresh(prior, shown), tasks.query, query, steps)[1].q
        return Posteriors(shown, both)

    return call


def merge_posteriors(cfg: Config = Config(), stage: Stage = PLAIN) -> Merge:
    """(State, Posteriors [t]) -> Delta, for the update: in closed form, summed over tasks. What was received is checked
    first; posteriors that do not tell theirs are taken to be of this prior."""
    merge = _merge(cfg, stage)

    def call(state: State, found: Posteriors) -> Delta:
        check_posteriors(state, found if leaves(found.prior) else found._replace(prior=fingerprint(state)))
        return merge(state, found)

    return call


def _merge(cfg: Config, stage: Stage) -> Merge:
    def one(prior: Gaussian, found: Posteriors) -> Gaussian:
        ascent = expected_score(found.both, prior)
        if cfg.plus:
            ascent = tree_map(torch.sub, ascent, expected_score(found.support, prior))
        if cfg.natural:
            ascent = Gaussian(ascent.mean * torch.exp(2 * prior.log_sd), ascent.log_sd / 2)
        return ascent if cfg.widths else ascent._replace(log_sd=torch.zeros_like(ascent.log_sd))

    stacked, total = stage.stack(one), stage.run(sum_tasks)

    def call(state: State, found: Posteriors) -> Delta:
        ascent: Gaussian = total(stacked(prior_of(state.theta), found))
        return Delta(as_theta(tree_map(torch.neg, ascent)))

    return call


def check_posteriors(state: State, found: Posteriors, name: str = "a posterior") -> None:
    """What a server asks before it merges: the prior's shapes, finite numbers, and that they are of this very prior."""
    expected, remedy = named_leaves(prior_of(state.theta)), "leave it out; the prior is untouched"
    count = {len(leaf) for part in found[:2] for leaf in leaves(part) if leaf.dim()}
    for part in (found.support, found.both):
        given = named_leaves(part)
        for key, leaf in expected.items():
            if key not in given or given[key].shape[1:] != leaf.shape:
                got = "none" if key not in given else str(list(given[key].shape))
                raise InputError(f"{key} of shape [tasks, {str(list(leaf.shape))[1:]} in {name}", got, remedy)
            if not bool(torch.isfinite(given[key]).all()):
                raise InputError(f"finite numbers in {name}", f"others in {key}", remedy)
    for part in (found.support, found.both):
        if not all(bool(torch.isfinite((2 * leaf).exp()).all()) for leaf in leaves(part.log_sd)):
            widest = max(float(leaf.max()) for leaf in leaves(part.log_sd))
            raise InputError(f"finite variances in {name}", f"a log standard deviation of {widest:g}", remedy)
    if len(count) > 1:
        got = " and ".join(map(str, sorted(count)))
        raise InputError(f"as many tasks in both posteriors of {name}", got, remedy)
    told = leaves(found.prior)
    others = sum(int((leaf != fingerprint(state).to(leaf.device)).sum()) for leaf in told)
    if others or not told:
        got = f"{others} of another prior or version" if told else "some that tell none"
        raise InputError(f"posteriors of this very prior in {name}", got, remedy)


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    counts = {name: getattr(cfg, name) for name in ("samples", "predictions", "inner_steps", "rounds")}
    check(model, cfg.kl_weight, noise=cfg.noise, sd=cfg.sd, head_sd=cfg.head_sd or cfg.sd, **counts)
    infer, common = inferred(model, likelihood, cfg, cfg.per_row)
    out = outer(cfg.outer_lr, cfg.outer_decay)
    local, merge = _local(model, likelihood, cfg, stage), _merge(cfg, stage)
    judged = stage.stack(_judge(infer))

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Told]:
        found = local(state, tasks, noise)
        drawn = take(noise["query"], (slice(None), 0))
        value = judged(prior_of(state.theta), found.support, tasks.support, tasks.query, drawn).sum(0)
        return merge(state, found), told(value, found.support.log_sd, found.both.log_sd)

    init, start, step, finish, predict = first_prior(out, cfg.sd, cfg.head_sd), *common[:4]
    noise = _noise(model, infer, cfg)
    return Learner(init, start, step, finish, predict, meta_grad, out.update, cfg.test_steps, noise)


def _judge(infer: Inference) -> Callable[[Gaussian, Gaussian, Batch, Batch, Tree], Tensor]:
    def one(prior: Gaussian, shown: Gaussian, support: Batch, query: Batch, noise: Tree) -> Tensor:
        """Minus the mean log likelihood of the query rows, as the support's posterior expects it."""
        weight = (query.w * query.mask).sum()
        return -infer.expect(shown, prior, support, query, noise) / torch.where(weight > 0, weight, 1.0)

    return one


def _noise(model: Model, infer: Inference, cfg: Config) -> Noise:
    train = {part: infer.noise(min(cfg.inner_steps, cfg.rounds), cfg.samples) for part in ("support", "query")}
    return asked(model, infer, cfg.samples, cfg.predictions, train)
