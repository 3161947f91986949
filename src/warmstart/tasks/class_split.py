"""Which classes are trained on, chosen by and judged on; a split is a file of class names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from warmstart.core import InputError
from warmstart.engine.files import read_json, write_json
from warmstart.tasks.images import Images
from warmstart.tasks.split import Split, digest, split_tasks


def split_classes(images: Images, parts: Sequence[int] | Sequence[float], seed: int = 0) -> Split:
    """Training, validation and test classes by counts (whole numbers) or shares that sum to 1.

    The order that is cut is that of a hash of seed and name: the same on every machine, whatever
    order the classes come in. Within a part the classes keep the order of `images`.
    """
    names = images.names
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError("distinct class names", f"'{twice}' more than once", "rename one of them")
    if not all(isinstance(part, int) for part in parts):
        chosen = split_tasks(names, parts, seed)
    else:
        if len(parts) != 3 or min(parts) < 0 or parts[0] < 1 or sum(parts) != len(names):
            expected = f"three counts that add up to {len(names)} classes, the first of them positive"
            raise InputError(expected, str(tuple(parts)), "pass training, validation and test")
        order = sorted(names, key=lambda name: digest(f"{seed}:{name}"))
        first, second = int(parts[0]), int(parts[0] + parts[1])
        chosen = Split(tuple(order[:first]), tuple(order[first:second]), tuple(order[second:]))
    place = {name: i for i, name in enumerate(names)}
    return Split(*(tuple(sorted(part, key=place.__getitem__)) for part in chosen))


def take_classes(images: Images, names: Sequence[str]) -> Images:
    """The classes of these names, in this order. Turned copies (`with_rotations`) are added after this."""
    place = {name: i for i, name in enumerate(images.names)}
    missing = [name for name in names if name not in place]
    if missing:
        got = f"{len(missing)} missing, the first '{missing[0]}'"
        raise InputError(f"{len(names)} classes of a split in the data", got, "pass the data that was split")
    return images.select(torch.tensor([place[name] for name in names], dtype=torch.long))


def save_split(path: str | Path, split: Split) -> None:
    write_json(Path(path), split._asdict())


def load_split(path: str | Path) -> Split:
    """What `save_split` wrote, or the same by hand: no class in two parts."""
    content = read_json(Path(path))
    if not isinstance(content, dict) or set(content) != set(Split._fields):
        got = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise InputError(f"train, validation and test in {path}", got or "nothing", "save the split again")
    parts = [content[field] for field in Split._fields]
    if not all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in parts):
        raise InputError(f"three lists of class names in {path}", "something else", "save the split again")
    seen: set[str] = set()
    for name in (name for part in parts for name in part):
        if name in seen:
            raise InputError(f"each class once in {path}", f"'{name}' more than once", "correct the file")
        seen.add(name)
    return Split(*(tuple(part) for part in parts))
