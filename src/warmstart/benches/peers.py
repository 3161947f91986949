"""How today's libraries make a meta-update: task after task, each differentiated on its own.

Every peer is built on a module, which it changes, and gives the function of one meta-update. The
MAML peers leave the meta-gradient, the mean over tasks, in the parameters' `.grad`.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from warmstart.core import Batch, Task
from warmstart.core.trees import take
from warmstart.learners import gem, maml, paml, reptile
from warmstart.models.preference import FAST, PreferenceNet

Update: TypeAlias = Callable[[Sequence[Task]], None]


def separate(tasks: Task) -> list[Task]:
    """A stack as single tasks, which is how a loop is fed; made once, so that no peer pays for it."""
    return [take(tasks, i) for i in range(len(tasks.key))]


def loss(outputs: Tensor, batch: Batch) -> Tensor:
    """Squared error of numbers, cross-entropy of classes."""
    if batch.y.is_floating_point():
        return F.mse_loss(outputs.squeeze(-1), batch.y)
    return F.cross_entropy(outputs, batch.y)


def maml_loop(module: nn.Module, cfg: maml.Config) -> Update:
    """The textbook loop: clone, differentiate with create_graph, step; backward from the query loss."""
    outer = torch.optim.Adam(module.parameters(), lr=cfg.outer_lr)

    def update(tasks: Sequence[Task]) -> None:
        outer.zero_grad()
        for task in tasks:
            params = {name: value.clone() for name, value in module.named_parameters()}
            for _ in range(cfg.inner_steps):
                inner = loss(functional_call(module, params, task.support.x), task.support)
                grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
                params = {name: p - cfg.inner_lr * g for (name, p), g in zip(params.items(), grads, strict=True)}
            judged = loss(functional_call(module, params, task.query.x), task.query)
            (judged / len(tasks)).backward()  # type: ignore[no-untyped-call]
        outer.step()

    return update


def maml_higher(module: nn.Module, cfg: maml.Config) -> Update:
    """As the examples of `higher` do it."""
    higher: Any = importlib.import_module("higher")
    outer = torch.optim.Adam(module.parameters(), lr=cfg.outer_lr)
    inner = torch.optim.SGD(module.parameters(), lr=cfg.inner_lr)

    def update(tasks: Sequence[Task]) -> None:
        outer.zero_grad()
        for task in tasks:
            with higher.innerloop_ctx(module, inner, copy_initial_weights=False) as (learner, descent):
                for _ in range(cfg.inner_steps):
                    descent.step(loss(learner(task.support.x), task.support))
                (loss(learner(task.query.x), task.query) / len(tasks)).backward()  # type: ignore[no-untyped-call]
        outer.step()

    return update


def maml_torchopt(module: nn.Module, cfg: maml.Config) -> Update:
    """As the MAML example of `torchopt` does it."""
    torchopt: Any = importlib.import_module("torchopt")
    outer = torch.optim.Adam(module.parameters(), lr=cfg.outer_lr)
    inner = torchopt.MetaSGD(module, lr=cfg.inner_lr)

    def update(tasks: Sequence[Task]) -> None:
        outer.zero_grad()
        start = [torchopt.extract_state_dict(part, by="reference") for part in (module, inner)]
        losses = []
        for task in tasks:
            for _ in range(cfg.inner_steps):
                inner.step(loss(module(task.support.x), task.support))
            losses.append(loss(module(task.query.x), task.query))
            for part, state in zip((module, inner), start, strict=True):
                torchopt.recover_state_dict(part, state)
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        outer.step()

    return update


def reptile_loop(module: nn.Module, cfg: reptile.Config) -> Update:
    """One working copy, reset for every task, trained by a new `torch.optim.Adam`; then the mean end is approached."""
    worker = copy.deepcopy(module)

    def update(tasks: Sequence[Task]) -> None:
        total = [torch.zeros_like(value) for value in module.parameters()]
        for task in tasks:
            worker.load_state_dict(module.state_dict())
            inner = torch.optim.Adam(worker.parameters(), lr=cfg.inner_lr)
            rows = Batch(*(torch.cat(parts) for parts in zip(task.support, task.query, strict=True)))
            for _ in range(cfg.inner_steps):
                inner.zero_grad()
                loss(worker(rows.x), rows).backward()  # type: ignore[no-untyped-call]
                inner.step()
            for ends, value in zip(total, worker.parameters(), strict=True):
                ends += value.detach()
        with torch.no_grad():
            for value, ends in zip(module.parameters(), total, strict=True):
                value.lerp_(ends / len(tasks), cfg.outer_lr)

    return update


def gem_loop(module: nn.Module, cfg: gem.Config, normal: Callable[[Tensor], Tensor] = torch.randn_like) -> Update:
    """GEM-BML+ draw after draw: a mean and a log standard deviation for every parameter tensor, differentiated by
    autograd. `module` gets the latter as parameters of its own; `normal` draws noise shaped like a tensor."""
    names, means = zip(*module.named_parameters(), strict=True)
    widths = [nn.Parameter(torch.full_like(value, math.log(cfg.sd))) for value in means]
    module.register_module("log_sd", nn.ParameterList(widths))
    outer = torch.optim.Adam(module.parameters(), lr=cfg.outer_lr)

    def infer(anchor: list[Tensor], rows: Batch) -> list[Tensor]:
        q = anchor
        for _ in range(cfg.inner_steps):
            q = [value.detach().requires_grad_() for value in q]
            total = torch.zeros((), dtype=rows.y.dtype, device=rows.y.device)
            for mean, log_sd, mean0, log_sd0 in zip(*_halves(q), *_halves(anchor), strict=True):
                ratio = torch.exp(2 * (log_sd - log_sd0)) + ((mean - mean0) * torch.exp(-log_sd0)) ** 2
                total = total + cfg.kl_weight * (log_sd0 - log_sd + 0.5 * (ratio - 1)).sum()
            for _ in range(cfg.samples):
                drawn = [mean + log_sd.exp() * normal(mean) for mean, log_sd in zip(*_halves(q), strict=True)]
                outputs = functional_call(module, dict(zip(names, drawn, strict=True)), rows.x).squeeze(-1)
                total = total + ((outputs - rows.y) ** 2).sum() / (2 * cfg.noise**2 * cfg.samples)
            grads = torch.autograd.grad(total, q)
            q = [value.detach() - cfg.inner_lr * g for value, g in zip(q, grads, strict=True)]
        return q

    def update(tasks: Sequence[Task]) -> None:
        outer.zero_grad()
        prior = [value.detach() for value in (*means, *widths)]
        for task in tasks:
            shown = infer(prior, task.support)
            found = infer(shown, task.query)
            parts = zip(*_halves(prior), *_halves(shown), *_halves(found), means, widths, strict=True)
            for mu, log_sd, m1, l1, m2, l2, mean, width in parts:
                more = torch.exp(2 * l2) + (m2 - mu) ** 2 - torch.exp(2 * l1) - (m1 - mu) ** 2
                _add(mean, (m1 - m2) / len(tasks))
                _add(width, -0.5 * more * torch.exp(-2 * log_sd) / len(tasks))
        outer.step()

    return update


def paml_loop(module: PreferenceNet, cfg: paml.Config) -> Update:
    """PAML user after user, as its authors and those of MeLU write it: rows and users by index lookups, the decision
    layers differentiated with create_graph. `module` gets the network of the rate as parameters of its own."""
    sizes = (module.described, *cfg.rate_hidden, 1)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    module.register_module("rate", nn.ModuleList(layers).to(next(module.parameters()).device))
    outer = torch.optim.Adam(module.parameters(), lr=cfg.outer_lr)
    names, fast = zip(*((n, p) for n, p in module.named_parameters() if fnmatch(n, FAST)), strict=True)

    def update(tasks: Sequence[Task]) -> None:
        outer.zero_grad()
        for task in tasks:
            h = module.describe(task.descriptor)
            for layer in layers[:-1]:
                h = torch.relu(layer(h))
            rate = cfg.rate * torch.sigmoid(layers[-1](h)).squeeze(-1)
            phi: Sequence[Tensor] = fast
            for _ in range(cfg.inner_steps):
                outputs = functional_call(module, dict(zip(names, phi, strict=True)), (task.support.x,))
                grads = torch.autograd.grad(loss(outputs, task.support), phi, create_graph=True)
                phi = [p - rate * g for p, g in zip(phi, grads, strict=True)]
            outputs = functional_call(module, dict(zip(names, phi, strict=True)), (task.query.x,))
            (loss(outputs, task.query) / len(tasks)).backward()  # type: ignore[no-untyped-call]
        outer.step()

    return update


def _halves(values: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    return values[: len(values) // 2], values[len(values) // 2 :]


def _add(value: Tensor, gradient: Tensor) -> None:
    value.grad = gradient if value.grad is None else value.grad + gradient


def installed(package: str) -> str:
    """Its version, or "" when it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
