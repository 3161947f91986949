"""Timing: contenders take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from threadpoolctl import threadpool_limits

from warmstart.engine.loop import Report, silent

Call = Callable[[], object]
DATA = 31 * 2**20  # bytes; glibc looks at no larger block


class Contender(NamedTuple):
    """`begin` starts over from the same state and gives the function that is timed: old states would be
    slow on a CPU once numbers in them have shrunk below the smallest normal one."""

    name: str
    device: torch.device
    begin: Callable[[], Call]
    peer: str = ""  # a library and its version; "" when it is ours


class Plan(NamedTuple):
    rounds: int = 3  # each gives one number, the median of its repeats
    repeats: int = 7
    seconds: float = 0.03  # calls are repeated until a measurement lasts so long
    processor: bool = False  # of this process alone, for work on a CPU: what others run at the time does not count


@contextmanager
def one_thread() -> Iterator[None]:
    """On a CPU all contenders have one thread, of torch and of numpy: tiny matrices gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def wait(device: torch.device) -> None:
    """Until the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Call, device: torch.device, times: int = 1, processor: bool = False) -> float:
    """How long one of `times` calls in a row takes."""
    now = time.process_time if processor else time.perf_counter
    wait(device)
    began = now()
    for _ in range(times):
        call()
    wait(device)
    return (now() - began) / times


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Compilers find no earlier work of theirs, here and in processes that start inside, and share what they do."""
    places = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {place: os.environ[place] for place in places if place in os.environ}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(dict.fromkeys(places, folder))
        try:
            yield
        finally:
            for place in places:
                del os.environ[place]
            os.environ.update(before)


def in_new_process(function: Callable[..., float], *words: str) -> float:
    """What a module's function of some words gives in a process of its own."""
    code = (
        f"import sys; from {function.__module__} import {function.__name__} as call; "
        "open(sys.argv[1], 'w').write(repr(call(*sys.argv[2:])))"
    )
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer")
        subprocess.run([sys.executable, "-c", code, str(answer), *words], check=True)
        return float(answer.read_text())


def keep_pages() -> None:
    """From now on freed memory stays with the process: glibc keeps twice the largest block that was ever freed, and a
    process that trains has read data. Without any, who needs a large block gets it page by page each time."""
    torch.zeros(DATA, dtype=torch.uint8)


def interleave(contenders: Sequence[Contender], plan: Plan, progress: Report = silent) -> list[list[float]]:
    """For each contender, for each round, the median of its seconds per call."""
    keep_pages()
    times = [_calls(contender, plan) for contender in contenders]
    medians: list[list[float]] = [[] for _ in contenders]
    done, of = 0, plan.rounds * plan.repeats
    for _ in range(plan.rounds):
        found: list[list[float]] = [[] for _ in contenders]
        for _ in range(plan.repeats):
            for contender, calls, kept in zip(contenders, times, found, strict=True):
                kept.append(_measure(contender, calls, plan.processor))
            done += 1
            progress(done, of, "")
        for kept, median in zip(found, medians, strict=True):
            median.append(statistics.median(kept))
    return medians


def _calls(contender: Contender, plan: Plan) -> int:
    return max(1, math.ceil(plan.seconds / _measure(contender, 1, plan.processor)))


def _measure(contender: Contender, calls: int, processor: bool) -> float:
    call = contender.begin()
    call()  # the first one after a start pays for what the others find in the cache
    return seconds(call, contender.device, calls, processor)


def describe(device: torch.device) -> str:
    """The device as a reader of results needs to know it."""
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    return f"cpu, one thread of {platform.processor() or platform.machine()}"
