"""Gaussian processes: exact, and the sparse localised approximation PIC, by one set of formulas.

    y = g(x) + e,   g ~ GP(0, signal * exp(-|x - x'|^2 / (2 length^2))),   e ~ N(0, noise)

PIC (Snelson, 2007) puts rows in blocks and lets blocks know of each other through m inducing inputs z alone:

    cov(y) = Q + Lambda,   Q = K_nm K_mm^-1 K_mn = V'V,   Lambda = blockdiag(K - Q) + noise I

and a new x belongs to the block of its nearest row. One block without inducing inputs is the exact process, and so
are inducing inputs at all rows. The cost is linear in the rows for blocks of a given size. Several outputs share one
kernel. Everything is float64; A = I + V Lambda^-1 V' is what is inverted instead of cov(y).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

JITTER = 1e-9  # relative to the signal
SMALLEST = 1e-6  # of the noise, relative to the signal
BLOCK, INDUCING = 400, 64


class Hyper(NamedTuple):
    """Of the kernel; leading axes are processes of their own."""

    length: Tensor  # [..., p]
    signal: Tensor  # [...] variance
    noise: Tensor  # [...] variance


class Belief(NamedTuple):
    """The process given rows. `S` is the inverse of cov(y); -1 in `rows` is padding."""

    hyper: Hyper
    x: Tensor  # [n, p]
    y: Tensor  # [n, d]
    inducing: Tensor  # [m, p]
    rows: Tensor  # [blocks, s] the rows of each block
    weights: Tensor  # [blocks, s, d] S y
    pull: Tensor  # [m, d] A^-1 V Lambda^-1 y
    shrink: Tensor  # [m, m] A^-1
    cross: Tensor  # [blocks, m, s] V S, the columns of each block
    local: Tensor  # [blocks, s, s] S within each block
    evidence: Tensor  # [] log density of all outputs


def kernel(hyper: Hyper, a: Tensor, b: Tensor) -> Tensor:
    """[..., n, m] covariances of g at a [..., n, p] and b [..., m, p]."""
    a, b = a / hyper.length.unsqueeze(-2), b / hyper.length.unsqueeze(-2)
    square = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2) - 2 * a @ b.mT
    return hyper.signal[..., None, None] * torch.exp(-0.5 * square.clamp(min=0.0))


def factor(hyper: Hyper, z: Tensor) -> Tensor:
    """Cholesky factor of the covariance of g at z."""
    size = z.shape[-2]
    eye = torch.eye(size, dtype=z.dtype, device=z.device)
    chol: Tensor = torch.linalg.cholesky(kernel(hyper, z, z) + JITTER * hyper.signal[..., None, None] * eye)
    return chol


def condition(hyper: Hyper, x: Tensor, y: Tensor, rows: Tensor | None = None, inducing: Tensor | None = None) -> Belief:
    """The process given y [n, d] at x [n, p]; without blocks and inducing inputs, exactly."""
    n, d = y.shape
    rows = torch.arange(n, device=x.device)[None] if rows is None else rows
    inducing = x[:0] if inducing is None else inducing
    real = (rows >= 0).to(x.dtype)
    at, outputs = x[rows.clamp(min=0)], y[rows.clamp(min=0)] * real[..., None]
    eye = torch.eye(rows.shape[1], dtype=x.dtype, device=x.device)
    v = torch.linalg.solve_triangular(factor(hyper, inducing), kernel(hyper, inducing, at) * real[:, None], upper=False)
    own = (kernel(hyper, at, at) * real[:, None] * real[:, :, None] - v.mT @ v) + hyper.noise * eye
    own = own + (JITTER * hyper.signal) * eye + torch.diag_embed(1 - real)
    chol = torch.linalg.cholesky(own)
    lambda_v, lambda_y = torch.cholesky_solve(v.mT, chol), torch.cholesky_solve(outputs, chol)
    a = torch.eye(len(inducing), dtype=x.dtype, device=x.device) + (v @ lambda_v).sum(0)
    chol_a = torch.linalg.cholesky(a)
    shrink = torch.cholesky_inverse(chol_a)
    pull = shrink @ (v @ lambda_y).sum(0)
    weights = lambda_y - lambda_v @ pull
    logdet = 2 * chol_a.diagonal().log().sum() + 2 * (chol.diagonal(dim1=-2, dim2=-1).log() * real).sum()
    evidence = -0.5 * ((outputs * weights).sum() + d * logdet + n * d * math.log(2 * math.pi))
    cross = shrink @ lambda_v.mT
    local = torch.cholesky_inverse(chol) - lambda_v @ cross
    return Belief(hyper, x, y, inducing, rows, weights, pull, shrink, cross, local, evidence)


def _look(belief: Belief, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For new x [q, p]: its block, its covariance with the inducing inputs, and what that leaves of its block."""
    chol = factor(belief.hyper, belief.inducing)
    v = torch.linalg.solve_triangular(chol, kernel(belief.hyper, belief.inducing, x), upper=False).mT
    nearest = ((x / belief.hyper.length)[:, None] - (belief.x / belief.hyper.length)[None]).square().sum(-1).argmin(1)
    block = (belief.rows == nearest[:, None, None]).any(-1).long().argmax(1)
    rows = belief.rows[block]
    at = belief.x[rows.clamp(min=0)]  # [q, s, p]
    seen = torch.linalg.solve_triangular(chol, kernel(belief.hyper, belief.inducing, at), upper=False)
    d = kernel(belief.hyper, x[:, None], at).squeeze(1) - (v[:, None] @ seen).squeeze(1)
    return block, v, d * (rows >= 0)


def predict(belief: Belief, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [q, d] and variance [q] of g at new x [q, p]; an observation's variance is larger by the noise."""
    block, v, d = _look(belief, x)
    mean = v @ belief.pull + (d[:, None] @ belief.weights[block]).squeeze(1)
    told = (v * v).sum(-1) - ((v @ belief.shrink) * v).sum(-1)
    told = told + 2 * (v[:, None] @ belief.cross[block] @ d[..., None]).flatten()
    told = told + (d[:, None] @ belief.local[block] @ d[..., None]).flatten()
    return mean, (belief.hyper.signal - told).clamp(min=0.0)


def relevance(belief: Belief, x: Tensor) -> Tensor:
    """[q, n] the weights of the rows in the mean at x: mean = relevance @ y."""
    block, v, d = _look(belief, x)
    a = torch.linalg.inv(belief.shrink)
    across = belief.cross[block].mT @ a  # Lambda^-1 V' of the block
    lead = v - (d[:, None] @ across).squeeze(1)
    parts = torch.einsum("qm,bms->qbs", lead, belief.cross)
    place = torch.arange(len(x), device=x.device)
    parts[place, block] += (d[:, None] @ (belief.local[block] + across @ belief.cross[block])).squeeze(1)
    real = belief.rows >= 0
    found = torch.zeros(len(x), len(belief.x), dtype=x.dtype, device=x.device)
    found[:, belief.rows[real]] = parts[:, real]
    return found


def leave_one_out(belief: Belief) -> tuple[Tensor, Tensor]:
    """Mean [n, d] and variance [n], noise included, of each row's outputs given all other rows: y - S y / diag S."""
    diagonal = belief.local.diagonal(dim1=-2, dim2=-1)
    real = belief.rows >= 0
    mean, variance = belief.y.clone(), torch.empty(len(belief.y), dtype=belief.y.dtype, device=belief.y.device)
    mean[belief.rows[real]] -= (belief.weights / diagonal[..., None])[real]
    variance[belief.rows[real]] = (1 / diagonal)[real]
    return mean, variance


def make_blocks(x: Tensor, size: int) -> Tensor:
    """[blocks, s] rows in blocks of at most `size`: halved along the widest column until small enough; -1 pads.

    >>> make_blocks(torch.tensor([[0.0], [9.0], [1.0], [8.0], [7.0]]), 3)
    tensor([[ 0,  2, -1],
            [ 4,  3,  1]])
    """
    parts, done = [torch.arange(len(x), device=x.device)], []
    while parts:
        rows = parts.pop(0)
        if len(rows) <= size:
            done.append(rows)
            continue
        column = int((x[rows].amax(0) - x[rows].amin(0)).argmax())
        rows = rows[x[rows, column].argsort(stable=True)]
        parts += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    padded = torch.full((len(done), max(map(len, done))), -1, device=x.device)
    for line, rows in zip(padded, done, strict=True):
        line[: len(rows)] = rows
    return padded


def spread_out(x: Tensor, count: int) -> Tensor:
    """Places of `count` rows far from each other: each is the farthest from those before it."""
    chosen = [int((x - x.mean(0)).square().sum(-1).argmin())]
    distance = (x - x[chosen[0]]).square().sum(-1)
    while len(chosen) < min(count, len(x)):
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (x - x[chosen[-1]]).square().sum(-1))
    return torch.tensor(chosen, device=x.device)


def learn(
    x: Tensor, y: Tensor, rows: Tensor | None = None, inducing: Tensor | None = None, iterations: int = 40
) -> tuple[Hyper, Tensor | None]:
    """The kernel, and the inducing inputs where there are some, that maximise the evidence.

    A weak prior, log length ~ N(0, 2^2) in units of a column's spread, keeps lengths finite where a column is mute.
    """
    unit = x.std(0)
    unit = torch.where(unit > 1e-9, unit, torch.ones_like(unit))
    size = y.square().mean().clamp(min=1e-30)
    free = torch.zeros(x.shape[-1] + 2, dtype=x.dtype, device=x.device)
    free[-1] = math.log(1e-2)
    moved = None if inducing is None else inducing.clone()
    leaves = [part.requires_grad_() for part in (free, moved) if part is not None]

    def hyper() -> Hyper:
        signal = size * free[-2].clamp(-12, 12).exp()
        return Hyper(unit * free[:-2].clamp(-5, 7).exp(), signal, signal * (free[-1].clamp(-30, 5).exp() + SMALLEST))

    optimiser = torch.optim.LBFGS(leaves, max_iter=iterations, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = -condition(hyper(), x, y, rows, moved).evidence / y.numel() + free[:-2].square().sum() / (8 * len(y))
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return Hyper(*(part.detach().clone() for part in hyper())), None if moved is None else moved.detach()


def fit(x: Tensor, y: Tensor, block: int = BLOCK, inducing: int = INDUCING, iterations: int = 40) -> Belief:
    """Exact up to `block` rows, else PIC in blocks of at most that many; the kernel is learned on `block` rows."""
    x, y = x.double(), y.double()
    some = slice(None) if len(x) <= block else spread_out(x, block)
    return given(learn(x[some], y[some], iterations=iterations)[0], x, y, block, inducing)


def given(hyper: Hyper, x: Tensor, y: Tensor, block: int = BLOCK, inducing: int = INDUCING) -> Belief:
    """The same with a kernel that is known."""
    if len(x) <= block:
        return condition(hyper, x, y)
    scaled = x / hyper.length
    return condition(hyper, x, y, make_blocks(scaled, block), x[spread_out(scaled, inducing)])
