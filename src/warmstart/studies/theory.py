"""Theory: what Zou and Lu (2020) prove of gradient-EM, held against models where everything is known.

Appendix A.3: the estimate's error is at most sqrt(2) M sqrt(KL(q || posterior)), with M the root mean square
of the score under the posterior. One step of the proof (14 to 15) is not valid in general, so violations are counted.
Appendix A.2: the estimator that maximises L[2] has m / (m - k) times the variance of that which maximises L[1], for m
rows of which k are shown. Appendix B.3: the gradient is that of -KL(stop(q) || prior).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import check_names
from warmstart.core.trees import pack
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator
from warmstart.learners import gem
from warmstart.maths.mean_field import Gaussian, expected_score, kl
from warmstart.maths.outer import outer
from warmstart.report import Column, Results, Row, called, make_results, make_row, plain, table
from warmstart.report.page import Outcome, Section

BOUND, VARIANCE, GRADIENT = "error bound", "variance ratio", "gradient identity"
METHODS = (BOUND, VARIANCE, GRADIENT)
WITHIN, WORST, ERROR = "violations", "largest error / bound", "error"
MEASURED, PAPER, EXACT = "measured", "m / (m - k)", "I(m) / (I(m) - I(k))"
SIZE, ROWS, NOISE = 5, 10, 0.5
SHARES = (5, 10, 15)  # rows shown, of TOTAL
TOTAL, TASKS = 20, 100
SPREADS = (0.0, 0.1, 1.0)  # of a task's mean around the prior's, in units of a row's noise


class Preset(NamedTuple):
    runs: int  # random posteriors, and estimates of a variance


PRESETS = {"quick": Preset(500), "full": Preset(20_000)}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """In double precision on the CPU."""
    check_names(only, METHODS)
    names, runs = list(only) or list(METHODS), PRESETS[preset].runs
    bar = progress or (lambda label: silent)
    rows: list[Row] = []
    for name in names:
        report = bar(name)
        rows += CHECKS[name](seeds, runs)
        report(1, 1, "")
    results = make_results("theory", preset, "cpu", called(), rows)
    return Outcome(results, sections(results, names), verdict(rows))


class Posterior(NamedTuple):
    """Of linear regression with a Gaussian prior, exact: [runs, SIZE] and [runs, SIZE, SIZE]."""

    prior: Gaussian
    mean: Tensor
    covariance: Tensor


def posteriors(count: int, source: torch.Generator) -> Posterior:
    """Random priors, rows with correlated inputs, and what follows from them."""
    prior = Gaussian(_normal(source, count, SIZE), 0.3 * _normal(source, count, SIZE) - 1.0)
    x = (_normal(source, count, ROWS, SIZE) + _normal(source, count, ROWS, 1)) / SIZE**0.5
    weight = prior.mean + prior.log_sd.exp() * _normal(source, count, SIZE)
    y = (x @ weight[..., None])[..., 0] + NOISE * _normal(source, count, ROWS)
    precision = torch.diag_embed(torch.exp(-2 * prior.log_sd)) + x.mT @ x / NOISE**2
    covariance = torch.linalg.inv(precision)
    told = prior.mean * torch.exp(-2 * prior.log_sd) + (x.mT @ y[..., None])[..., 0] / NOISE**2
    return Posterior(prior, (covariance @ told[..., None])[..., 0], covariance)


def approximations(exact: Posterior, source: torch.Generator) -> dict[str, Gaussian]:
    """Diagonal Gaussians for the posterior: the best, the one before any step, one half way, and strays."""
    best = Gaussian(exact.mean, -0.5 * torch.diagonal(torch.linalg.inv(exact.covariance), dim1=-2, dim2=-1).log())
    half = Gaussian(*(0.5 * (a + b) for a, b in zip(best, exact.prior, strict=True)))
    wide = best._replace(log_sd=best.log_sd + math.log(3))
    strays = Gaussian(
        best.mean + 3 * best.log_sd.exp() * _normal(source, *best.mean.shape),
        best.log_sd + _normal(source, *best.mean.shape),
    )
    return {
        "closest to the posterior": best,
        "half way from the prior": half,
        "the prior": exact.prior,
        "three times too wide": wide,
        "strays": strays,
    }


def error_to_bound(q: Gaussian, exact: Posterior) -> Tensor:
    """|E_q score - E_posterior score| / (sqrt(2) M sqrt(KL(q || posterior))) [runs], all in closed form."""
    spread = torch.diagonal(exact.covariance, dim1=-2, dim2=-1)
    truth = expected_score(Gaussian(exact.mean, 0.5 * spread.log()), exact.prior)
    found = expected_score(q, exact.prior)
    error = (torch.cat([*found], -1) - torch.cat([*truth], -1)).norm(dim=-1)
    # with z = (theta - prior mean) / prior sd ~ N(d, s) the scores are z / sd and z^2 - 1
    sd = exact.prior.log_sd.exp()
    d, s = (exact.mean - exact.prior.mean) / sd, spread / sd**2
    second, fourth = d**2 + s, d**4 + 6 * d**2 * s + 3 * s**2
    size = (second / sd**2 + fourth - 2 * second + 1).sum(-1).sqrt()
    ratio: Tensor = error / (2**0.5 * size * divergence(q, exact).sqrt())
    return ratio


def divergence(q: Gaussian, exact: Posterior) -> Tensor:
    """KL(q || posterior) of a diagonal and a full Gaussian."""
    precision, apart = torch.linalg.inv(exact.covariance), q.mean - exact.mean
    trace = (torch.diagonal(precision, dim1=-2, dim2=-1) * torch.exp(2 * q.log_sd)).sum(-1)
    distance = (apart[..., None, :] @ precision @ apart[..., None])[..., 0, 0]
    volume = torch.logdet(exact.covariance) - 2 * q.log_sd.sum(-1)
    found: Tensor = 0.5 * (trace + distance - SIZE + volume)
    return found


def check_bound(seeds: Sequence[int], runs: int) -> list[Row]:
    found: dict[str, dict[int, Tensor]] = {}
    for seed in seeds:
        source = generator(seed, 1)
        exact = posteriors(runs, source)
        for label, q in approximations(exact, source).items():
            found.setdefault(label, {})[seed] = error_to_bound(q, exact)
    rows = []
    for label, by_seed in found.items():
        broken = {seed: 100.0 * (ratio > 1).double() for seed, ratio in by_seed.items()}
        worst = {seed: float(ratio.max()) for seed, ratio in by_seed.items()}
        rows.append(make_row(BOUND, {"q": label}, WITHIN, broken, "%", fresh_tasks=True))
        rows.append(make_row(BOUND, {"q": label}, WORST, worst))
    return rows


def information(rows: int, spread: float) -> float:
    """Of one task's rows on the prior's mean: rows of noise 1 around a mean that spreads around it."""
    return 1 / (spread**2 + 1 / rows)


def estimates(shown: int, spread: float, runs: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Of a prior mean of 0, by L[1] and by L[2], from TASKS tasks each [runs]. Both maxima are in closed form."""
    means = spread * _normal(source, runs, TASKS)
    support = means + _normal(source, runs, TASKS) / shown**0.5
    query = means + _normal(source, runs, TASKS) / (TOTAL - shown) ** 0.5
    pooled = (shown * support + (TOTAL - shown) * query) / TOTAL
    trust = spread**2 / (spread**2 + 1 / shown)  # in the support's mean: E query mean = (1 - trust) Theta + trust s
    return pooled.mean(-1), ((query - trust * support) / (1 - trust)).mean(-1)


def check_variance(seeds: Sequence[int], runs: int) -> list[Row]:
    rows = []
    for spread in SPREADS:
        for shown in SHARES:
            setting = {"spread": spread, "shown": shown}
            ratios = {}
            for seed in seeds:
                one, two = estimates(shown, spread, runs, generator(seed, 2, shown, int(10 * spread)))
                ratios[seed] = float(two.var() / one.var())
            less = information(TOTAL, spread) - information(shown, spread)
            rows.append(make_row(MEASURED, setting, VARIANCE, ratios))
            told = {PAPER: TOTAL / (TOTAL - shown), EXACT: information(TOTAL, spread) / less}
            rows += [make_row(name, setting, VARIANCE, dict.fromkeys(seeds, value)) for name, value in told.items()]
    return rows


def check_gradient(seeds: Sequence[int], runs: int) -> list[Row]:
    """The closed form of both methods against automatic differentiation of the KL."""
    return [
        make_row(name, {}, ERROR, {seed: gradient_difference(plus, runs, generator(seed, 3)) for seed in seeds})
        for name, plus in (("gem_bml", False), ("gem_bml_plus", True))
    ]


def gradient_difference(plus: bool, tasks: int, source: torch.Generator) -> float:
    """Relative to the gradient's norm, for random prior and posteriors."""

    def gaussian(*shape: int) -> Gaussian:
        return Gaussian(_normal(source, *shape), 0.5 * _normal(source, *shape) - 1.0)

    prior, first, second = gaussian(SIZE), gaussian(tasks, SIZE), gaussian(tasks, SIZE)

    def far(q: Gaussian, p: Gaussian) -> Tensor:
        total: Tensor = torch.func.vmap(kl, in_dims=(0, None))(q, p).sum()
        return total

    slope = pack(tuple(torch.func.grad(lambda p: far(second, p) - (far(first, p) if plus else 0.0))(prior)))
    state = outer(1e-3).init({"mean": prior.mean, "log_sd": prior.log_sd})
    merge = gem.merge_posteriors(gem.Config(plus=plus, natural=False))
    found = merge(state, gem.Posteriors(first, second)).grad
    return float((pack((found["mean"], found["log_sd"])) - slope).norm() / slope.norm())


CHECKS: dict[str, Callable[[Sequence[int], int], list[Row]]] = {
    BOUND: check_bound,
    VARIANCE: check_variance,
    GRADIENT: check_gradient,
}


def _normal(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def sections(results: Results, names: Sequence[str]) -> list[Section]:
    found = []
    if BOUND in names:
        labels = dict.fromkeys(str(row.setting["q"]) for row in results.rows if row.metric == WITHIN)
        at = {(row.setting.get("q"), row.metric): row.mean for row in results.rows}
        lines = [[q, f"{at[q, WITHIN]:.2f} %", f"{at[q, WORST]:.3f}"] for q in labels]
        caption = "Share of random tasks whose error exceeds the bound of appendix A.3"
        found.append(Section("The bound of the error", table=plain(["q", WITHIN, WORST], lines, caption)))
    if VARIANCE in names:
        columns: list[Column] = [
            Column(f"{k} of {TOTAL} shown, spread {s:g}", VARIANCE, {"spread": s, "shown": k}, 2)
            for s in SPREADS
            for k in SHARES
        ]
        caption = "Variance of the L[2] estimator of the prior's mean over that of the L[1] estimator"
        made = table(results, [MEASURED, PAPER, EXACT], columns, references=[PAPER, EXACT], caption=caption)
        found.append(Section("What L[2] costs", table=made))
    if GRADIENT in names:
        lines = [[row.method, f"{row.mean:.1e}"] for row in results.rows if row.metric == ERROR]
        caption = "Relative difference of the closed form and the gradient of -KL(stop(q) || prior)"
        found.append(Section("The gradient", table=plain(["method", "difference"], lines, caption)))
    return found


def verdict(rows: Sequence[Row]) -> str:
    said = []
    broken = [row for row in rows if row.metric == WITHIN]
    if broken:
        worst = max(broken, key=lambda row: row.mean)
        kept = [str(row.setting["q"]) for row in broken if row.mean == 0]
        said.append(
            f"The bound of A.3 is exceeded by up to {worst.mean:.1f} % of tasks (q {worst.setting['q']})"
            + (f" and holds for q {', '.join(kept)}" if kept else "")
        )
    at: dict[tuple[str, Any, Any], float] = {
        (row.method, row.setting["spread"], row.setting["shown"]): row.mean for row in rows if row.metric == VARIANCE
    }
    if at:
        far = (SPREADS[-1], SHARES[1])
        said.append(
            f"with {SHARES[1]} of {TOTAL} rows shown L[2] costs {at[(MEASURED, *far)]:.1f} times the variance "
            f"where tasks differ, not the {at[(PAPER, *far)]:.1f} of A.2"
        )
    differences = [row.mean for row in rows if row.metric == ERROR]
    if differences:
        said.append(f"the gradient is that of the KL to {max(differences):.0e}")
    whole = "; ".join(said)
    return f"{whole[0].upper()}{whole[1:]}."
