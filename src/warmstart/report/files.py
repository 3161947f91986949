"""Files that are either whole or untouched."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from warmstart.core import InputError


def write_atomic(path: str | Path, text: str) -> None:
    """Write beside the target, then rename over it: a reader sees the old file or the new one, never half."""
    target = Path(path).resolve()
    draft = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # backslashreplace: a file name may hold bytes that are not text, and in JSON the escape is the right spelling
        with draft.open("x", encoding="utf-8", errors="backslashreplace", newline="") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        draft.replace(target)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"to write {target}", reason.lower(), "free some space or choose another folder") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
