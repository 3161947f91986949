"""Surrogates: g(S), a cheap stand-in for f_t(S), fitted on subsets whose f is known.

    linear      g(S) = mean f + theta . (1_S - mean 1_S),   theta by least squares, ridge or lasso
    kernel      ridge in the space of k(S, S') = exp(-|S xor S'| / (2 l));   theta_i = mean of g(S + i) - g(S - i)

With subsets of one size the all-ones vector is in the span of the indicators, so uncentred coefficients carry
mean(f) / |S| each and their signs mean nothing. Here f and indicators are centred: coefficients sum to zero under
least squares, and say how much better (below zero) or worse a source is than the average one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from scipy.sparse import csr_array
from sklearn.linear_model import Lasso
from torch import Tensor

from warmstart.core import InputError
from warmstart.engine.noise import generator
from warmstart.metrics.ranking import spearman

KINDS = ("least squares", "ridge", "lasso", "kernel")


@dataclass(frozen=True)
class Config:
    kind: str = "ridge"
    penalty: float = 0.1  # of ridge and kernel, relative to the mean variance of an indicator times n; of lasso, to f
    length: float = 2.0  # of the kernel, relative to the size of a subset
    draws: int = 200  # of subsets, for the intervals
    level: float = 0.95


class Surrogate(NamedTuple):
    theta: Tensor  # [k] lower is better
    low: Tensor  # [k] percentile interval over subsets drawn again
    high: Tensor
    predict: Callable[[Tensor], Tensor]  # indicators [n, k] -> g [n]
    note: str  # "" or what was changed, and why


class Quality(NamedTuple):
    """On subsets that the surrogate has not seen."""

    spearman: float
    error: float  # mean squared
    variance: float  # of f: the error of a constant
    n: int  # subsets


def fit(indicators: Tensor, f: Tensor, cfg: Config = Config(), seed: int = 0) -> Surrogate:
    """From indicators [n, k] and f [n]."""
    if cfg.kind not in KINDS:
        raise InputError(f"a surrogate among {', '.join(KINDS)}", repr(cfg.kind), "use one of these names")
    if len(f) < 2:
        raise InputError("at least two subsets", f"{len(f)}", "ask for more")
    if not bool(torch.isfinite(f).all()):
        raise InputError("a finite f for every subset", f"{int((~torch.isfinite(f)).sum())} not", "check the measure")
    z, f, note = indicators.double(), f.double(), ""
    count, sources = z.shape
    kind = cfg.kind
    if kind in ("least squares", "ridge") and count < sources:
        kind = "ridge"
        note = f"{count} subsets of {sources} sources leave the surrogate under-determined, so ridge is used"
    solve = _SOLVERS[kind]
    theta, predict = solve(z, f, torch.ones_like(f), cfg)
    again = torch.randint(count, (cfg.draws, count), generator=generator(seed, 13))
    weights = torch.zeros(cfg.draws, count, dtype=f.dtype).scatter_add_(1, again, torch.ones(again.shape).double())
    drawn = torch.stack([solve(z, f, weight, cfg)[0] for weight in weights])
    edges = torch.tensor([(1 - cfg.level) / 2, (1 + cfg.level) / 2], dtype=f.dtype)
    low, high = torch.quantile(drawn, edges, dim=0)
    return Surrogate(theta, low, high, predict, note)


def judge(surrogate: Surrogate, indicators: Tensor, f: Tensor) -> Quality:
    """Against real trainings on held-out subsets."""
    said, f = surrogate.predict(indicators.double()), f.double()
    return Quality(spearman(said, f), float((said - f).square().mean()), float(f.var(correction=0)), len(f))


def _centred(z: Tensor, f: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    share = weight / weight.sum()
    mean, level = share @ z, share @ f
    return z - mean, f - level, mean, level


def _linear(theta: Tensor, mean: Tensor, level: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda z: level + (z - mean) @ theta


def _least_squares(z: Tensor, f: Tensor, weight: Tensor, cfg: Config) -> tuple[Tensor, Any]:
    """The solution of least norm, since centred indicators of one size sum to zero."""
    rows, values, mean, level = _centred(z, f, weight)
    root = weight.sqrt()
    theta = torch.linalg.pinv(root[:, None] * rows, rtol=1e-9) @ (root * values)
    return theta, _linear(theta, mean, level)


def _ridge(z: Tensor, f: Tensor, weight: Tensor, cfg: Config) -> tuple[Tensor, Any]:
    """With sums over the few members of each subset, so that many sources cost little more than their trainings."""
    total = weight.sum()
    mean, level = weight @ z / total, weight @ f / total
    gram = _products(z, weight) - total * torch.outer(mean, mean)
    penalty = cfg.penalty * gram.diagonal().mean() + 1e-9  # subsets drawn again may all be one
    gram.diagonal().add_(penalty)
    theta = torch.linalg.solve(gram, (weight * (f - level)) @ z)
    return theta, _linear(theta, mean, level)


def _products(z: Tensor, weight: Tensor) -> Tensor:
    """sum_i weight_i z_i z_i^T [k, k]."""
    rows = csr_array(z.numpy())
    scaled = rows.multiply(weight.numpy()[:, None])
    return torch.from_numpy((csr_array(scaled).T @ rows).toarray())


def _lasso(z: Tensor, f: Tensor, weight: Tensor, cfg: Config) -> tuple[Tensor, Any]:
    rows, values, mean, level = _centred(z, f, weight)
    # the penalty at which all coefficients vanish, times cfg.penalty
    most = float(((weight / weight.sum() * values) @ rows).abs().max())
    model = Lasso(alpha=max(cfg.penalty * most, 1e-12), fit_intercept=False, max_iter=5000)
    model.fit(rows.numpy(), values.numpy(), sample_weight=weight.numpy())
    theta = torch.from_numpy(model.coef_).to(z)
    return theta, _linear(theta, mean, level)


def _kernel(z: Tensor, f: Tensor, weight: Tensor, cfg: Config) -> tuple[Tensor, Any]:
    _, values, _, level = _centred(z, f, weight)
    length = cfg.length * float(z.sum(1).mean())

    def gram(a: Tensor) -> Tensor:
        apart: Tensor = a.sum(1)[:, None] + z.sum(1) - 2 * a @ z.T
        return torch.exp(-apart / (2 * length))

    own, root = gram(z), weight.sqrt()
    scaled = root[:, None] * own * root + cfg.penalty * torch.eye(len(z)).to(z)
    alpha = root * torch.linalg.solve(scaled, root * values)

    def predict(a: Tensor) -> Tensor:
        said: Tensor = level + gram(a) @ alpha
        return said

    def effect(source: int) -> Tensor:
        there, gone = z.clone(), z.clone()
        there[:, source], gone[:, source] = 1.0, 0.0
        return (weight * (predict(there) - predict(gone))).sum() / weight.sum()

    return torch.stack([effect(i) for i in range(z.shape[1])]), predict


_SOLVERS: dict[str, Callable[[Tensor, Tensor, Tensor, Config], tuple[Tensor, Any]]] = {
    "least squares": _least_squares,
    "ridge": _ridge,
    "lasso": _lasso,
    "kernel": _kernel,
}
