"""The one loop of every trainer: (state, batch) -> (state, info), with progress, checkpoints and exact resume.

A batch is a function of the step's number, so a checkpoint is the state and a number, and a
resumed run on a CPU ends with the bits of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.core.trees import Tree, fill, leaves, named_leaves, to_device, tree_map
from warmstart.engine.files import finite, read_tensors, same_tensors, write_tensors, write_text

CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"


class Watch(NamedTuple):
    """Looks at the state now and then. `memo` is a tree of tensors, kept in the checkpoint."""

    memo: Tree
    look: Callable[[Tree, int, Any], tuple[Tree, bool, dict[str, float]]]  # -> memo, stop, what to log


class Diverged(InputError):
    """A loss or a state that is not finite; `memo` is what the watch remembers from before."""

    def __init__(self, got: str, remedy: str, memo: Tree) -> None:
        super().__init__("a finite loss", got, remedy)
        self.memo = memo


Report: TypeAlias = Callable[[int, int, str], None]  # steps done, steps in all, a few words


def silent(done: int, of: int, words: str) -> None:
    """The library itself prints nothing; a command passes a bar."""


NO_WATCH = Watch((), lambda memo, step, state: (memo, False, {}))


def run(
    update: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    source: Callable[[int], Any],
    steps: int,
    *,
    folder: Path | None = None,
    every: int = 500,
    watch: Watch = NO_WATCH,
    progress: Report = silent,
    record: Callable[[int, dict[str, float]], None] | None = None,
) -> tuple[Any, Tree]:
    """Run `update` for steps 0 .. steps - 1 and give the last state and the watch's memo.

    Every `every` steps: the figures are logged, the watch looks (and may stop the run), and with a
    folder a checkpoint is written. A run in a folder that holds a checkpoint goes on from there;
    an interrupt writes one first. A loss that is not finite stops the run.
    """
    memo, done, stopped = watch.memo, 0, False
    if folder is not None and (folder / CHECKPOINT).exists():
        state, memo, done, stopped = _resume(folder, state, memo)
    if folder is not None:
        _forget(folder / LOG, done)
    told: list[Any] = []
    began, first = time.perf_counter(), done
    try:
        while done < steps and not stopped:
            state, info = update(state, source(done))
            done += 1
            told.append(info)
            if done % every == 0 or done == steps:
                means = {name: torch.stack(each).mean().item() for name, each in _by_name(told)}
                told.clear()
                loss, words = means["loss"], _words(means)
                _check(loss, words, state, done, folder, memo)
                memo, stopped, figures = watch.look(memo, done, state)
                rate = (done - first) / (time.perf_counter() - began)
                figures = {**means, **figures, "per_second": rate}
                progress(done, steps, words)
                if record is not None:
                    record(done, figures)
                if folder is not None:
                    _log(folder, done, figures)
                    _checkpoint(folder, state, memo, done, stopped)
    except KeyboardInterrupt:
        # where a look is due, it was written with the memo or is to come again from the one before
        if folder is not None and done % every and done < steps and finite(named_leaves(state)):
            _checkpoint(folder, state, memo, done, stopped)
        raise
    return own_memory(state), memo


def conclude(folder: Path) -> None:
    """Let a run that can go no further count as ended: whoever runs it again gets what it remembers."""
    tensors, metadata = read_tensors(folder / CHECKPOINT)
    write_tensors(folder / CHECKPOINT, tensors, {**metadata, "stopped": "1"})


def _by_name(told: list[Any]) -> Iterator[tuple[str, list[Tensor]]]:
    """What each update said, field by field: the loss, and whatever else a method reports."""
    return ((name, [getattr(info, name) for info in told]) for name in told[0]._fields)


def _words(means: dict[str, float]) -> str:
    """The loss, and of what else a method reports whatever is not zero."""
    return ", ".join(f"{name} {value:.4g}" for name, value in means.items() if name == "loss" or value)


def own_memory(state: Any) -> Any:
    """A copy: a replayed graph goes on overwriting the state it returns."""
    return tree_map(lambda leaf: leaf.detach().clone(), state)


def _check(loss: float, words: str, state: Any, done: int, folder: Path | None, memo: Tree) -> None:
    if math.isfinite(loss) and finite(named_leaves(state)):
        return
    where = "no checkpoint was kept"
    if folder is not None and (folder / CHECKPOINT).exists():
        where = f"the last good checkpoint is {folder / CHECKPOINT}"
    got = f"{words} before step {done}"
    if math.isfinite(loss):
        got = f"a state that is not after step {done}, {words}"
    raise Diverged(got, f"lower the learning rates; {where}", memo)


def _checkpoint(folder: Path, state: Any, memo: Tree, done: int, stopped: bool) -> None:
    tensors = named_leaves({"state": state, "memo": memo})
    metadata = {"done": str(done), "stopped": str(int(stopped))}
    write_tensors(folder / CHECKPOINT, tensors, metadata)


def _resume(folder: Path, state: Any, memo: Tree) -> tuple[Any, Tree, int, bool]:
    path = folder / CHECKPOINT
    wanted = {"state": state, "memo": memo}
    found, metadata = read_tensors(path)
    same_tensors(found, named_leaves(wanted), path)
    device = leaves(state)[0].device if leaves(state) else "cpu"
    filled = to_device(fill(wanted, found), device)
    try:
        return filled["state"], filled["memo"], int(metadata["done"]), metadata["stopped"] == "1"
    except (KeyError, ValueError):
        raise InputError(f"a checkpoint in {path}", "tensors without their step", "choose another folder") from None


def _forget(log: Path, done: int) -> None:
    """Drop the lines of steps that will run again, and half a line that a killed run may have left."""

    def stays(line: str) -> bool:
        try:
            return bool(json.loads(line)["step"] <= done)
        except (ValueError, KeyError, TypeError):
            return False

    if log.exists():
        write_text(log, "".join(f"{line}\n" for line in log.read_text("utf-8").splitlines() if stays(line)))


def _log(folder: Path, done: int, figures: dict[str, float]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("a") as file:
            file.write(json.dumps({"step": done, **figures}) + "\n")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"to write {folder / LOG}", reason, "free space or choose another folder") from None
