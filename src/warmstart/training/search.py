"""Tuning: the same number of trials for every method, judged on validation tasks only, resumable.

The first trial is always the method's own default, the others are drawn from its space; every
honest table stands on this.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from warmstart.core import InputError
from warmstart.engine.files import read_json, write_json
from warmstart.engine.loop import Diverged, Report, silent

C = TypeVar("C")


class Trial(NamedTuple):
    config: Any
    value: float  # on validation tasks; inf when the trial failed


def draw_configs(default: C, space: Mapping[str, Sequence[Any]], trials: int, seed: int) -> list[C]:
    """The default and `trials - 1` distinct draws; fewer when the space is smaller."""
    source = random.Random(seed)
    found: list[C] = [default]
    for _ in range(50 * trials):
        if len(found) == trials or not space:
            break
        drawn = {name: source.choice(list(values)) for name, values in space.items()}
        config: C = dataclasses.replace(default, **drawn)  # type: ignore[type-var]
        if config not in found:
            found.append(config)
    return found


def search(
    run: Callable[[C], float],
    default: C,
    space: Mapping[str, Sequence[Any]],
    trials: int = 10,
    seed: int = 0,
    store: Path | None = None,
    progress: Report = silent,
) -> list[Trial]:
    """All trials, best first. `run` trains with a configuration and gives its validation value; one that diverges
    has failed.

    With a store, finished trials are read back instead of run again.
    """
    if trials < 1:
        raise InputError("at least one trial", f"{trials}", "pass --trials 1 or more")
    done: dict[str, float | None] = read_json(store) if store is not None and store.exists() else {}
    found: list[Trial] = []
    for i, config in enumerate(draw_configs(default, space, trials, seed)):
        key = json.dumps(dataclasses.asdict(config), sort_keys=True)  # type: ignore[call-overload]
        if key not in done:
            try:
                value = run(config)
            except Diverged:
                value = math.inf
            done[key] = value if math.isfinite(value) else None  # JSON knows no infinity
            if store is not None:
                write_json(store, done)
        kept = done[key]
        found.append(Trial(config, math.inf if kept is None else kept))
        progress(i + 1, trials, f"best {min(trial.value for trial in found):.4g}")
    return sorted(found, key=lambda trial: trial.value)
