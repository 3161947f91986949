"""PAML: MAML whose learning rate is the user's own, a function of the user's embedding.

    rate_t = rate * sigmoid(MLP(h_t)),             h_t: what the model makes of the descriptor
    phi_t = theta - rate_t * grad L(theta; support_t)          (fast parameters, inner_steps times)
    (theta, MLP) <- (theta, MLP) - outer_lr * grad sum_t L(phi_t; query_t)

Yu, Gong, He, An, Zhu, Liu and Ou, 2021. Differs from the paper: see docs/methods/paml.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.func import grad_and_value

from warmstart.core import Batch, Learner, Likelihood, Model, Params, Task, Tree
from warmstart.engine.stage import PLAIN, Stage
from warmstart.maths.descent import finish
from warmstart.maths.outer import Delta, State, outer
from warmstart.maths.rated import Info, Inner, first_rates, rate_of, rated


@dataclass(frozen=True)
class Config:
    rate: float = 0.1  # the largest a user's can be; the paper's 0.001 is far from what helps
    rate_hidden: tuple[int, ...] = (64, 32)  # layers of its network
    inner_steps: int = 1  # of training and of adaptation
    shrink: float = 0.0  # rows' worth of staying where all users start; 0 is the paper's
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0
    seed: int = 0  # of the first weights of the rate's network


SPACE: dict[str, list[Any]] = {
    "rate": [0.03, 0.1, 0.3],
    "inner_steps": [1, 3, 5],
    "outer_lr": [1e-3, 3e-3],
    "shrink": [4.0, 8.0, 16.0],
    "weight_decay": [0.0, 0.1, 0.3],
}


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    """A model that does not describe tasks gives all of them the same, learned, rate."""
    inner_loop = rated(model, likelihood, cfg.inner_steps, cfg.shrink)
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)

    def init(params: Params) -> State:
        """theta holds the parameters under `params` and those of the rate's network under `rates`."""
        rates = first_rates(model.width, cfg.rate_hidden, next(iter(params.values())), cfg.seed)
        return out.init({"params": params, "rates": rates})

    def rate(theta: Tree, descriptor: Tree) -> Tensor:
        return rate_of(theta["rates"], model.describe(theta["params"], descriptor), cfg.rate)

    def start(state: State, descriptor: Tree) -> Inner:
        return Inner(model.split(state.theta["params"])[0], rate(state.theta, descriptor))

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return inner_loop.step(state.theta["params"], inner, batch)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        return inner_loop.predict(state.theta["params"], adapted, x)

    def total(theta: Tree, tasks: Task) -> tuple[Tensor, Tensor]:
        rates = rate(theta, tasks.descriptor)
        loss, _ = inner_loop.episodes(theta["params"], rates, tasks)
        return loss.sum(), rates.sum()

    judged = stage.run(grad_and_value(total, has_aux=True))

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        grads, (value, rates) = judged(state.theta, tasks)
        return Delta(grads), Info(value, rates)

    return Learner(init, start, step, finish, predict, meta_grad, out.update, steps=cfg.inner_steps)
