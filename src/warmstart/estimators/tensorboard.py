"""Training figures for TensorBoard (extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from warmstart.core import InputError


@contextmanager
def recorder(folder: Path) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """What `fit(record=...)` takes; the files are closed at the end of the block."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        remedy = "pip install 'warmstart[tensorboard]'"
        raise InputError("the extra tensorboard", "it is not installed", remedy) from None
    try:
        writer = SummaryWriter(folder)
    except OSError as error:
        raise InputError(f"to write the folder {folder}", error.strerror or str(error), "choose another") from None

    def record(step: int, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    with writer:
        yield record
