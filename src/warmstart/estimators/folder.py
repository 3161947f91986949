"""A saved model: a folder that is whole or not there.

`config.json` says what it is, `weights.safetensors` holds every tensor, `schema.json` the columns,
vocabularies and task split, `card.md` a page for people, `log.jsonl` how the training went.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save

from warmstart import __version__
from warmstart.core import InputError
from warmstart.core.trees import Tree, named_leaves
from warmstart.engine.files import read_json
from warmstart.engine.loop import LOG

FORMAT = 1
CONFIG, WEIGHTS, SCHEMA, CARD = "config.json", "weights.safetensors", "schema.json", "card.md"
PAGE = "report.html"  # of a generator and of what it generates
FILES = {CONFIG, WEIGHTS, SCHEMA, CARD, PAGE, LOG}


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    """Write all files beside the target, then swap the folders; on any failure the old one stays."""
    new: Path | None = None
    old: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_target(path, json.loads(files[CONFIG])["kind"])
        new = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        for name, content in files.items():
            with (new / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        new.chmod(0o755)
        if path.exists():
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
            path.replace(old / path.name)
        new.replace(path)
    except OSError as error:
        if old is not None and not path.exists() and (old / path.name).exists():
            (old / path.name).replace(path)
        raise _unwritable(path, error) from None
    finally:
        for left in (new, old):
            if left is not None and left.exists():
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def run_folder(path: Path, kind: str) -> Iterator[Path]:
    """A hidden folder beside a model to be, for checkpoints: gone once the block ends well, else kept to resume from.

    Entering it shows, before any work is done, that a model of the kind can be written there.
    """
    path = path.resolve()
    run = path.with_name(f".{path.name}.run")
    try:
        check_target(path, kind)
        run.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=run).close()
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        yield run
    except BaseException:
        if not any(run.iterdir()):
            run.rmdir()
        raise
    shutil.rmtree(run, ignore_errors=True)  # another rank may have been here first


def check_target(path: Path, kind: str) -> None:
    """A folder is replaced as a whole, so it may hold nothing but a model, and none of another kind."""
    if not path.exists():
        return
    strange = sorted({file.name for file in path.iterdir()} - FILES) if path.is_dir() else ["a file"]
    if strange:
        raise InputError(f"a new folder or a saved model at {path}", strange[0], "choose another path")
    try:
        there = read_kind(path)
    except InputError:  # empty, or damaged
        return
    if kind != there:
        got = f"one of kind '{there}'"
        raise InputError(f"a new folder or a saved model of kind '{kind}' at {path}", got, "choose another path")


def _unwritable(path: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(f"to write the folder {path}", reason, "free space or choose another folder; nothing was changed")


def pack(config: dict[str, Any], tensors: Tree, schema: str | None, card: str) -> dict[str, bytes]:
    """The files of a model."""
    head = {"format": FORMAT, "warmstart": __version__, **config}
    own = {name: value.detach().cpu().contiguous().clone() for name, value in named_leaves(tensors).items()}
    files = {
        CONFIG: (json.dumps(head, indent=1, allow_nan=False) + "\n").encode(),
        WEIGHTS: save(own),
        CARD: card.encode(),
    }
    return files if schema is None else {**files, SCHEMA: schema.encode()}


def read_kind(path: Path) -> str:
    """What a folder holds: a model of a table, one adapted to a task, or one of pictures."""
    return str(_read_config(path).get("kind"))


def read_config(path: Path, kind: str) -> dict[str, Any]:
    config = _read_config(path)
    if config.get("kind") != kind:
        raise InputError(f"a model of kind {kind} in {path}", repr(config.get("kind")), "pass the other folder")
    return config


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise InputError(f"a model folder at {path}", "none", "pass the folder of a saved model")
    config = read_json(path / CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get("format"), int):
        raise InputError(f"a model's {CONFIG} in {path}", "something else", "restore the file, or fit again")
    if config["format"] > FORMAT:
        made = config.get("warmstart", "a newer version")
        raise InputError(f"format {FORMAT} or older in {path}", f"{config['format']}", f"update warmstart to {made}")
    return config


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(f"a readable file {path.name} in {path.parent}", "none", "restore it, or fit again") from None
