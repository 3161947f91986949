"""Choosing among methods and their configurations: the same number of trials for each, by the validation value."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from warmstart.engine.loop import LOG, Report, silent
from warmstart.estimators.methods import configure
from warmstart.training.search import Trial, search

Record: TypeAlias = Callable[[int, dict[str, float]], None]


class Run(Protocol):
    """Trains a configuration, in a folder that it resumes from; what it gives has a `value`, lower is better."""

    def __call__(
        self, name: str, cfg: Any, folder: Path | None, progress: Report, record: Record | None = None
    ) -> Any: ...


class Tunable(Protocol):
    """A method as a search sees it."""

    @property
    def config(self) -> Any: ...

    @property
    def space(self) -> Mapping[str, Sequence[Any]]: ...


class Asked(NamedTuple):
    """A method with the settings that were asked for."""

    config: Any
    space: Mapping[str, Sequence[Any]]


class Chosen(NamedTuple):
    name: str
    config: Any
    found: Any  # what its run gave
    trials: dict[str, list[Trial]]  # of each method, best first


def tune(
    name: str,
    method: Tunable,
    run: Run,
    trials: int,
    seed: int,
    folder: Path | None = None,
    progress: Report = silent,
) -> list[Trial]:
    """Search a method's space; best first. With a folder, it can be resumed."""
    begun = count()

    def value(cfg: Any) -> float:
        number = next(begun)

        def report(done: int, of: int, words: str) -> None:
            progress(number * of + done, trials * of, f"trial {number + 1}, {words}")

        return float(run(name, cfg, None if folder is None else folder / run_id(name, cfg), report).value)

    store = None if folder is None else folder / f"trials-{name}.json"
    return search(value, method.config, method.space, trials, seed, store)


def choose(
    methods: Mapping[str, Tunable],
    settings: Mapping[str, Any],
    run: Run,
    trials: int,
    *,
    seed: int = 0,
    folder: Path | None = None,
    progress: Callable[[str], Any] | None = None,
    record: Record | None = None,
) -> Chosen:
    """Tune each method with the same number of trials, train the best one, and say what was tried.

    The settings are those of a single method. The best trial's checkpoint is the finished training.
    """
    bar = progress or (lambda label: silent)
    tried: dict[str, list[Trial]] = {}
    for name, method in methods.items():
        asked = Asked(configure(method.config, settings), method.space)
        if len(methods) == 1 and trials <= 1:
            tried[name] = [Trial(asked.config, float("nan"))]
            continue
        tried[name] = tune(name, asked, run, trials, seed, folder, bar(f"tuning {name}"))
    best = min(tried, key=lambda name: (tried[name][0].value != tried[name][0].value, tried[name][0].value))
    cfg = tried[best][0].config
    place = None if folder is None else folder / run_id(best, cfg)
    found = run(best, cfg, place, bar(f"training {best}"), record)
    tried[best][0] = Trial(cfg, found.value)
    return Chosen(best, cfg, found, tried)


def run_id(name: str, cfg: Any) -> str:
    """The folder of one configuration's training."""
    text = json.dumps(dataclasses.asdict(cfg), sort_keys=True)
    return f"{name}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def replay(folder: Path, record: Record) -> None:
    """Record what an earlier part of this run has logged."""
    for line in (folder / LOG).read_text("utf-8").splitlines() if (folder / LOG).exists() else ():
        with suppress(ValueError):  # half a line that a killed run left
            figures = json.loads(line)
            record(figures.pop("step"), figures)
