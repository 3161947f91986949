"""Files that are either the old one or the new one, never half of one; tensors without pickle."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from warmstart.core import InputError


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside the target, then rename over it; on any failure the old file stays."""
    target, temporary = path.resolve(), None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"to write {path}", reason, "free space or choose another folder; nothing was changed"
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"a file {path.name} in {path.parent}", "none", "check the path, or save again") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"readable JSON in {path}", str(error), "restore the file, or save again") from None


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """One safetensors file; the metadata travels inside, so that both are always of one moment."""
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write_bytes(path, save(own, metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if path.suffix.lower() in {".pt", ".pth", ".pkl"}:
        raise InputError(
            "a .safetensors or .npz file",
            path.name,
            "convert: safetensors.torch.save_file(state_dict, 'model.safetensors')",
        )
    try:
        with safe_open(path, "pt") as file:
            # copies begin where torch's own tensors do: products with others may be rounded otherwise
            return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"a file {path.name} in {path.parent}", "none", "check the path, or save again") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"readable tensors in {path}", str(error), "restore the file, or save again") from None


def same_tensors(found: dict[str, Tensor], wanted: dict[str, Tensor], path: Path) -> None:
    """Complain unless the names and shapes agree."""
    missing = sorted(set(wanted) - set(found)) or sorted(set(found) - set(wanted))
    if missing:
        raise InputError(
            f"the tensors of this model in {path}", f"a difference at {missing[0]!r}", "load it with its own model"
        )
    for name, value in wanted.items():
        told, got = (f"{list(tensor.shape)} {tensor.dtype}" for tensor in (value, found[name]))
        if told != got:
            raise InputError(f"{name} of shape {told} in {path}", got, "load it with its own model")


def finite(tensors: dict[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in tensors.values() if value.is_floating_point())
