"""Pictures from a folder with one sub-folder for each class, or from a flat folder without classes.

A class is any folder that directly holds pictures, so `alphabet/character` folders work too; its
name is its path below the one given. Everything is read in sorted order. Mixed sizes and modes are
converted, and notes say what was done, each thing once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.tasks.images import Images, make_images
from warmstart.tasks.picture_file import FORMATS, SUFFIXES
from warmstart.tasks.picture_stack import Broken, count_of, some_names, stack_pictures

PARTS = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})


def read_folder(
    path: str | Path,
    size: tuple[int, int] | None = None,
    colour: bool | None = None,
    broken: Broken = "refuse",
    most: int | None = None,
    whole: bool = False,
) -> tuple[Images, list[str]]:
    """The classes of a folder, and what was converted or left out.

    `size` is (height, width); without it, or without `colour`, what most pictures have is taken.
    A size that is taken so is shrunk until no side is beyond `most`. If `whole`, no class may be left out.
    """
    root = _folder(path)
    found, others, bare = _walk(root)
    if not found:
        raise InputError(f"a sub-folder with pictures for each class in {root}", *_no_picture(others))
    if "." in found:
        got = f"{found['.'][0].name} outside any"
        raise InputError(f"every picture of {root} in a sub-folder, its class", got, "move or remove it")
    _refuse_parts(root, found)
    stack = stack_pictures([file for name in sorted(found) for file in found[name]], size, colour, broken, most)
    count = Counter(file.parent.relative_to(root).as_posix() for file in stack.files)
    names = tuple(name for name in sorted(found) if count[name])
    lost = [name for name in sorted(found) if not count[name]]
    without = lost + [place.relative_to(root).as_posix() for place in bare]
    if whole and without:
        got = f"none in {some_names(without)}"
        raise InputError(f"a picture that can be read in every class of {root}", got, "add one, or remove the folder")
    notes = [f"class {name} left out: none of its pictures can be read" for name in lost]
    images = make_images(stack.pixels, torch.tensor([count[name] for name in names]), names)
    return images, stack.notes + notes + _left_out(others) + _without_pictures(bare) + _both(found)


def read_pictures(
    path: str | Path, shape: tuple[int, int, int], broken: Broken = "refuse"
) -> tuple[Tensor, list[str], list[str]]:
    """Pictures directly in a folder, or one file: uint8 [n, *shape], file names, notes.

    `shape` is (channels, height, width), that of the classes they will be compared with.
    """
    channels, height, width = shape
    if channels not in (1, 3):
        raise InputError("1 channel, grey, or 3, colour", str(channels), "pass the shape of the classes' pictures")
    single = Path(path)
    found, others, below = ({".": [single]}, [], []) if single.is_file() else _walk(_folder(path), deep=False)
    if not found:
        got, remedy = _no_picture(others)
        raise InputError(f"pictures in {path}", got, f"{remedy}; sub-folders are not read")
    stack = stack_pictures(found["."], (height, width), channels == 3, broken)
    return stack.pixels, [file.name for file in stack.files], stack.notes + _left_out(others) + _not_read(below)


def find_repeats(images: Images | Tensor) -> list[tuple[int, int]]:
    """Pairs of rows (first, later) with identical pixels, in one class or in two; as read, after conversion."""
    first: dict[bytes, int] = {}
    seen = [(first.setdefault(key, row), row) for row, key in enumerate(_digests(images))]
    return [(earlier, row) for earlier, row in seen if earlier != row]


def without_repeats(images: Images) -> tuple[Images, list[str]]:
    """Each picture once, so that none is shown and judged; one that lies in two classes has no label and goes."""
    owner = torch.arange(len(images.names)).repeat_interleave(images.lengths.cpu())
    repeats = find_repeats(images)
    torn = {first for first, later in repeats if owner[first] != owner[later]}
    gone = torn | {later for _, later in repeats}
    if not gone:
        return images, []
    keep = torch.tensor([row not in gone for row in range(len(owner))])
    lengths = torch.bincount(owner[keep], minlength=len(images.names))
    left = [c for c, count in enumerate(lengths.tolist()) if count]
    notes = []
    again = sum(first not in torn for first, _ in repeats)
    if again:
        notes.append(f"{count_of(again, 'picture')} left out as the same as another of its class")
    if torn:
        one, other = next((owner[a], owner[b]) for a, b in repeats if a in torn and owner[a] != owner[b])
        told = f"for instance in {images.names[one]} and {images.names[other]}"
        notes.append(f"{count_of(len(gone) - again, 'picture')} left out as the same in two classes, {told}")
    notes += [
        f"class {name} left out: no picture is its own" for name, n in zip(images.names, lengths, strict=True) if not n
    ]
    if not left:
        raise InputError("pictures that differ", "each in two classes", "check the folders")
    return make_images(images.pixels[keep], lengths[left], tuple(images.names[c] for c in left)), notes


def same_pictures(a: Images | Tensor, b: Images | Tensor) -> list[tuple[int, int]]:
    """Pairs (row of a, row of b) with identical pixels: what is shown may not be judged."""
    one, other = (list(_pixels(images).shape[1:]) for images in (a, b))
    if one != other:
        raise InputError(f"pictures of shape {one} twice", str(other), "read both with one size and mode")
    rows: dict[bytes, list[int]] = {}
    for row, key in enumerate(_digests(a)):
        rows.setdefault(key, []).append(row)
    return [(mine, row) for row, key in enumerate(_digests(b)) for mine in rows.get(key, ())]


def _pixels(images: Images | Tensor) -> Tensor:
    return images.pixels if isinstance(images, Images) else images


def _digests(images: Images | Tensor) -> list[bytes]:
    return [blake2b(row.tobytes(), digest_size=16).digest() for row in _pixels(images).cpu().numpy()]


def _folder(path: str | Path) -> Path:
    root = Path(path)
    if not root.is_dir():
        raise InputError(f"a folder {root}", "a file" if root.exists() else "none there", "check the path")
    return root


def _walk(root: Path, deep: bool = True) -> tuple[dict[str, list[Path]], list[Path], list[Path]]:
    """Pictures by folder, files that are none, and folders without any, or not read when not `deep`.

    Hidden ones are passed over, linked folders read once.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"to read folder {error.filename}", error.strerror or str(error), "check its permissions")

    def check(here: Path, names: Sequence[str]) -> None:
        for name in names:
            if os.fsencode(name).decode("utf-8", "replace") != name:
                raise InputError(f"names in UTF-8 in {here}", repr(name), "rename it")

    found: dict[str, list[Path]] = {}
    others: list[Path] = []
    visited: list[Path] = []
    seen = {root.resolve()}
    for place, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        here = Path(place)
        fresh = []
        for name in sorted(folders):
            target = (here / name).resolve()
            if not name.startswith((".", "__MACOSX")) and target not in seen:
                seen.add(target)
                fresh.append(name)
        visited += [here / name for name in fresh]
        folders[:] = fresh if deep else []
        check(here, [*fresh, *names])
        shown = [here / name for name in sorted(names) if not name.startswith(".")]
        # a dangling link is a broken picture; a pipe or a socket is none
        pictures = [file for file in shown if file.suffix.lower() in SUFFIXES and (file.is_file() or file.is_symlink())]
        others += [file for file in shown if file.suffix.lower() not in SUFFIXES]
        if pictures:
            found[here.relative_to(root).as_posix()] = pictures
    full = {place for name in found for place in (root / name, *(root / name).parents)}
    return found, others, [place for place in visited if place not in full]


def _no_picture(others: Sequence[Path]) -> tuple[str, str]:
    """What came instead, and what to do."""
    kinds = sorted({file.suffix.lower() or "no ending" for file in others})
    if not kinds:
        return "no picture", "check the path"
    return f"no picture but {count_of(len(others), 'file')} ({some_names(kinds)})", f"save them as {', '.join(FORMATS)}"


def _refuse_parts(root: Path, found: Mapping[str, list[Path]]) -> None:
    """Parts of one collection hold the same classes: as classes of their own they would be trained on and judged."""
    held: dict[str, set[str]] = {}
    for name in found:
        top, _, rest = name.partition("/")
        if rest and top.lower() in PARTS:
            held.setdefault(top, set()).add(rest)
    for one, other in combinations(sorted(held), 2):
        both = sorted(held[one] & held[other])
        if both:
            got = f"{both[0]} in {one} and in {other}"
            raise InputError(f"each class of {root} in one folder", got, f"pass {root / one}, or join the parts")


def _without_pictures(bare: Sequence[Path]) -> list[str]:
    names = sorted(map(str, bare))
    return [f"{count_of(len(names), 'folder')} left out as without pictures: {some_names(names)}"] if names else []


def _not_read(below: Sequence[Path]) -> list[str]:
    names = sorted(map(str, below))
    return [f"{count_of(len(names), 'sub-folder')} not read: {some_names(names)}"] if names else []


def _both(found: Mapping[str, list[Path]]) -> list[str]:
    """Folders of pictures within a class are classes of their own, which may not be what was meant."""
    within = sorted({str(place) for name in found for place in Path(name).parents if str(place) in found} - {"."})
    return [f"{some_names(within)}: pictures in folders within are classes of their own"] if within else []


def _left_out(others: Sequence[Path]) -> list[str]:
    names = sorted(str(file) for file in others)
    return [f"{count_of(len(names), 'file')} left out as no picture: {some_names(names)}"] if names else []
