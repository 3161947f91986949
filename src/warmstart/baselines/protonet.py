"""Prototypical networks: features in which a class is the mean of its support rows.

    c_k = mean of f(x) over the support rows of class k
    p(y = k | x) = softmax_k(-|f(x) - c_k|^2)
    theta <- theta - outer_lr * grad_theta sum_t L(theta; c_t, query_t)

Nothing but the sums of features by class is kept of a task, so later support rows are one more step. The
classes of a task may be fewer than `classes`, and other in training than at test.

Snell, Swersky and Zemel, 2017. Differs from the paper: see docs/methods/protonet.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.func import grad_and_value

from warmstart.baselines.centroids import Sums, among_seen, cross_entropy, means, nearness, nothing, observe
from warmstart.core import Batch, InputError, Learner, Model, Params, Prediction, Task, Tree
from warmstart.engine.stage import PLAIN, Stage, over_tasks
from warmstart.maths.outer import Delta, Info, State, outer


@dataclass(frozen=True)
class Config:
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0


SPACE: dict[str, list[Any]] = {
    "outer_lr": [3e-4, 1e-3, 3e-3],
    "weight_decay": [0.0, 1e-3, 1e-2],
}


class Prototypes(NamedTuple):
    mean: Tensor  # [classes, d]
    seen: Tensor  # [classes] whether a class showed a row


def build(model: Model, classes: int, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    if classes < 2:
        raise InputError("at least two classes", f"{classes}", "pass the most classes that a task has")
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)

    def begin(theta: Params) -> Sums:
        return nothing(classes, next(iter(theta.values())))

    def add_rows(theta: Params, inner: Sums, batch: Batch) -> Sums:
        return observe(inner, model.features(theta, batch.x), batch)

    def settle(inner: Sums) -> Prototypes:
        return Prototypes(means(inner), inner.weight > 0)

    def scores(theta: Params, adapted: Prototypes, x: Tree) -> Tensor:
        return among_seen(nearness(model.features(theta, x), adapted.mean), adapted.seen)

    def start(state: State, descriptor: Tree) -> Sums:
        return begin(state.theta)

    def step(state: State, inner: Sums, batch: Batch, noise: Tree) -> Sums:
        return add_rows(state.theta, inner, batch)

    def finish(state: State, inner: Sums, batch: Batch) -> Prototypes:
        return settle(inner)

    def predict(state: State, adapted: Prototypes, x: Tree, noise: Tree) -> Prediction:
        return Prediction(scores(state.theta, adapted, x).softmax(-1))

    def judge(theta: Params, support: Batch, query: Batch) -> Tensor:
        adapted = settle(add_rows(theta, begin(theta), support))
        return cross_entropy(scores(theta, adapted, query.x), query)

    def together(theta: Params, support: Batch, query: Batch) -> Tensor:
        total: Tensor = over_tasks(judge)(theta, support, query).sum()
        return total

    joint = stage.run(grad_and_value(together))

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        grads, value = joint(state.theta, tasks.support, tasks.query)
        return Delta(grads), Info(value)

    return Learner(out.init, start, step, finish, predict, meta_grad, out.update)
