"""A fit that was killed or interrupted goes on, and ends with the bits of one that was not."""

import signal
import subprocess
import sys

from safetensors import safe_open

# waits before a step, so that it is there that a signal finds it, however busy the machine is
CODE = """
import signal, sys
from warmstart.cli import main
from warmstart.estimators import fitting

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a start in the background would have switched off
from_pool, at = fitting.from_pool, int(sys.argv.pop())

def waiting(*arguments):
    source = from_pool(*arguments)

    def wait(step):
        if step == at:
            print("here", flush=True)
            signal.pause()
        return source(step)

    return wait

fitting.from_pool = waiting
main()
"""
STEPS, EVERY = 60, 20


def steps_done(folder):
    """Steps of the checkpoint under a folder."""
    (path,) = folder.rglob("checkpoint.safetensors")
    with safe_open(path, "pt") as file:
        return int(file.metadata()["done"])


def stop(line, at, number):
    """Start the command and send it a signal when it waits before step `at`."""
    command = [sys.executable, "-c", CODE, *map(str, line), str(at)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n", process.communicate()[1]
    process.send_signal(number)
    told = process.communicate()[1]
    return process.returncode, told


def test_killed_and_interrupted_fit_ends_with_the_same_bits(cli, home, tmp_path, fast, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = (*fast, "--every", EVERY, "--steps", STEPS, "--method", "pretrain", "--device", "cpu", "--seed", "3")
    line = ("fit", home / "rows.csv", "--task", "user", "--target", "y", *plan, "-o")
    folder = tmp_path / ".model.run"
    code, _ = stop([*line, tmp_path / "model"], EVERY + 5, signal.SIGKILL)
    assert code == -signal.SIGKILL and steps_done(folder) == EVERY and not (tmp_path / "model").exists()
    code, told = stop([*line, tmp_path / "model"], 2 * EVERY + 7, signal.SIGINT)
    assert code == 130 and told == "interrupted; the same fit command goes on from its last checkpoint\n"
    assert steps_done(folder) == 2 * EVERY + 7
    assert cli(*line, tmp_path / "model").code == 0 and not folder.exists()
    assert cli(*line, tmp_path / "whole").code == 0
    ours, theirs = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("model", "whole"))
    assert ours == theirs
