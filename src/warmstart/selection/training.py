"""Stacked training: hundreds of small models, each on its own mixture of tasks, as one program.

    share[m, t]     how much model m draws from task t;  task = the place of u1 in the sums of share[m]
    row             floor(u2 length[task]) of that task
    model m         <- Adam on the average loss of its rows

All models of a seed use the same uniform numbers u and the same start, so they differ by their tasks alone, and neither
the chunk nor the device changes what is drawn. On a GPU the update is captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from warmstart.core import Batch, Columns, InputError, Likelihood, Model, Params, Tree, functional, task_loss
from warmstart.core.trees import concat, expand, leaves, stack, take, to_device, tree_map
from warmstart.engine.capture import capture, own
from warmstart.engine.loop import NO_WATCH, Report, Watch, run, silent
from warmstart.engine.meta import chunks, in_turn
from warmstart.engine.noise import generator
from warmstart.engine.stage import TRACED, Stage
from warmstart.maths.optim import Optimiser, adam, cosine
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import seeded
from warmstart.models.one_hot import OneHotNet
from warmstart.models.transformer import Shape, TransformerNet
from warmstart.tasks.transfer import Transfer

LIKELIHOODS = {kind.name: kind for kind in (binary, multiclass, squared)}
TOGETHER = 20  # updates in one CUDA graph


@dataclass(frozen=True)
class Config:
    hidden: tuple[int, ...] = (32, 32)
    text: Shape | None = None  # a transformer over the words of a text, in place of hidden layers
    own_heads: bool = False  # a last layer for each task, or one for all
    steps: int = 500
    batch: int = 256
    lr: float = 0.01  # falls to zero along a cosine
    weight_decay: float = 0.01
    balance: float = 1.0  # a task is drawn in proportion to rows^balance: 1, every row alike; 0, every task alike
    chunk: int | None = None  # models at once; None: 25 on a CPU, 500 on a GPU, of transformers a fifth


class Drawn(NamedTuple):
    """A batch, and of each row the task and the group it came from."""

    rows: Batch
    task: Tensor
    group: Tensor


class Inner(NamedTuple):
    phi: Params
    opt: Any
    extra: Tree = ()  # what a method carries from step to step


class State(NamedTuple):
    inner: Inner  # [m, ...]
    done: Tensor  # steps


class Info(NamedTuple):
    loss: Tensor


Step: TypeAlias = Callable[[Tensor, Inner, Drawn], tuple[Inner, Tensor]]  # rate, one model, its rows -> model, loss


class Form(NamedTuple):
    """What a network is, apart from its parameters."""

    columns: Columns
    hidden: tuple[int, ...]
    outputs: int
    heads: int
    kind: str  # of target
    text: Shape | None = None


def form(transfer: Transfer, cfg: Config) -> Form:
    if transfer.apart and not cfg.own_heads:
        raise InputError("a head for each task, whose labels differ", "one for all", "pass Config(own_heads=True)")
    if cfg.text is not None and transfer.schema is not None:
        raise InputError("texts for a transformer", "a table, whose bags have no order", "use hidden layers")
    if cfg.text is None and transfer.ordered:
        remedy = "pass Config(text=Shape()) to every training, that of final.Config too"
        raise InputError("a transformer for words in their order", "hidden layers", remedy)
    heads = len(transfer.names) if cfg.own_heads else 1
    return Form(transfer.columns, tuple(cfg.hidden), transfer.outputs, heads, transfer.kind, cfg.text)


def network(transfer: Transfer, cfg: Config, seed: int) -> Model:
    """The shared encoder with one head or one for each task, initialised by the seed."""
    return make_network(form(transfer, cfg), seed)


def make_network(shape: Form, seed: int) -> Model:
    with seeded(seed):
        if shape.text is not None:
            return functional(TransformerNet(shape.columns, shape.text, shape.outputs, shape.heads))
        return functional(OneHotNet(shape.columns, shape.hidden, shape.outputs, shape.heads))


def parameters(shape: Form) -> Params:
    """[1, ...] as a stack of one such network has them."""
    found: Params = expand(make_network(shape, 0).params, 1)
    return found


@lru_cache(maxsize=16)
def _stacked(step: Callable[..., Step], shape: Form, decay: float, stage: Stage) -> Callable[..., Any]:
    """A step for a stack of models; kept, since recording one takes as long as dozens of them."""
    return stage.stack(step(make_network(shape, 0), LIKELIHOODS[shape.kind], adam(weight_decay=decay)))


def shares(transfer: Transfer, members: Tensor, balance: float = 1.0) -> Tensor:
    """[m, k + 1] from sets of sources [m, k]; the target is in every set."""
    whole = torch.cat([members, torch.ones_like(members[:, :1])], 1).to(torch.get_default_dtype())
    lengths = transfer.pool.lengths.to(whole)
    return whole * torch.where(lengths > 0, lengths**balance, torch.zeros_like(lengths))


class Mixture(NamedTuple):
    """What drawing tasks needs of shares [m, k + 1]."""

    sums: Tensor  # [m, k + 1] up to each task, of 1 in all
    last: Tensor  # [m, 1] the last task of each mixture: sums may end a rounding error below 1


def mixture(share: Tensor) -> Mixture:
    sums = share.cumsum(1) / share.sum(1, keepdim=True)
    return Mixture(sums, (share > 0).cumsum(1).argmax(1, keepdim=True))


def draw(transfer: Transfer, mixed: Mixture, u: Tensor) -> Drawn:
    """Rows for every model: u [2, b] or [2, 1, b], or [2, m, b] where each has numbers of its own -> [m, b]."""
    pool = transfer.pool
    task = torch.searchsorted(mixed.sums, u[0].expand(len(mixed.sums), -1).contiguous(), right=True)
    task = torch.minimum(task, mixed.last)
    lengths = pool.lengths[task]
    row = torch.minimum((u[1] * lengths).long(), lengths - 1)
    index = pool.offsets[task] + row
    flat = index.reshape(-1)  # whole rows are copied at once, which indexing by a matrix does not do
    x, y, w, group = tree_map(
        lambda leaf: leaf.index_select(0, flat).reshape(*index.shape, *leaf.shape[1:]),
        (pool.x, pool.y, pool.w, transfer.group),
    )
    ones = torch.ones_like(w)
    return Drawn(Batch({**x, "head": task}, y, w, ones), task, group)


def plain_step(model: Model, likelihood: Likelihood, optimiser: Optimiser) -> Step:
    """Adam on the average loss of the rows."""
    loss = task_loss(model, likelihood)

    def step(lr: Tensor, inner: Inner, drawn: Drawn) -> tuple[Inner, Tensor]:
        grads, value = grad_and_value(loss)(inner.phi, drawn.rows)
        phi, opt = optimiser.update(inner.phi, grads, inner.opt, lr)
        return inner._replace(phi=phi, opt=opt), value

    return step


def train_models(
    transfer: Transfer,
    share: Tensor,
    cfg: Config,
    seed: int | Sequence[int] = 0,
    *,
    start: Params | None = None,
    step: Callable[[Model, Likelihood, Optimiser], Step] = plain_step,
    extra: Tree = (),
    stage: Stage = TRACED,
    progress: Report = silent,
    look: Callable[[Params], None] | None = None,
    every: int | None = None,
) -> Params:
    """The parameters [m, ...] of one model for each row of `share` [m, k + 1], never more than a chunk at once.

    They start from `start` [m, ...], or all from the network of the seed, and draw rows by the same numbers; with m
    seeds each has its own. A method may bring a step of its own, and in `extra` [m, ...] what its step carries: state,
    or a setting for each model. `look` sees the models of a chunk every so many steps.
    """
    optimiser, device = adam(weight_decay=cfg.weight_decay), transfer.pool.y.device
    seeds = tuple(seed) if isinstance(seed, Sequence) else (seed,)
    if len(seeds) not in (1, len(share)):
        raise InputError("one seed, or one for each model", f"{len(seeds)} for {len(share)}", "pass as many as models")
    if start is None:
        first = to_device(stack([network(transfer, cfg, each).params for each in seeds]), device)
        start = tree_map(lambda leaf: leaf.expand(len(share), *leaf.shape[1:]), first)
    numbers = [torch.rand(cfg.steps, 2, cfg.batch, generator=generator(each, 7)) for each in seeds]
    uniform = torch.stack(numbers, 2).to(device)  # [steps, 2, 1 or m, batch]
    stacked = _stacked(step, form(transfer, cfg), cfg.weight_decay, stage)
    usual = (500 if device.type == "cuda" else 25) // (5 if cfg.text else 1)
    parts, done = chunks(len(share), cfg.chunk or usual), 0
    found = []
    for part in parts:

        def tell(steps: int, of: int, words: str, before: int = done) -> None:
            progress(before + steps, cfg.steps * len(parts), words)

        look_at = NO_WATCH if look is None else _watch(look)
        models, drawn = take((start, extra), part), uniform if len(seeds) == 1 else uniform[:, :, part]
        found.append(
            _train(stacked, transfer, models, share[part], drawn, cfg, optimiser, tell, look_at, every or cfg.steps)
        )
        done += cfg.steps
    result: Params = concat(found)
    return result


def _train(
    step: Callable[..., Any],
    transfer: Transfer,
    begin: tuple[Params, Tree],
    share: Tensor,
    uniform: Tensor,
    cfg: Config,
    optimiser: Optimiser,
    progress: Report,
    watch: Watch,
    every: int,
) -> Params:
    phi, extra = begin
    opt = vmap(optimiser.init)(phi)
    state = State(own(Inner(phi, opt, extra)), torch.zeros((), device=share.device))
    mixed = mixture(share)

    def update(state: State, u: Tensor) -> tuple[State, Info]:
        lr = cfg.lr * cosine(state.done, cfg.steps)
        inner, loss = step(lr, state.inner, draw(transfer, mixed, u))
        return State(inner, state.done + 1), Info(loss.mean())

    if not leaves(state)[0].is_cuda:
        last, _ = run(update, state, lambda i: uniform[i], cfg.steps, every=every, progress=progress, watch=watch)
        return last.inner.phi  # type: ignore[no-any-return]
    whole = cfg.steps // TOGETHER
    last = state
    if whole:
        captured = capture(in_turn(update, TOGETHER), state)
        blocks = uniform[: whole * TOGETHER].reshape(whole, TOGETHER, *uniform.shape[1:])
        last, _ = run(
            captured, state, lambda i: blocks[i], whole, every=max(1, every // TOGETHER), progress=progress, watch=watch
        )
    rest = uniform[whole * TOGETHER :]
    last, _ = run(update, last, lambda i: rest[i], len(rest), every=max(1, len(rest)))
    return last.inner.phi  # type: ignore[no-any-return]


def _watch(look: Callable[[Params], None]) -> Watch:
    def seen(memo: Tree, step: int, state: Any) -> tuple[Tree, bool, dict[str, float]]:
        look(state.inner.phi)
        return memo, False, {}

    return Watch((), seen)


def outputs(transfer: Transfer, cfg: Config, phi: Params, x: Tree, rows: int = 100_000) -> Tensor:
    """What every model says of target rows: [m, n, out]. `rows`, or words, bounds what is looked at together."""
    return outputs_of(form(transfer, cfg), transfer.sources, phi, x, rows)


def outputs_of(shape: Form, target: int, phi: Params, x: Tree, rows: int = 100_000) -> Tensor:
    """The same of networks of a form, where `target` is the number of the target among the tasks."""
    model = make_network(shape, 0)
    count = len(leaves(phi)[0])
    numbers = x["numeric"]
    head = torch.full(numbers.shape[:-1], target, dtype=torch.long, device=numbers.device)
    asked = {**x, "head": head}
    size = max(1, rows // max(1, len(head) * (x["bag"].shape[-1] if shape.text else 1)))
    with torch.no_grad():
        said = [vmap(model.apply, in_dims=(0, None))(take(phi, part), asked) for part in chunks(count, size)]
    return torch.cat(said)
