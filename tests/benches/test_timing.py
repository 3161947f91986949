"""The clockwork on a clock that the test winds."""

import os
from pathlib import Path

import pytest
import torch

from warmstart.benches import timing
from warmstart.benches.timing import (
    Contender,
    Plan,
    describe,
    in_new_process,
    interleave,
    nothing_compiled,
    one_thread,
    seconds,
)

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


def test_compilers_get_a_new_place_for_a_while(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "old")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    with nothing_compiled():
        place = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert place.is_dir() and list(place.iterdir()) == []
        assert os.environ["TRITON_CACHE_DIR"] == os.environ["TMPDIR"] == str(place)
    assert not place.exists()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "old" and "TRITON_CACHE_DIR" not in os.environ


def test_a_function_of_words_runs_in_a_process_of_its_own():
    assert in_new_process(float, "1.25") == 1.25
    assert in_new_process(os.getpid) != os.getpid()


def test_a_cpu_is_described_with_its_one_thread():
    assert describe(CPU).startswith("cpu, one thread of ")
