"""Export to ONNX (extra `onnx`)."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from warmstart.core import InputError, Tree
from warmstart.engine.files import write_bytes


def export(
    module: nn.Module, example: Tree, path: Path, outputs: list[str], about: Mapping[str, str] | None = None
) -> None:
    """Write `module`, which takes the entries of `example` with any number of rows; `about` goes to the metadata."""
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError("the extra onnx", "it is not installed", "pip install 'warmstart[onnx]'") from None
    rows = torch.export.Dim("rows", min=1)
    shapes: dict[str, Any] = {name: {0: rows} for name in example}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), _hushed("torch.onnx"):
        warnings.simplefilter("ignore")  # the exporter warns of its own internals
        target = Path(folder) / "model.onnx"
        program = torch.onnx.export(
            module.eval(),
            tuple(example.values()),
            input_names=list(example),
            output_names=outputs,
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.model.metadata_props.update(about or {})
        program.save(target, external_data=False)
        write_bytes(path, target.read_bytes())


@contextmanager
def _hushed(name: str) -> Iterator[None]:
    """Errors only from the logger of that name and those below it."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
