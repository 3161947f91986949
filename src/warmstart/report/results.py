"""Results: what a study, a benchmark or an evaluation measured, on disk and in memory."""

from __future__ import annotations

import json
import math
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warmstart import __version__
from warmstart.core import InputError
from warmstart.engine.files import write_text
from warmstart.report.rows import Interval, Row


@dataclass(frozen=True)
class Results:
    """Rows, and everything needed to get them again."""

    study: str
    preset: str
    device: str
    versions: dict[str, str]
    command: str  # one line for each command that added rows
    date: str
    rows: tuple[Row, ...]


def make_results(study: str, preset: str, device: str, command: str, rows: Sequence[Row]) -> Results:
    """Results of a run that has just ended."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Results(study, preset, device, versions(), command, date, tuple(rows))


def called() -> str:
    """The command of this run."""
    return shlex.join(["warmstart", *sys.argv[1:]])


def versions() -> dict[str, str]:
    """What a reader must install to get the same numbers."""
    return {
        "warmstart": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
    }


def merge(old: Results, new: Results) -> Results:
    """Both runs in one: a seed that was run again replaces, a new one joins. The date is the new run's."""
    if (old.study, old.preset) != (new.study, new.preset):
        raise InputError(
            f"results of {new.study} ({new.preset})", f"{old.study} ({old.preset})", "write to another folder"
        )
    rows = {_key(row): row for row in old.rows}
    for row in new.rows:
        rows[_key(row)] = _join(rows[_key(row)], row) if _key(row) in rows else row
    return replace(
        new,
        device=_lines(old.device, new.device),
        versions={name: _lines(old.versions.get(name, ""), found) for name, found in new.versions.items()},
        command=_lines(old.command, new.command),
        rows=tuple(rows.values()),
    )


def save(results: Results, path: str | Path) -> None:
    """Write JSON, one row a line, atomically; values to nine digits, of which no study knows more."""
    head = {key: getattr(results, key) for key in ("study", "preset", "device", "versions", "command", "date")}
    body = ",\n".join("  " + json.dumps(_row_json(row), separators=(",", ":")) for row in results.rows)
    opening = json.dumps(head, indent=1).removesuffix("\n}")
    write_text(Path(path), f'{opening},\n "rows": [\n{body}\n ]\n}}\n')


def load(path: str | Path) -> Results:
    """Read what `save` wrote, and check it."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return Results(
            study=_typed(content["study"], str),
            preset=_typed(content["preset"], str),
            device=_typed(content["device"], str),
            versions={key: _typed(value, str) for key, value in content["versions"].items()},
            command=_typed(content["command"], str),
            date=_typed(content["date"], str),
            rows=tuple(_read_row(row) for row in content["rows"]),
        )
    except OSError as error:
        raise InputError(
            f"a results file at {path}", (error.strerror or "").lower(), "name an existing results.json"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        got = f"one that is damaged ({type(error).__name__}: {error})"
        raise InputError(f"a results file in {path}", got, "restore it, or delete it and run again") from error


def _key(row: Row) -> tuple[str, str, str]:
    return row.method, json.dumps(row.setting, sort_keys=True), row.metric


def _join(old: Row, new: Row) -> Row:
    if old.unit != new.unit:
        raise InputError(f"{new.metric} in '{new.unit}'", f"'{old.unit}' in the older results", "start a new file")
    older = zip(old.seeds, old.values, old.errors, old.counts, strict=True)
    newer = zip(new.seeds, new.values, new.errors, new.counts, strict=True)
    by_seed = {part[0]: part for part in (*older, *newer)}
    seeds, values, errors, counts = zip(*(by_seed[seed] for seed in sorted(by_seed)), strict=True)
    fresh = old.fresh_tasks and new.fresh_tasks
    peer = new.peer or old.peer
    return replace(new, seeds=seeds, values=values, errors=errors, counts=counts, fresh_tasks=fresh, peer=peer)


def _lines(old: str, new: str) -> str:
    """The distinct lines of both, in order."""
    return "\n".join(dict.fromkeys([*old.splitlines(), *new.splitlines()]))


def _row_json(row: Row) -> dict[str, Any]:
    row = replace(row, values=_rounded(row.values, 9), errors=_rounded(row.errors, 9))
    mean, low, high = (_null(number) for number in _rounded(row.interval, 10))  # read to a relative error of 1e-9
    return {
        "method": row.method,
        "setting": row.setting,
        "metric": row.metric,
        "unit": row.unit,
        "seeds": row.seeds,
        "values": [_null(value) for value in row.values],
        "errors": [_null(error) for error in row.errors],
        "counts": row.counts,
        "fresh_tasks": row.fresh_tasks,
        "mean": mean,
        "low": low,
        "high": high,
        "n": row.n,
        "peer": row.peer,
    }


def _read_row(item: Any) -> Row:
    row = Row(
        method=_typed(item["method"], str),
        setting=_typed(item["setting"], dict),
        metric=_typed(item["metric"], str),
        unit=_typed(item["unit"], str),
        seeds=tuple(_typed(seed, int) for seed in item["seeds"]),
        values=tuple(_number(value) for value in item["values"]),
        errors=tuple(_number(error) for error in item["errors"]),
        counts=tuple(_typed(count, int) for count in item["counts"]),
        fresh_tasks=_typed(item["fresh_tasks"], bool),
        peer=_typed(item["peer"], str),
    )
    stored = Interval(*(_number(item[key]) for key in Interval._fields))
    if item["n"] != row.n or not np.allclose(stored, row.interval, rtol=1e-9, atol=1e-12, equal_nan=True):
        raise ValueError(f"the summary of {row.method} does not follow from its values")
    return row


def _rounded(numbers: Sequence[float], digits: int) -> tuple[float, ...]:
    return tuple(float(f"{number:.{digits}g}") for number in numbers)


def _null(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _number(value: Any) -> float:
    return math.nan if value is None else float(_typed(value, (int, float)))


def _typed(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} has the wrong type")
    return value
