"""Estimates of f_t(S) without training: the linearised model, conditioned on the rows of S by one small solve.

    base model     phi_0, trained on the mean mixture of the subsets
    linearised     logit(x) = f_0(x) + g(x) . w,   g(x) = P^T grad f_0(x)
    P              [params, d], an orthonormal basis of the k + 1 gradients of the tasks' losses at phi_0
    of each task   b_t = -P^T grad L_t of many rows,   H_t = mean p (1 - p) g g^T of few            (found once)
    of a subset    w_S = (lambda I + sum_t s_t H_t)^-1 sum_t s_t b_t,   s = the subset's shares of rows

A subset costs one d x d solve, and estimates from several base models are averaged. g is never formed from a gradient:
P^T grad f is d directional derivatives of a forward pass, for which few rows do; slopes need many, and one backward
pass. All classes share w, which is the Gauss-Newton step of the whole network in the span of P. The error against real
trainings is for the caller to report, with `compare`. Differs from the literature: see docs/methods/task_model.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.nn.functional import pad

from warmstart.core import Batch, Params, Tree, task_loss
from warmstart.core.trees import concat, leaves, pack, take, tree_map, unpack
from warmstart.engine.meta import chunks
from warmstart.engine.noise import generator
from warmstart.engine.stage import TRACED
from warmstart.metrics.ranking import spearman
from warmstart.selection.measures import Measure
from warmstart.selection.training import LIKELIHOODS, Form, form, make_network, train_models
from warmstart.selection.training import Config as Training
from warmstart.tasks.pool import Pool
from warmstart.tasks.transfer import Transfer

ROWS = 512  # at most, whose derivatives are taken at once


@dataclass(frozen=True)
class Config:
    bases: int = 5  # models to linearise at
    rows: int = 12_000  # of each task for its slope, all where there are no more
    at_once: int = 4096  # of them, to bound memory
    few: int = 200  # of them for its curvature
    penalty: float = 0.01  # lambda, relative to the mean of H's diagonal over all tasks
    chunk: int = 20  # directions at once, at most


class Linear(NamedTuple):
    """What is kept of the rows."""

    curvature: Tensor  # H_t [tasks, d, d]
    slope: Tensor  # b_t [tasks, d]
    base: Tensor  # f_0 of the validation rows [n, out]
    features: Tensor  # g of the validation rows [n, out, d]


class Comparison(NamedTuple):
    """Estimates against real trainings of the same subsets."""

    spearman: float
    error: float  # relative: mean of |estimate - f| / |f|
    n: int


def linearise(transfer: Transfer, phi: Params, training: Training, cfg: Config = Config(), seed: int = 0) -> Linear:
    """At the parameters `phi` of one model."""
    pool, likelihood = transfer.pool, LIKELIHOODS[transfer.kind]
    device, draw = pool.y.device, generator(seed, 17)
    orders = [torch.randperm(n, generator=draw)[: cfg.rows].to(device) for n in pool.lengths.tolist()]
    index = [first + order for first, order in zip(pool.offsets, orders, strict=False)]
    programs = _programs(form(transfer, training))

    def slope(t: int) -> Tensor:
        """In parts of a few sizes, of which rows that are wanting do not count."""
        parts = []
        for part in torch.split(index[t], cfg.at_once):
            size = _round(len(part), cfg.at_once)
            x, y = _rows(pool, pad(part, (0, size - len(part))), torch.full((size,), t, device=device))
            counted = (torch.arange(size, device=device) < len(part)).to(torch.get_default_dtype())
            rows = Batch(x, y, torch.ones_like(counted), counted)
            parts.append(len(part) * pack(programs.slope(phi, rows)))
        return torch.stack(parts).sum(0) / len(index[t])

    slopes = torch.stack([slope(t) for t in range(len(index))])
    basis = torch.linalg.qr(slopes.T).Q.T
    few = [rows[: cfg.few] for rows in index]
    sizes = [len(rows) for rows in few]
    task = torch.arange(len(few)).repeat_interleave(torch.tensor(sizes)).to(device)
    out, g = programs.features(phi, _rows(pool, torch.cat(few), task)[0], basis, cfg.chunk)
    parts = zip(torch.split(g, sizes), torch.split(likelihood.curvature(out).double(), sizes), sizes, strict=True)
    curvature = torch.stack([torch.einsum("nai,nab,nbj->ij", g, bent, g) / n for g, bent, n in parts])
    home = torch.full_like(transfer.validation.group, transfer.sources)
    base, features = programs.features(phi, {**transfer.validation.x, "head": home}, basis, cfg.chunk)
    return Linear(curvature, -(slopes.double() @ basis.double().T), base.double(), features)


def _round(count: int, most: int) -> int:
    """Of this many rows or the fewest more, so that few sizes have a program each: a power of two, or the most.

    >>> [_round(count, 100) for count in (1, 3, 64, 65, 100)]
    [1, 4, 64, 100, 100]
    """
    return min(most, 1 << (count - 1).bit_length())


def _rows(pool: Pool, index: Tensor, task: Tensor) -> tuple[Tree, Tensor]:
    """Rows that know their task; copied whole, which indexing does not do."""
    x, y = tree_map(lambda leaf: leaf.index_select(0, index), (pool.x, pool.y))
    return {**x, "head": task}, y


def estimate(transfer: Transfer, linear: Linear, share: Tensor, measure: Measure, cfg: Config = Config()) -> Tensor:
    """f_t of mixtures [m, k + 1]: [m]."""
    weight = (share / share.sum(1, keepdim=True)).double().to(linear.slope.device)
    penalty = cfg.penalty * linear.curvature.diagonal(dim1=-2, dim2=-1).mean()
    ridge = penalty * torch.eye(linear.slope.shape[-1]).to(linear.slope)
    found = []
    for part in chunks(len(weight), 100):
        curvature = torch.einsum("mt,tij->mij", weight[part], linear.curvature)
        w = torch.linalg.solve(curvature + ridge, weight[part] @ linear.slope)
        out = linear.base + torch.einsum("nai,mi->mna", linear.features, w)
        found.append(measure(out, transfer.validation))
    return torch.cat(found)


def estimates(
    transfer: Transfer, share: Tensor, measure: Measure, training: Training, cfg: Config = Config(), seed: int = 0
) -> Tensor:
    """f_t of mixtures [m, k + 1], by every base model: [bases, m]."""
    mean, seeds = (share / share.sum(1, keepdim=True)).mean(0), range(seed, seed + cfg.bases)
    bases = train_models(transfer, mean.expand(cfg.bases, -1), training, seeds)
    found = []
    for i, start in enumerate(seeds):
        line = linearise(transfer, take(bases, i), training, cfg, start)
        found.append(estimate(transfer, line, share, measure, cfg))
    return torch.stack(found)


def compare(estimates: Tensor, f: Tensor) -> Comparison:
    """How close the estimates come, on subsets that were trained as well."""
    apart = ((estimates - f).abs() / f.abs().clamp(min=1e-12)).mean()
    return Comparison(spearman(estimates, f), float(apart), len(f))


class Programs(NamedTuple):
    slope: Callable[[Params, Batch], Params]  # of the loss
    features: Callable[[Params, Tree, Tensor, int], tuple[Tensor, Tensor]]  # outputs [n, out] and g [n, out, d]


@lru_cache(maxsize=16)
def _programs(shape: Form) -> Programs:
    """Kept, since recording one takes as long as dozens of its runs."""
    model = make_network(shape, 0)

    def directional(phi: Params, x: Tree, directions: Tensor) -> tuple[Tensor, Tensor]:
        def along(direction: Tensor) -> Tensor:
            derivative: Tensor = jvp(lambda params: model.apply(params, x), (phi,), (unpack(direction, phi),))[1]
            return derivative

        return model.apply(phi, x), vmap(along)(directions)

    recorded = TRACED.run(directional)

    def features(phi: Params, x: Tree, basis: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """In parts of one size: the last row comes again until its part is full."""
        count, size = len(leaves(x)[0]), -(-len(basis) // -(-len(basis) // most))
        rows = _round(count, ROWS)
        short = -count % rows
        x = tree_map(lambda leaf: torch.cat([leaf, leaf[-1:].expand(short, *leaf.shape[1:])]), x)
        found = []
        for part in chunks(count + short, rows):
            said = [recorded(phi, take(x, part), some) for some in torch.split(basis, size)]
            found.append((said[0][0], torch.cat([g for _, g in said]).movedim(0, -1).double()))
        out, g = take(concat(found), slice(count))
        return out, g

    return Programs(TRACED.run(grad(task_loss(model, LIKELIHOODS[shape.kind]))), features)
