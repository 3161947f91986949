"""Where a public dataset lies below the folder that a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from warmstart.core import InputError


def given(path: Path | None, dataset: str) -> Path:
    """The folder of public datasets, which whoever needs one must be told."""
    if path is None:
        raise InputError(f"a folder with {dataset}", "none", "name it with --data DIR or in WARMSTART_DATA")
    return path


def find_files(path: str | Path, folder: str, choices: Sequence[Sequence[str]]) -> list[Path]:
    """The files of the first choice that lies whole in `path`, or else in its sub-folder `folder`."""
    root = Path(path)
    if not root.is_dir():
        raise InputError(f"a folder {root}", "a file" if root.exists() else "none there", "check the path")
    for place in (root, root / folder):
        for names in choices:
            if all((place / name).exists() for name in names):
                return [place / name for name in names]
    wanted = ", or ".join(" and ".join(names) for names in choices)
    remedy = "download from the publisher, and pass the folder with --data or WARMSTART_DATA"
    raise InputError(f"{wanted} in {root} or its folder {folder}", "neither" if len(choices) == 2 else "none", remedy)
