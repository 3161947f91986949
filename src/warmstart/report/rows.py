"""Rows: what was measured, and how sure that is.

One row is one method in one setting under one metric, with one value per seed. The interval

    mean +- t(0.975; df) sqrt(a + b)

carries both kinds of luck: a, which tasks were judged, and b, which seed was trained. With v the
variance of the S values and e the mean squared standard error of a value over its tasks,

    the seeds judge the same tasks:      a = e,      b = v / S
    every seed judges tasks of its own:  a = e / S,  b = max(v - e, 0) / S

and df is Satterthwaite's. One seed leaves the interval over tasks, values without tasks the interval over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from warmstart.core import InputError

Scalar: TypeAlias = str | int | float | bool


class Interval(NamedTuple):
    """A mean and its 95 % interval; low and high are nan when a single value says nothing of its spread."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One method in one setting under one metric. Build it with `make_row`."""

    method: str
    setting: dict[str, Scalar]
    metric: str
    unit: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]  # one per seed; nan when the run diverged
    errors: tuple[float, ...]  # standard error of each value over its tasks; 0 for a value without tasks
    counts: tuple[int, ...]  # tasks behind each value; 1 for a value without tasks
    fresh_tasks: bool = False  # every seed judged tasks of its own
    peer: str = ""  # what it is held against: a library and its version, or the number a paper reports

    def __post_init__(self) -> None:
        sizes = {len(self.seeds), len(self.values), len(self.errors), len(self.counts)}
        if len(sizes) > 1 or len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise InputError(
                "one value, error and count for each of at least one distinct seed",
                f"seeds {list(self.seeds)} with {len(self.values)} values",
                "build the row with make_row",
            )
        if not all(isinstance(value, Scalar) for value in self.setting.values()):
            raise InputError("a setting of plain values", f"{self.setting}", "give each key a number, text, or bool")

    @property
    def n(self) -> int:
        """Task judgements behind the mean, or seeds when there are no tasks."""
        return sum(self.counts)

    @cached_property
    def interval(self) -> Interval:
        return _interval(self)

    @property
    def mean(self) -> float:
        return self.interval.mean

    @property
    def low(self) -> float:
        return self.interval.low

    @property
    def high(self) -> float:
        return self.interval.high


def make_row(
    method: str,
    setting: Mapping[str, Any],
    metric: str,
    per_seed: Mapping[int, ArrayLike],
    unit: str = "",
    peer: str = "",
    fresh_tasks: bool = False,
) -> Row:
    """A row from, for each seed, either the values of all test tasks or one number.

    >>> row = make_row("maml", {"shot": 5}, "mse", {0: [0.2, 0.4], 1: [0.4, 0.6]})
    >>> row.values, round(row.mean, 3), row.n
    ((0.30000000000000004, 0.5), 0.4, 4)
    """
    seeds = tuple(sorted(int(seed) for seed in per_seed))
    tasks = [np.asarray(per_seed[seed], dtype=float).reshape(-1) for seed in seeds]
    if any(values.size == 0 for values in tasks):
        raise InputError(f"at least one value of {metric} per seed", "none", f"run {method} on at least one task")
    finite = [bool(np.isfinite(values).all()) for values in tasks]
    return Row(
        method,
        {key: value.item() if isinstance(value, np.generic) else value for key, value in setting.items()},
        metric,
        unit,
        seeds,
        tuple(float(values.mean()) if good else math.nan for values, good in zip(tasks, finite, strict=True)),
        tuple(_standard_error(values) if good else math.nan for values, good in zip(tasks, finite, strict=True)),
        tuple(values.size for values in tasks),
        fresh_tasks,
        peer,
    )


def mean_interval(values: ArrayLike) -> Interval:
    """Mean and 95 % interval of independent values, such as one number per test task."""
    return make_row("", {}, "", {0: values}).interval


def differences(ours: Mapping[int, ArrayLike], theirs: Mapping[int, ArrayLike]) -> dict[int, Any]:
    """Ours minus theirs, task by task, for the seeds both have: what a paired claim is made of."""
    pairs = {seed: (np.asarray(ours[seed]), np.asarray(theirs[seed])) for seed in ours if seed in theirs}
    for seed, (a, b) in pairs.items():
        if a.shape != b.shape:
            raise InputError(f"the same tasks on seed {seed}", f"{a.size} and {b.size}", "judge both on the same tasks")
    return {seed: a - b for seed, (a, b) in pairs.items()}


def _interval(row: Row) -> Interval:
    values, errors = np.array(row.values), np.array(row.errors)
    seeds, mean = len(values), float(values.mean())
    spread = float(values.var(ddof=1)) if seeds > 1 else 0.0
    error = float((errors**2).mean())
    if row.fresh_tasks:
        tasks, training = error / seeds, max(spread - error, 0.0) / seeds
    else:
        tasks, training = error, spread / seeds
    freedom = (row.n - seeds, seeds - 1)
    if max(freedom) == 0 or not math.isfinite(mean):
        return Interval(mean, math.nan, math.nan)
    parts = [part**2 / df for part, df in zip((tasks, training), freedom, strict=True) if df > 0]
    df = (tasks + training) ** 2 / sum(parts) if sum(parts) > 0 else 1.0
    half = float(stdtrit(df, 0.975)) * math.sqrt(tasks + training)
    return Interval(mean, mean - half, mean + half)


def _standard_error(values: Any) -> float:
    return float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else 0.0
