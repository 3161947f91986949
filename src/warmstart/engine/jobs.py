"""Many jobs, each finished once: a store that survives kills, and one call for here, processes or many machines.

    run_jobs(work, {"0,3,7 seed 1": [0, 3, 7], ...}, store=Path("store"), config={...}, engine="processes")

`work` takes a list of arguments and gives a list of results that JSON can hold, so that a chunk of jobs may run as one
stacked program. Whatever is finished lies in the store, written atomically by the process that called; a store
belongs to one configuration. A job that fails is tried again, then reported with its reason.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from warmstart.core import InputError
from warmstart.engine.files import read_json, write_json
from warmstart.engine.loop import Report, silent

ENGINES = ("here", "processes", "ray")
Work: TypeAlias = Callable[[list[Any]], Sequence[Any]]
Chunk: TypeAlias = tuple[str, ...]  # keys of jobs that run together
Ended: TypeAlias = tuple[Chunk, Sequence[Any] | None, str]  # the chunk, its results or None, and why it failed


class Outcome(NamedTuple):
    values: dict[str, Any]  # in the order of the jobs
    failed: dict[str, str]  # the others, and the reason of the last attempt
    ran: int  # jobs that were not in the store


def config_hash(config: Any) -> str:
    """Of anything that JSON can hold.

    >>> config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
    True
    """
    return hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=16).hexdigest()


def run_jobs(
    work: Work,
    jobs: Mapping[str, Any],
    *,
    store: Path | None = None,
    config: Any = None,
    engine: str = "here",
    workers: int | None = None,
    chunk: int = 1,
    retries: int = 2,
    progress: Report = silent,
) -> Outcome:
    """Every job of `jobs` (key -> argument) that the store does not hold, `chunk` at a time.

    A chunk that fails is taken apart, so that one bad job does not take others with it.
    """
    if engine not in ENGINES:
        raise InputError(f"an engine among {', '.join(ENGINES)}", repr(engine), "use one of these names")
    if chunk < 1 or retries < 0:
        raise InputError("a chunk of 1 or more and retries of 0 or more", f"{chunk} and {retries}", "correct them")
    mark = config_hash(config)
    values = {} if store is None else _held(store, mark, config)
    values = {key: value for key, value in values.items() if key in jobs}
    keys = [key for key in jobs if key not in values]
    waiting: list[Chunk] = [tuple(keys[i : i + chunk]) for i in range(0, len(keys), chunk)]
    attempts, failed = dict.fromkeys(keys, 0), dict[str, str]()
    runner = {"here": _here, "processes": _processes, "ray": _ray}[engine]
    while waiting:
        again: list[Chunk] = []
        for done, results, reason in runner(work, jobs, waiting, workers):
            if results is None:
                for key in done:
                    attempts[key] += 1
                    if attempts[key] > retries:
                        failed[key] = reason
                    else:
                        again.append((key,))
                continue
            found = dict(zip(done, results, strict=True))
            if store is not None:
                write_json(store / f"done-{config_hash(list(done))}.json", {"config": mark, "values": found})
            values |= found
            progress(len(values), len(jobs), f"{len(failed)} failed" if failed else "")
        waiting = again
    return Outcome({key: values[key] for key in jobs if key in values}, failed, len(keys))


def _held(store: Path, mark: str, config: Any) -> dict[str, Any]:
    """What the store holds; a store of another configuration is refused."""
    about = store / "config.json"
    if not about.exists():
        write_json(about, {"config": mark, "about": config})
    found: dict[str, Any] = {}
    for file in (about, *sorted(store.glob("done-*.json"))):
        content = read_json(file)
        if not isinstance(content, dict) or content.get("config") != mark:
            remedy = "name another folder, or go back to the settings it was made with"
            raise InputError(f"a job store of this configuration in {store}", "one of another", remedy)
        values = content.get("values", {})
        if not isinstance(values, dict):
            raise InputError(f"finished jobs in {file}", type(values).__name__, "delete the file; its jobs run again")
        found |= values
    return found


def _checked(work: Work, arguments: list[Any]) -> list[Any]:
    results = list(work(arguments))
    if len(results) != len(arguments):
        raise ValueError(f"{len(results)} results for {len(arguments)} jobs")
    return results


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _here(work: Work, jobs: Mapping[str, Any], waiting: list[Chunk], workers: int | None) -> Iterator[Ended]:
    for part in waiting:
        try:
            results, reason = _checked(work, [jobs[key] for key in part]), ""
        except Exception as error:
            results, reason = None, _reason(error)
        yield part, results, reason


_WORK: list[Work] = []  # in a worker process: what it was started with, so that it is sent once


def _begin(work: Work) -> None:
    import torch

    torch.set_num_threads(1)
    _WORK[:] = [work]


def _call(arguments: list[Any]) -> list[Any]:
    return _checked(_WORK[0], arguments)


def _processes(work: Work, jobs: Mapping[str, Any], waiting: list[Chunk], workers: int | None) -> Iterator[Ended]:
    """A worker that dies takes its pool with it: what was in flight counts as tried, the rest goes to a new pool."""
    left = list(waiting)
    context = multiprocessing.get_context("spawn")
    count = workers or os.cpu_count() or 1
    while left:
        with ProcessPoolExecutor(count, context, initializer=_begin, initargs=(work,)) as pool:
            flying: dict[Future[list[Any]], Chunk] = {}
            with suppress(BrokenProcessPool):
                while left or flying:
                    while left and len(flying) < count:
                        flying[pool.submit(_call, [jobs[key] for key in left[0]])] = left[0]
                        left.pop(0)
                    for future in wait(flying, return_when=FIRST_COMPLETED).done:
                        error = future.exception()
                        if isinstance(error, BrokenProcessPool):
                            raise error
                        part = flying.pop(future)
                        yield part, None if error else future.result(), _reason(error) if error else ""
        for part in flying.values():
            yield part, None, "a worker process died"


def _ray(work: Work, jobs: Mapping[str, Any], waiting: list[Chunk], workers: int | None) -> Iterator[Ended]:
    """On the cluster that this process is connected to or RAY_ADDRESS names, or on this machine.

    On a cluster `workers` are the chunks of jobs that run at once.
    """
    try:
        import ray
    except ImportError:
        raise InputError("Ray for engine ray", "none installed", "pip install 'warmstart[ray]'") from None
    address = os.environ.get("RAY_ADDRESS")
    if not ray.is_initialized():
        of_machine: dict[str, Any] = {} if address else {"num_cpus": workers, "include_dashboard": False}
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **of_machine)
        except ConnectionError as error:
            remedy = "start it, or unset RAY_ADDRESS to use this machine"
            raise InputError(f"a Ray cluster at RAY_ADDRESS {address}", _reason(error), remedy) from None
    # Ray itself tries again when a node dies
    remote, sent = ray.remote(max_retries=-1)(_checked), ray.put(work)
    left, flying = list(waiting), dict[Any, Chunk]()
    while left or flying:
        while left and len(flying) < (workers or len(waiting)):
            part = left.pop(0)
            flying[remote.remote(sent, [jobs[key] for key in part])] = part
        for future in ray.wait(list(flying))[0]:
            part = flying.pop(future)
            try:
                results, reason = ray.get(future), ""
            except Exception as error:
                results, reason = None, _reason(getattr(error, "cause", None) or error)
            yield part, results, reason
