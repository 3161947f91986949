"""A mean-field Gaussian prior over all parameters as what is learned, and adaptation by variational inference from it.

What the learners share that differ only in their meta-gradient: theta = {"mean": ..., "log_sd": ...}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Batch, InputError, Likelihood, Model, Noise, Params, Prediction, Task, Tree
from warmstart.core.trees import expand, tree_map
from warmstart.maths.mean_field import Gaussian, around, bounded, draw
from warmstart.maths.outer import Outer, State
from warmstart.maths.predictive import predictive
from warmstart.maths.variational import Inference, Inner, shapes


class Prior(NamedTuple):
    """What a learner takes as it is; `descend` and `onward` are its inner steps for the engine."""

    init: Callable[[Params], State]
    start: Callable[[State, Tree], Inner]
    step: Callable[[State, Inner, Batch, Tree], Inner]
    finish: Callable[[State, Inner, Batch], Gaussian]
    predict: Callable[[State, Gaussian, Tree, Tree], Prediction]
    first: Callable[[Gaussian, int], Inner]  # where a stack of tasks begins
    afresh: Callable[[Gaussian, Gaussian], tuple[Gaussian, Inner]]  # prior, q [t] -> where inference from q begins
    descend: Callable[[Gaussian, Inner, Batch, Tree], Inner]  # the anchor is the prior, which tasks share
    onward: Callable[[Tree, Any, Batch, Tree], Any]  # the anchor is the task's own, the first of (anchor, Inner)


def learned_prior(
    model: Model, likelihood: Likelihood, infer: Inference, out: Outer, *, sd: float, rate: float, noise: float
) -> Prior:
    """`rate` is that of the inner steps, `noise` the standard deviation of a row."""
    all_fast(model)

    def init(params: Params) -> State:
        return out.init(as_theta(around(params, sd)))

    def start(state: State, descriptor: Tree) -> Inner:
        return infer.start(prior_of(state.theta))

    def step(state: State, inner: Inner, batch: Batch, drawn: Tree) -> Inner:
        return descend(prior_of(state.theta), inner, batch, drawn)

    def finish(state: State, inner: Inner, batch: Batch) -> Gaussian:
        return inner.q

    def predict(state: State, adapted: Gaussian, x: Tree, drawn: Tree) -> Prediction:
        return predictive(model, likelihood, draw(adapted, drawn), x, noise)

    def first(prior: Gaussian, count: int) -> Inner:
        begin: Inner = expand(infer.start(prior), count)
        return begin

    def afresh(prior: Gaussian, q: Gaussian) -> tuple[Gaussian, Inner]:
        count = len(next(iter(q.mean.values())))
        return q, Inner(q, expand(infer.start(prior).opt, count))

    def descend(prior: Gaussian, inner: Inner, batch: Batch, drawn: Tree) -> Inner:
        return _at_rest(prior, inner, infer.step(prior, inner, batch, drawn, rate))

    def onward(nothing: Tree, own: tuple[Gaussian, Inner], batch: Batch, drawn: Tree) -> tuple[Gaussian, Inner]:
        anchor, inner = own
        return anchor, _at_rest(anchor, inner, infer.step(anchor, inner, batch, drawn, rate))

    return Prior(init, start, step, finish, predict, first, afresh, descend, onward)


def _at_rest(anchor: Gaussian, before: Inner, after: Inner) -> Inner:
    """Entries that lie at the anchor and stay there go where the anchor goes.

    It changes no value. The derivative says the same as the sum over anchor and start, but Adam's slope at a
    gradient of exactly zero is 1 / eps, and two such numbers do not cancel in floating point.
    """

    def one(new: Tensor, old: Tensor, anchor: Tensor) -> Tensor:
        return torch.where((new == old) & (old == anchor), old, new)

    return Inner(tree_map(one, after.q, before.q, anchor), after.opt)


def all_fast(model: Model) -> None:
    if len(model.fast) != len(model.params):
        raise InputError("a model whose parameters are all fast", "some slow ones", "use maml for a fast/slow split")


def prior_of(theta: Tree) -> Gaussian:
    return bounded(Gaussian(theta["mean"], theta["log_sd"]))


def as_theta(q: Gaussian) -> Tree:
    return {"mean": q.mean, "log_sd": q.log_sd}


def asked(params: Params, samples: int, predictions: int, train: Tree) -> Noise:
    """The noise of a learner whose inner step takes `samples` draws and whose prediction takes `predictions`."""
    return Noise(train, shapes(params, samples), shapes(params, predictions))


def steps_first(noise: Tree) -> Tree:
    """Noise [t, steps, ...] of a stack of tasks as the inner loop takes it, [steps, t, ...]."""
    return tree_map(lambda leaf: leaf.transpose(0, 1), noise)


def all_rows(tasks: Task) -> Batch:
    """Support and query rows of a stack of tasks together."""
    rows: Batch = tree_map(lambda s, q: torch.cat([s, q], 1), tasks.support, tasks.query)
    return rows
