"""A fit that was killed or interrupted goes on, and ends with the bits of one that was not."""

import signal
import subprocess
import sys
import time

from safetensors import safe_open

CODE = "import sys; from warmstart.cli import main; main()"
STEPS = 500


def steps_done(folder):
    """Steps of the checkpoint under a folder; 0 without one."""
    for path in folder.rglob("checkpoint.safetensors"):
        with safe_open(path, "pt") as file:
            return int(file.metadata()["done"])
    return 0


def stop(line, folder, after, number):
    """Start the command and send it a signal once its checkpoint is later than `after` steps."""
    process = subprocess.Popen([sys.executable, "-c", CODE, *map(str, line)], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while steps_done(folder) <= after and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(number)
    told = process.communicate()[1]
    return process.returncode, told


def test_killed_and_interrupted_fit_ends_with_the_same_bits(cli, home, tmp_path, fast, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # so that a signal arrives in time on a busy machine, and training is not stopped early
    slow = ("--tasks", 1000, "--every", STEPS // 10)
    plan = (*fast, *slow, "--steps", STEPS, "--method", "pretrain", "--device", "cpu", "--seed", "3")
    line = ("fit", home / "rows.csv", "--task", "user", "--target", "y", *plan, "-o")
    folder = tmp_path / ".model.run"
    code, _ = stop([*line, tmp_path / "model"], folder, 0, signal.SIGKILL)
    killed = steps_done(folder)
    assert code == -signal.SIGKILL and 0 < killed < STEPS and not (tmp_path / "model").exists()
    code, told = stop([*line, tmp_path / "model"], folder, killed, signal.SIGINT)
    assert code == 130 and told == "interrupted; the same fit command goes on from its last checkpoint\n"
    assert killed < steps_done(folder) < STEPS
    assert cli(*line, tmp_path / "model").code == 0 and not folder.exists()
    assert cli(*line, tmp_path / "whole").code == 0
    ours, theirs = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("model", "whole"))
    assert ours == theirs
