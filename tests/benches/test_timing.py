"""The clockwork on a clock that the test winds."""

import os
from pathlib import Path

import pytest
import torch

from warmstart.benches import timing
from warmstart.benches.timing import Contender, Plan, cold, describe, interleave, one_thread, seconds

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def contender(name, clock, costs, log):
    """Its calls cost what `costs` says, one after the other over all runs, the last for ever."""
    left = list(costs)

    def call():
        log.append(name)
        clock[0] += left.pop(0) if len(left) > 1 else left[0]

    return Contender(name, CPU, lambda: call)


def test_contenders_take_turns_and_calls_fill_the_time(clock):
    log = []
    quick, slow = contender("quick", clock, [0.5], log), contender("slow", clock, [2.0], log)
    assert interleave([quick, slow], Plan(rounds=2, repeats=1, seconds=1.2)) == [[0.5, 0.5], [2.0, 2.0]]
    # two calls each to choose how often; then in every turn one to warm up and 3 or 1 that count
    turn = ["quick"] * 4 + ["slow"] * 2
    assert log == ["quick"] * 2 + ["slow"] * 2 + turn * 2


def test_a_round_gives_the_median_of_its_repeats(clock):
    costs = [1, 1, 9, 4, 9, 2, 9, 300, 9, 5, 9, 6, 9, 7]  # after the first two: a warm-up, then what counts
    found = interleave([contender("one", clock, costs, [])], Plan(rounds=2, repeats=3, seconds=1.0))
    assert found == [[4, 6]]


def test_progress_counts_every_repeat(clock):
    told = []
    plan = Plan(rounds=2, repeats=2, seconds=1.0)
    interleave([contender("one", clock, [1.0], [])], plan, lambda done, of, words: told.append((done, of)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_seconds_are_those_of_one_call(clock):
    assert seconds(contender("one", clock, [1.0, 2.0, 6.0], []).begin(), CPU, 3) == 3.0


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_one_thread_is_given_back_also_after_an_error(two_threads):
    found = []

    def fail():
        found.append(torch.get_num_threads())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), one_thread():
        fail()
    assert found == [1] and torch.get_num_threads() == 2


def test_cold_hides_what_was_compiled_before():
    place = "TORCHINDUCTOR_CACHE_DIR"
    before, found = os.environ.get(place), []
    cold(lambda: found.append(os.environ[place]))()
    assert found[0] != before and not Path(found[0]).exists()
    assert os.environ.get(place) == before


def test_a_cpu_is_described_with_its_one_thread():
    assert describe(CPU).startswith("cpu, one thread of ")
