"""AT-PAML: PAML whose rates are also those of similar users, who are looked up in a memory.

    rate_t = own_t + sum_k s_k rate_k / (sum_k s_k + floor),      s_k = exp(-sharpness ||h_t - h_k||^2)
    own_t  = rate * sigmoid(MLP(h_t)),             h_t: what the model makes of the descriptor

over the `neighbours` nearest entries (h_k, rate_k) of other users. After an update its users are written to the
memory, where the least recently used entry leaves; the entries are trained too. While it warms up, all users have
one rate. Yu et al., 2021, Algorithms 1 and 2. Differs from the paper: see docs/methods/at_paml.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from warmstart.core import Batch, InputError, Learner, Likelihood, Model, Params, Task, Tree
from warmstart.core.trees import Rows
from warmstart.engine.stage import PLAIN, Stage
from warmstart.maths.descent import finish
from warmstart.maths.memory import (
    EMPTY,
    Memory,
    check_search,
    empty_memory,
    entries,
    kernel_mean,
    look,
    nearest,
    posted,
    remember,
)
from warmstart.maths.optim import AdamState
from warmstart.maths.outer import Delta as OuterDelta
from warmstart.maths.outer import State as OuterState
from warmstart.maths.outer import outer
from warmstart.maths.rated import Info, Inner, first_rates, rate_of, rated


@dataclass(frozen=True)
class Config:
    memory: int = 10_000  # entries
    ways: int = 16  # entries that a user's may take the place of: those of keys with the same remainder
    neighbours: int = 20  # K; the paper's table has 20 and 5
    sharpness: float = 2.0  # delta
    floor: float = 1e-5  # sigma
    search: str = "exact"  # or tree or faiss, which a CUDA graph cannot hold
    warm_up: int = 100  # updates; the paper's is one epoch
    warm_rate: float = 0.03  # of all users in the meantime
    memory_lr: float = 1e-3  # of the entries' own descent
    compound: bool = False  # remember the whole rate, as in the paper, not what a user adds to the neighbours'
    rate: float = 0.1  # the largest that a user's own part can be; the paper's 0.001 is far from what helps
    rate_hidden: tuple[int, ...] = (64, 32)  # layers of its network
    inner_steps: int = 1  # of training and of adaptation
    shrink: float = 0.0  # rows' worth of staying where all users start; 0 is the paper's
    outer_lr: float = 1e-3
    outer_decay: int = 0  # updates over which outer_lr falls to zero; 0 keeps it
    weight_decay: float = 0.0
    seed: int = 0  # of the first weights of the rate's network


SPACE: dict[str, list[Any]] = {
    "neighbours": [5, 20],
    "sharpness": [0.5, 2.0],
    "rate": [0.03, 0.1, 0.3],
    "inner_steps": [1, 3, 5],
    "outer_lr": [1e-3, 3e-3],
    "shrink": [4.0, 8.0, 16.0],
    "weight_decay": [0.0, 0.1, 0.3],
}


class State(NamedTuple):
    theta: Tree  # parameters under `params`, those of the rate's network under `rates`
    opt: AdamState
    memory: Memory


class Delta(NamedTuple):
    grad: Tree  # summed over tasks, shaped like theta
    near: Rows  # [m, d + 2] gradient of the entries, and how often one was a neighbour
    inbox: Rows  # users by the remainder of their key, as they are posted


def build(model: Model, likelihood: Likelihood, cfg: Config = Config(), stage: Stage = PLAIN) -> Learner:
    """A model that does not describe tasks makes all users alike."""
    check_search(cfg.search)
    if min(cfg.neighbours, cfg.ways, cfg.memory) < 1 or cfg.memory % cfg.ways:
        got = f"{cfg.neighbours}, {cfg.memory} and {cfg.ways}"
        raise InputError("at least one neighbour, and a memory that is a multiple of its ways", got, "change them")
    sets = cfg.memory // cfg.ways
    inner_loop = rated(model, likelihood, cfg.inner_steps, cfg.shrink)
    out = outer(cfg.outer_lr, cfg.outer_decay, cfg.weight_decay)

    def init(params: Params) -> State:
        like = next(iter(params.values()))
        rates = first_rates(model.width, cfg.rate_hidden, like, cfg.seed)
        first = out.init({"params": params, "rates": rates})
        return State(*first, empty_memory(cfg.memory, model.width, like))

    def rate(theta: Tree, h: Tensor, others: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
        """The rate, and the part of it that is the user's own."""
        own, warm = rate_of(theta["rates"], h, cfg.rate), done < cfg.warm_up
        return (own + others).masked_fill(warm, cfg.warm_rate), own.masked_fill(warm, cfg.warm_rate)

    def start(state: State, descriptor: Tree) -> Inner:
        """A new user is nobody in the memory."""
        h, memory = model.describe(state.theta["params"], descriptor), state.memory
        nobody = torch.full(h.shape[:-1], EMPTY, dtype=torch.long, device=h.device)
        place, real = nearest(memory, h, nobody, cfg.neighbours, cfg.search)
        others = kernel_mean(h, *entries(memory, place), real, cfg.sharpness, cfg.floor)
        found, _ = rate(state.theta, h, others, state.opt.done)
        return Inner(model.split(state.theta["params"])[0], found)

    def step(state: State, inner: Inner, batch: Batch, noise: Tree) -> Inner:
        return inner_loop.step(state.theta["params"], inner, batch)

    def predict(state: State, adapted: Params, x: Tree, noise: Tree) -> Any:
        return inner_loop.predict(state.theta["params"], adapted, x)

    def gradients(theta: Tree, memory: Memory, done: Tensor, tasks: Task) -> tuple[Delta, Info]:
        at = model.describe(theta["params"], tasks.descriptor)
        seen = look(memory, at, tasks.key, cfg.neighbours, cfg.sharpness, cfg.floor, cfg.search)

        def total(theta: Tree, others: Tensor) -> tuple[Tensor, Any]:
            h = model.describe(theta["params"], tasks.descriptor)
            rates, own = rate(theta, h, others + ((h - at) * seen.by_query).sum(-1), done)
            loss, _ = inner_loop.episodes(theta["params"], rates, tasks)
            return loss.sum(), (rates, rates if cfg.compound else own)

        differentiated = grad_and_value(total, argnums=(0, 1), has_aux=True)
        (grads, slope), (loss, (rates, kept)) = differentiated(theta, seen.mean)
        row = torch.cat([slope[:, None, None] * seen.by_entry, seen.near.real.unsqueeze(-1)], -1)
        used = Rows(seen.near.place.flatten(), row.flatten(0, -2), at.new_empty(cfg.memory, 0))
        return Delta(grads, used, posted(tasks.key, at, kept, sets)), Info(loss, rates.sum())

    judged = stage.run(gradients)

    def meta_grad(state: State, tasks: Task, noise: Tree) -> tuple[Delta, Info]:
        found: tuple[Delta, Info] = judged(state.theta, state.memory, state.opt.done, tasks)
        return found

    def update(state: State, delta: Delta, count: Tensor) -> State:
        new = out.update(OuterState(state.theta, state.opt), OuterDelta(delta.grad), count)
        rate = cfg.memory_lr / count
        return State(*new, remember(state.memory, delta.inbox, new.opt.done, delta.near, rate))

    return Learner(
        init, start, step, finish, predict, meta_grad, update, steps=cfg.inner_steps, capturable=cfg.search == "exact"
    )
