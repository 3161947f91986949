"""Timing: contenders take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from warmstart.engine.loop import Report, silent

Call = Callable[[], object]


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


@contextmanager
def one_thread() -> Iterator[None]:
    """On a CPU all contenders have one thread: tiny matrices gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def wait(device: torch.device) -> None:
    """Until the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Call, device: torch.device, times: int = 1) -> float:
    """How long one of `times` calls in a row takes."""
    wait(device)
    began = time.perf_counter()
    for _ in range(times):
        call()
    wait(device)
    return (time.perf_counter() - began) / times


def cold(call: Call) -> Call:
    """`call` with a compiler that finds no earlier work of its own, neither on disk nor in memory."""

    def run() -> None:
        from torch._inductor.utils import fresh_inductor_cache  # imported here: loading it takes seconds

        with fresh_inductor_cache():
            call()

    return run


def interleave(contenders: Sequence[Contender], plan: Plan, progress: Report = silent) -> list[list[float]]:
    """For each contender, for each round, the median of its seconds per call."""
    times = [_calls(contender, plan.seconds) for contender in contenders]
    medians: list[list[float]] = [[] for _ in contenders]
    done, of = 0, plan.rounds * plan.repeats
    for _ in range(plan.rounds):
        found: list[list[float]] = [[] for _ in contenders]
        for _ in range(plan.repeats):
            for contender, calls, kept in zip(contenders, times, found, strict=True):
                kept.append(_measure(contender, calls))
            done += 1
            progress(done, of, "")
        for kept, median in zip(found, medians, strict=True):
            median.append(statistics.median(kept))
    return medians


def _calls(contender: Contender, least: float) -> int:
    return max(1, math.ceil(least / _measure(contender, 1)))


def _measure(contender: Contender, calls: int) -> float:
    call = contender.begin()
    call()  # the first one after a start pays for what the others find in the cache
    return seconds(call, contender.device, calls)


def describe(device: torch.device) -> str:
    """The device as a reader of results needs to know it."""
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    return f"cpu, one thread of {platform.processor() or platform.machine()}"
