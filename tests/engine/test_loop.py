"""The loop: whatever interrupts it, a resumed run is the uninterrupted one."""

import json
import runpy
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.core.trees import leaves
from warmstart.engine import files
from warmstart.engine.files import read_tensors, write_tensors
from warmstart.engine.loop import CHECKPOINT, LOG, Diverged, Watch, run
from warmstart.engine.noise import generator
from warmstart.maths.outer import Delta, Info, outer

STEPS, EVERY = 20, 5
adam = outer(0.05, decay=STEPS, weight_decay=0.1)


def start():
    return adam.init({"w": torch.tensor([0.3, -0.7, 2.0]), "b": torch.tensor(0.1)})


def source(step):
    return torch.randn(4, 3, generator=generator(7, step))


def update(state, rows):
    """Adam on a rugged loss: every rounding of every step is seen at the end."""

    def loss(theta):
        return ((rows @ theta["w"]).sin() + theta["b"] - rows.sum(-1)).square().mean()

    grads, value = torch.func.grad_and_value(loss)(state.theta)
    return adam.update(state, Delta(grads), torch.tensor(1.0)), Info(value)


class Memo(NamedTuple):
    best: Tensor
    looks: Tensor
    seen: Any


def watch(patience=100):
    """Remembers the least first weight; stops after some looks without a smaller one."""

    def look(memo, step, state):
        value = (state.theta["w"][0] - 0.1).abs()
        better = bool(value < memo.best)
        seen = state.theta["w"].clone() if better else memo.seen
        new = Memo(torch.minimum(memo.best, value), torch.tensor(0) if better else memo.looks + 1, seen)
        return new, int(new.looks) >= patience, {"value": value.item()}

    return Watch(Memo(torch.tensor(float("inf")), torch.tensor(0), torch.zeros(3)), look)


def equal(a, b):
    return all(left.equal(right) for left, right in zip(leaves(a), leaves(b), strict=True))


def log(folder):
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def failing(error, when):
    """A source, an update and a look that raise `error`, each when its time comes for the first time."""
    raised = []

    def strike(place, step):
        if (place, step) == when and not raised:
            raised.append(True)
            raise error

    def broken_source(step):
        strike("source", step)
        return source(step)

    def broken_update(state, rows):
        strike("update", int(state.opt.done))
        return update(state, rows)

    def broken_watch():
        memo, look = watch()

        def broken_look(memo, step, state):
            strike("before look", step)
            found = look(memo, step, state)
            strike("after look", step)
            return found

        return Watch(memo, broken_look)

    return broken_update, broken_source, broken_watch()


@pytest.fixture(scope="module")
def uninterrupted():
    return run(update, start(), source, STEPS, every=EVERY, watch=watch())


@pytest.mark.parametrize("error", [RuntimeError("no data"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize(
    "when",
    [
        ("source", 0),
        ("source", 7),
        ("update", 7),
        ("update", 10),
        ("before look", 10),
        ("after look", 10),
        ("after look", 20),
        ("source", 19),
    ],
    ids=str,
)
def test_an_interrupted_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path, uninterrupted, error, when):
    broken = failing(error, when)
    with pytest.raises(type(error)):
        run(broken[0], start(), broken[1], STEPS, folder=tmp_path, every=EVERY, watch=broken[2])
    found = run(broken[0], start(), broken[1], STEPS, folder=tmp_path, every=EVERY, watch=broken[2])
    assert equal(found, uninterrupted)
    assert [line["step"] for line in log(tmp_path)] == [5, 10, 15, 20]


@pytest.mark.parametrize(
    ("error", "done"), [(RuntimeError("no data"), "5"), (KeyboardInterrupt(), "7")], ids=["error", "interrupt"]
)
def test_what_an_interrupt_and_an_error_leave(tmp_path, error, done):
    """An interrupt keeps the very step; an error, which may come of the state, keeps the last checkpoint."""
    broken = failing(error, ("source", 7))
    with pytest.raises(type(error)):
        run(broken[0], start(), broken[1], STEPS, folder=tmp_path, every=EVERY, watch=broken[2])
    assert read_tensors(tmp_path / CHECKPOINT)[1]["done"] == done


def test_interrupted_again_and_again(tmp_path, uninterrupted):
    for step in (2, 7, 8, 13):
        broken = failing(KeyboardInterrupt(), ("source", step))
        with pytest.raises(KeyboardInterrupt):
            run(broken[0], start(), broken[1], STEPS, folder=tmp_path, every=EVERY, watch=broken[2])
    assert equal(run(update, start(), source, STEPS, folder=tmp_path, every=EVERY, watch=watch()), uninterrupted)
    assert [line["step"] for line in log(tmp_path)] == [5, 10, 15, 20]


def test_a_finished_run_is_not_run_again(tmp_path, uninterrupted):
    run(update, start(), source, STEPS, folder=tmp_path, every=EVERY, watch=watch())

    def never(*args):
        raise AssertionError("ran again")

    found = run(never, start(), never, STEPS, folder=tmp_path, every=EVERY, watch=watch())
    assert equal(found, uninterrupted) and len(log(tmp_path)) == 4


@pytest.mark.parametrize("kill", [None, 7, 12], ids=["at once", "interrupted at 7", "interrupted at 12"])
def test_early_stopping_resumes_exactly(tmp_path, kill):
    """Three looks without improvement end the run: at the same step, with the same memo, however it got there."""
    expected, memo = run(update, start(), source, 400, every=EVERY, watch=watch(3))
    steps = int(expected.opt.done)
    assert 12 < steps < 400
    if kill is not None:
        broken = failing(KeyboardInterrupt(), ("source", kill))
        with pytest.raises(KeyboardInterrupt):
            run(broken[0], start(), broken[1], 400, folder=tmp_path, every=EVERY, watch=watch(3))
    for _ in range(2):  # the second call finds a run that has stopped
        found, seen = run(update, start(), source, 400, folder=tmp_path, every=EVERY, watch=watch(3))
        assert equal(found, expected) and equal(seen, memo)
    assert [line["step"] for line in log(tmp_path)] == list(range(EVERY, steps + 1, EVERY))


def poisoned(step, state_too):
    """Step `step` gives a loss that is not a number, or a finite loss and a state that is not."""

    def bad(state, rows):
        new, info = update(state, rows)
        if int(state.opt.done) == step:
            if state_too:
                return new._replace(theta={**new.theta, "b": torch.tensor(float("inf"))}), info
            return new, Info(torch.tensor(float("nan")))
        return new, info

    return bad


@pytest.mark.parametrize("state_too", [False, True], ids=["loss", "state"])
@pytest.mark.parametrize("step", [5, 7, 9])
def test_a_run_that_diverges_names_the_last_good_checkpoint(tmp_path, step, state_too):
    with pytest.raises(Diverged, match="lower the learning rates") as caught:
        run(poisoned(step, state_too), start(), source, STEPS, folder=tmp_path, every=EVERY, watch=watch())
    assert str(tmp_path / CHECKPOINT) in caught.value.remedy
    assert equal(caught.value.memo, run(update, start(), source, 5, every=EVERY, watch=watch())[1])
    tensors, metadata = read_tensors(tmp_path / CHECKPOINT)
    assert metadata["done"] == "5"
    assert files.finite({name: leaf for name, leaf in tensors.items() if name.startswith("state")})


def test_an_interrupt_does_not_save_a_state_that_has_diverged(tmp_path):
    bad = poisoned(6, True)
    with pytest.raises(KeyboardInterrupt):
        run(bad, start(), failing(KeyboardInterrupt(), ("source", 8))[1], STEPS, folder=tmp_path, every=EVERY)
    assert read_tensors(tmp_path / CHECKPOINT)[1]["done"] == "5"


def test_without_a_checkpoint_the_error_says_so(tmp_path):
    for folder in (None, tmp_path):
        with pytest.raises(InputError, match="no checkpoint was kept"):
            run(poisoned(2, False), start(), source, STEPS, folder=folder, every=EVERY)
    assert not (tmp_path / CHECKPOINT).exists()


def test_half_a_line_and_lines_from_before_the_first_checkpoint_do_not_stay(tmp_path, uninterrupted):
    (tmp_path / LOG).write_text('{"step": 5, "loss": 1.0}\n{"step": 10, "lo')
    assert equal(run(update, start(), source, STEPS, folder=tmp_path, every=EVERY, watch=watch()), uninterrupted)
    assert [line["step"] for line in log(tmp_path)] == [5, 10, 15, 20]
    with (tmp_path / LOG).open("a") as file:
        file.write('{"step": 25, "loss"')
    run(update, start(), source, STEPS + 5, folder=tmp_path, every=EVERY, watch=watch())
    assert [line["step"] for line in log(tmp_path)] == [5, 10, 15, 20, 25]


def test_what_is_logged_and_told():
    told, recorded, losses = [], [], []

    def noted(state, rows):
        state, info = update(state, rows)
        losses.append(info.loss)
        return state, info

    run(
        noted,
        start(),
        source,
        12,
        every=EVERY,
        watch=watch(),
        progress=lambda done, of, words: told.append((done, of, words)),
        record=lambda step, figures: recorded.append((step, figures)),
    )
    assert [(done, of) for done, of, _ in told] == [(5, 12), (10, 12), (12, 12)]
    assert [step for step, _ in recorded] == [5, 10, 12]
    for (_, figures), part in zip(recorded, (losses[:5], losses[5:10], losses[10:]), strict=True):
        assert figures["loss"] == torch.stack(part).mean().item()
        assert {"value", "per_second"} <= set(figures)


def test_the_state_returned_is_a_copy():
    """A replayed graph goes on overwriting the state it returned."""
    static = {"w": torch.zeros(2)}

    def replay(state, rows):
        static["w"] += 1
        return static, Info(torch.tensor(0.0))

    found, _ = run(replay, static, source, 3)
    replay(static, None)
    assert found["w"].tolist() == [3.0, 3.0]


def test_a_checkpoint_of_something_else(tmp_path):
    run(update, start(), source, EVERY, folder=tmp_path, every=EVERY)
    other = adam.init({"w": torch.zeros(4), "b": torch.tensor(0.1)})
    with pytest.raises(InputError, match="load it with its own model"):
        run(update, other, source, STEPS, folder=tmp_path, every=EVERY)
    with pytest.raises(InputError, match="memo"):
        run(update, start(), source, STEPS, folder=tmp_path, every=EVERY, watch=watch())
    tensors, _ = read_tensors(tmp_path / CHECKPOINT)
    write_tensors(tmp_path / CHECKPOINT, tensors)
    with pytest.raises(InputError, match="without their step"):
        run(update, start(), source, STEPS, folder=tmp_path, every=EVERY)
    (tmp_path / CHECKPOINT).write_bytes(b"half a file")
    with pytest.raises(InputError, match="readable tensors"):
        run(update, start(), source, STEPS, folder=tmp_path, every=EVERY)


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(tmp_path, monkeypatch, uninterrupted):
    def full(path, content):
        raise InputError(f"to write {path}", "No space left on device", "free space")

    run(update, start(), source, EVERY, folder=tmp_path, every=EVERY, watch=watch())
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_bytes", full)
        with pytest.raises(InputError, match="No space left"):
            run(update, start(), source, STEPS, folder=tmp_path, every=EVERY, watch=watch())
    assert equal(run(update, start(), source, STEPS, folder=tmp_path, every=EVERY, watch=watch()), uninterrupted)


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="choose another folder"):
        run(update, start(), source, STEPS, folder=tmp_path / "file", every=EVERY)


CHILD = """
import sys, time
from pathlib import Path
from typing import NamedTuple
import torch
from warmstart.engine.loop import run

class Info(NamedTuple):
    loss: torch.Tensor

def source(step):
    return torch.randn(3, generator=torch.Generator().manual_seed(step))

def update(state, rows):
    return {"w": (state["w"] * 0.9 + rows).sin(), "done": state["done"] + 1}, Info(rows.mean())

def start():
    return {"w": torch.tensor([0.1, 0.2, 0.3]), "done": torch.tensor(0)}

def slow(state, rows):
    print(int(state["done"]), flush=True)
    time.sleep(0.002)
    return update(state, rows)

if __name__ == "__main__":
    torch.set_num_threads(1)
    run(slow, start(), source, 10**6, folder=Path(sys.argv[1]), every=20)
"""


def test_kill_9_loses_at_most_one_interval(tmp_path):
    script, folder = tmp_path / "child.py", tmp_path / "run"
    script.write_text(CHILD)
    last, begun = 0, time.monotonic()
    with subprocess.Popen([sys.executable, script, folder], stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:  # to its end, which is where it was killed
            last = int(line)
            assert time.monotonic() - begun < 60
            if last == 73:
                child.send_signal(signal.SIGKILL)
    done = int(read_tensors(folder / CHECKPOINT)[1]["done"])
    assert 0 < done <= last + 1 and last - done <= 20
    names = runpy.run_path(str(script))
    resumed, _ = run(names["update"], names["start"](), names["source"], done + 33, folder=folder, every=20)
    expected, _ = run(names["update"], names["start"](), names["source"], done + 33)
    assert equal(resumed, expected)
    steps = [line["step"] for line in log(folder)]
    assert steps == sorted(set(steps)) and steps[-1] == done + 33


def test_whatever_an_update_tells_is_logged_as_its_mean(tmp_path):
    class Told(NamedTuple):
        loss: Tensor
        clamped: Tensor

    tell = lambda state, rows: (state, Told(torch.tensor(1.0), rows.sum() * 0 + len(rows)))  # noqa: E731
    said = []
    progress = lambda done, of, words: said.append(words)  # noqa: E731
    source = lambda step: torch.ones(step + 1 if step > 1 else 0)  # noqa: E731
    run(tell, {"w": torch.zeros(1)}, source, 4, folder=tmp_path, every=2, progress=progress)
    assert [line["clamped"] for line in log(tmp_path)] == [0, 3.5]
    assert said == ["loss 1", "loss 1, clamped 3.5"]  # what is zero is no news
