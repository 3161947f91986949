"""Jobs: each once, whatever is killed; failures are reported; all engines give the same."""

import functools
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from warmstart.core import InputError
from warmstart.engine.files import read_json
from warmstart.engine.jobs import run_jobs

JOBS = {f"{i}, seed {i % 3}": [i, i % 3] for i in range(20)}


def square(arguments):
    return [{"value": (i + 0.1 * seed) ** 2} for i, seed in arguments]


def noted(place, arguments):
    """Leaves a line for every job that it does."""
    with Path(place).open("a") as file:
        file.writelines(f"{i}\n" for i, _ in arguments)
    return square(arguments)


def failing(place, arguments):
    """Job 3 always fails, job 5 fails the first time."""
    for i, _ in arguments:
        mark = Path(place, str(i))
        if i == 3 or (i == 5 and not mark.exists()):
            mark.touch()
            raise RuntimeError(f"no luck with {i}")
    return square(arguments)


def dying(place, arguments):
    """Job 7 kills its process the first time."""
    for i, _ in arguments:
        mark = Path(place, str(i))
        if i == 7 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return square(arguments)


def slow(place, arguments):
    time.sleep(0.01)
    return noted(place, arguments)


def on_node(place, arguments):
    """Leaves the name of the Ray node that it runs on; nobody goes on before both have begun, or a minute is over."""
    own, first = importlib.import_module("ray").get_runtime_context().get_node_id(), Path(f"{place}.first")
    if not first.exists():
        first.touch()
    with Path(place).open("a") as file:
        file.write(f"{own}\n")
    while len(set(Path(place).read_text().split())) < 2 and time.time() < first.stat().st_mtime + 60:
        time.sleep(0.05)
    return square(arguments)


def alone(place, arguments):
    """Fails where another chunk is at work."""
    mark = Path(place, "at work")
    mark.touch(exist_ok=False)
    time.sleep(0.05)
    mark.unlink()
    return square(arguments)


EXPECTED = {key: square([argument])[0] for key, argument in JOBS.items()}


@pytest.mark.parametrize("chunk", [1, 6])
def test_results_come_in_the_order_of_the_jobs(chunk):
    done = run_jobs(square, JOBS, chunk=chunk)
    assert done.values == EXPECTED and list(done.values) == list(JOBS) and done.failed == {} and done.ran == 20


def test_what_the_store_holds_is_not_run_again(tmp_path):
    lines = tmp_path / "lines"
    half = dict(list(JOBS.items())[:9])
    work = functools.partial(noted, str(lines))
    run_jobs(work, half, store=tmp_path / "store", config={"rate": 0.1}, chunk=4)
    done = run_jobs(work, JOBS, store=tmp_path / "store", config={"rate": 0.1}, chunk=4)
    assert done.values == EXPECTED and done.ran == 11
    assert sorted(map(int, lines.read_text().split())) == list(range(20))


def test_a_store_of_another_configuration_is_refused(tmp_path):
    run_jobs(square, JOBS, store=tmp_path, config={"rate": 0.1})
    with pytest.raises(InputError, match="a job store of this configuration"):
        run_jobs(square, JOBS, store=tmp_path, config={"rate": 0.2})


def test_failures_are_tried_again_and_then_reported(tmp_path):
    (tmp_path / "marks").mkdir()
    work = functools.partial(failing, str(tmp_path / "marks"))
    done = run_jobs(work, JOBS, store=tmp_path / "store", chunk=4, retries=1)
    assert done.failed == {"3, seed 0": "RuntimeError: no luck with 3"}
    assert done.values == {key: value for key, value in EXPECTED.items() if key != "3, seed 0"}
    held = [key for file in (tmp_path / "store").glob("done-*.json") for key in read_json(file)["values"]]
    assert sorted(held) == sorted(done.values)


def test_a_wrong_number_of_results_is_a_failure():
    done = run_jobs(lambda arguments: square(arguments)[1:], JOBS, retries=0)
    assert not done.values and set(done.failed.values()) == {"ValueError: 0 results for 1 jobs"}


@pytest.mark.parametrize(("name", "value"), [("engine", "threads"), ("chunk", 0), ("retries", -1)])
def test_bad_settings_are_refused(name, value):
    with pytest.raises(InputError):
        run_jobs(square, JOBS, **{name: value})


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from test_jobs import slow, functools
from warmstart.engine.jobs import run_jobs
jobs = {str(i): [i, 0] for i in range(200)}
run_jobs(functools.partial(slow, sys.argv[1]), jobs, store=Path(sys.argv[2]), config="c")
"""


def test_kill_9_in_the_middle_of_200_jobs_loses_nothing_that_was_finished(tmp_path):
    lines, store = tmp_path / "lines", tmp_path / "store"
    command = [sys.executable, "-c", SCRIPT, str(lines), str(store), str(Path(__file__).parent)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 120
    while len(list(store.glob("done-*.json"))) < 40 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    finished = {key for file in store.glob("done-*.json") for key in read_json(file)["values"]}
    assert 40 <= len(finished) < 200
    before = list(map(int, lines.read_text().split()))
    jobs = {str(i): [i, 0] for i in range(200)}
    done = run_jobs(functools.partial(noted, str(lines)), jobs, store=store, config="c")
    assert done.ran == 200 - len(finished)
    assert done.values == {key: square([argument])[0] for key, argument in jobs.items()}
    after = list(map(int, lines.read_text().split()))[len(before) :]
    assert not {str(i) for i in after} & finished  # no finished job ran twice
    assert len(after) == done.ran


@pytest.fixture
def here(monkeypatch):
    """This module as worker processes can import it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    return importlib.import_module("test_jobs")


def test_processes_give_the_same_and_survive_a_dead_worker(tmp_path, here):
    work = functools.partial(here.dying, str(tmp_path))
    done = run_jobs(work, JOBS, engine="processes", workers=1, chunk=10)
    assert done.values == EXPECTED and done.failed == {}
    assert (tmp_path / "7").exists()


def test_ray_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"warmstart\[ray\]"):
        run_jobs(square, JOBS, engine="ray")


def test_ray_gives_the_same_when_one_of_two_nodes_is_killed(tmp_path, here, monkeypatch):
    """On the cluster that RAY_ADDRESS names; workers are the chunks that run there at once."""
    ray = pytest.importorskip("ray", reason="extra ray is not installed")
    utilities = importlib.import_module("ray.cluster_utils")
    cluster = utilities.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        one_by_one = run_jobs(functools.partial(here.alone, str(tmp_path)), JOBS, engine="ray", workers=1, chunk=5)
        assert one_by_one.values == EXPECTED and one_by_one.failed == {}
        assert ray.cluster_resources()["CPU"] == 2
        places, killed = tmp_path / "places", []

        def progress(done, of, words):
            if not killed:
                cluster.remove_node(node, allow_graceful=False)
                killed.append(len(set(places.read_text().split())))

        work = functools.partial(here.on_node, str(places))
        done = run_jobs(work, JOBS, store=tmp_path / "store", engine="ray", progress=progress)
        assert done.failed == {}
        assert killed == [2]  # both nodes were at work when one was killed, at the first of twenty results
        assert done.values == EXPECTED
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_cluster_that_is_not_there_is_named(monkeypatch):
    ray = pytest.importorskip("ray", reason="extra ray is not installed")

    def refuse(**given):
        raise ConnectionError("nobody answers")

    monkeypatch.setenv("RAY_ADDRESS", "nowhere:1")
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(InputError, match=r"a Ray cluster at RAY_ADDRESS nowhere:1, got .*nobody answers; start it"):
        run_jobs(square, JOBS, engine="ray")
