"""A mean-field Gaussian prior over all parameters as what is learned, and adaptation by variational inference from it.

What the learners share that differ only in their meta-gradient: theta = {"mean": [d], "log_sd": [d]}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Batch, InputError, Likelihood, Model, Noise, Params, Prediction, Task, Tree
from warmstart.core.trees import expand, tree_map, unpack
from warmstart.maths.expectation import size
from warmstart.maths.mean_field import LEAST, MOST, Gaussian, around, bounded, draw
from warmstart.maths.outer import Outer, State
from warmstart.maths.predictive import predictive
from warmstart.maths.variational import Inference, Inner


class Prior(NamedTuple):
    """What a learner takes as it is; `descend` and `onward` are its inner steps for the engine."""

    start: Callable[[State, Tree], Inner]
    step: Callable[[State, Inner, Batch, Tree], Inner]
    finish: Callable[[State, Inner, Batch], Any]  # the posterior, or what else a prediction needs of it
    predict: Callable[[State, Any, Tree, Tree], Prediction]
    first: Callable[[Gaussian, int], Inner]  # where a stack of tasks begins
    afresh: Callable[[Gaussian, Gaussian], tuple[Gaussian, Inner]]  # prior, q [t] -> where inference from q begins
    descend: Callable[[Gaussian, Inner, Batch, Tree], Inner]  # the anchor is the prior, which tasks share
    onward: Callable[[Tree, Any, Batch, Tree], Any]  # the anchor is the task's own, the first of (anchor, Inner)


class Told(NamedTuple):
    loss: Tensor  # summed over tasks
    clamped: Tensor  # the share of a task's standard deviations that are held at a bound, summed over tasks


def told(loss: Tensor, *log_sd: Tensor) -> Told:
    """What a meta-update says of widths [t, ..., d]: where variances collapse or overflow, this is not 0."""
    widths = torch.cat([part.flatten(1) for part in log_sd], 1)
    return Told(loss, ((widths <= LEAST) | (widths >= MOST)).to(loss.dtype).mean(1).sum(0))


def learned_prior(
    model: Model, likelihood: Likelihood, infer: Inference, *, rate: float, noise: float, unrolled: bool = True
) -> Prior:
    """`rate` is that of the inner steps, `noise` the standard deviation of a row; `unrolled` where the steps are
    differentiated."""
    rest = _at_rest if unrolled else lambda anchor, before, after: after

    def start(state: State, descriptor: Tree) -> Inner:
        return infer.start(prior_of(state.theta))

    def step(state: State, inner: Inner, batch: Batch, drawn: Tree) -> Inner:
        return descend(prior_of(state.theta), inner, batch, drawn)

    def finish(state: State, inner: Inner, batch: Batch) -> Gaussian:
        return inner.q

    def predict(state: State, adapted: Gaussian, x: Tree, drawn: Tree) -> Prediction:
        return predictive(model, likelihood, unpack(draw(adapted, drawn), model.params), x, noise)

    def first(prior: Gaussian, count: int) -> Inner:
        begin: Inner = expand(infer.start(prior), count)
        return begin

    def afresh(prior: Gaussian, q: Gaussian) -> tuple[Gaussian, Inner]:
        return q, Inner(q, expand(infer.start(prior).opt, len(q.mean)))

    def descend(prior: Gaussian, inner: Inner, batch: Batch, drawn: Tree) -> Inner:
        return rest(prior, inner, infer.step(prior, inner, batch, drawn, rate))

    def onward(nothing: Tree, own: tuple[Gaussian, Inner], batch: Batch, drawn: Tree) -> tuple[Gaussian, Inner]:
        anchor, inner = own
        return anchor, rest(anchor, inner, infer.step(anchor, inner, batch, drawn, rate))

    return Prior(start, step, finish, predict, first, afresh, descend, onward)


def _at_rest(anchor: Gaussian, before: Inner, after: Inner) -> Inner:
    """Entries that lie at the anchor and stay there go where the anchor goes.

    It changes no value. The derivative says the same as the sum over anchor and start, but Adam's slope at a
    gradient of exactly zero is 1 / eps, and two such numbers do not cancel in floating point.
    """

    def one(new: Tensor, old: Tensor, anchor: Tensor) -> Tensor:
        return torch.where((new == old) & (old == anchor), old, new)

    return Inner(tree_map(one, after.q, before.q, anchor), after.opt)


def check(model: Model, kl_weight: float, **values: float) -> None:
    """What all these learners ask of a model and of their numbers; a prior may weigh nothing."""
    if len(model.fast) != len(model.params):
        raise InputError("a model whose parameters are all fast", "some slow ones", "use maml for a fast/slow split")
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise InputError(f"a positive {name}", f"{value}", "pass a finite number above 0")
    if not 0 <= kl_weight < float("inf"):
        raise InputError("a kl_weight of at least 0", f"{kl_weight}", "pass a finite number that is not negative")


def first_prior(out: Outer, sd: float, head_sd: float = 0.0) -> Callable[[Params], State]:
    """`init`: the given parameters with the same spread everywhere, or with another one in the last layer, `head`."""

    def init(params: Params) -> State:
        spreads = {name: head_sd if head_sd and name.startswith("head.") else sd for name in params}
        parts = [around(value.reshape(-1), spreads[name]) for name, value in params.items()]
        return out.init(as_theta(Gaussian(*(torch.cat(leaves) for leaves in zip(*parts, strict=True)))))

    return init


def prior_of(theta: Tree) -> Gaussian:
    return bounded(Gaussian(theta["mean"], theta["log_sd"]))


def as_theta(q: Gaussian) -> Tree:
    return {"mean": q.mean, "log_sd": q.log_sd}


def asked(model: Model, infer: Inference, samples: int, predictions: int, train: Tree) -> Noise:
    """The noise of a learner whose inner step takes `samples` draws and whose prediction takes `predictions`."""
    return Noise(train, infer.noise(samples), torch.Size((predictions, size(model))))


def steps_first(noise: Tree) -> Tree:
    """Noise [t, steps, ...] of a stack of tasks as the inner loop takes it, [steps, t, ...]."""
    return tree_map(lambda leaf: leaf.transpose(0, 1), noise)


def all_rows(tasks: Task) -> Batch:
    """Support and query rows of a stack of tasks together."""
    rows: Batch = tree_map(lambda s, q: torch.cat([s, q], 1), tasks.support, tasks.query)
    return rows
