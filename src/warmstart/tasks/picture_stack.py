"""Many picture files as one tensor of one size and mode, with a note of each thing that was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.tasks.images import fit_in
from warmstart.tasks.picture_file import Header, read_header, read_picture, to_pixels

Broken: TypeAlias = Literal["refuse", "skip"]
NAMED = 3  # so many files are named in a note
STRETCHED, MUCH = "stretched or squeezed by more than a quarter by that", 1.25


class Stack(NamedTuple):
    pixels: Tensor  # [n, channels, height, width] uint8
    files: list[Path]  # those read
    notes: list[str]


def stack_pictures(
    files: Sequence[Path],
    size: tuple[int, int] | None,
    colour: bool | None,
    broken: Broken = "refuse",
    most: int | None = None,
) -> Stack:
    """`size` is (height, width); without it, or without `colour`, what most of the pictures have is taken.

    A size that is taken so is shrunk until no side is beyond `most`.
    """
    if broken not in ("refuse", "skip"):
        raise InputError("broken pictures to 'refuse' or to 'skip'", repr(broken), "pass one of the two")
    if size is not None and min(size) < 1:
        raise InputError("a height and a width of at least 1", f"{size[0]} x {size[1]}", "pass larger ones")
    # headers first: the tensor is laid out once, and large pictures are never held together
    headers = _headers(files, broken)
    usual = _usual_size(list(headers.values())) if size is None else size
    height, width = fit_in(usual, most) if size is None and most is not None else usual
    if colour is None:
        colour = 2 * sum(header.colour for header in headers.values()) >= len(headers)
    shape = (3 if colour else 1, height, width)
    pixels = torch.empty((len(headers), *shape), dtype=torch.uint8)
    kept: list[Path] = []
    done: Counter[str] = Counter()
    for file, header in headers.items():
        try:
            picture = read_picture(file, str(file))
        except InputError:
            if broken == "refuse":
                raise
            continue
        pixels[len(kept)] = torch.from_numpy(to_pixels(picture.image, shape))
        kept.append(file)
        done.update(picture.changes)
        done[f"resized to {height} x {width}"] += (header.height, header.width) != (height, width)
        done[STRETCHED] += _stretch(header, height, width) > MUCH
        done[f"converted to {'colour' if colour else 'grey'}"] += header.colour != colour
    if not kept:
        raise InputError(f"readable pictures in {files[0].parent}", f"{len(files)} that are not", "replace them")
    notes = [f"{count_of(count, 'picture')} {what}" for what, count in sorted(done.items()) if count]
    return Stack(pixels[: len(kept)], kept, notes + _skipped(files, kept))


def count_of(count: int, thing: str) -> str:
    """
    >>> count_of(1, "picture"), count_of(1200, "picture")
    ('1 picture', '1,200 pictures')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def some_names(names: Sequence[str]) -> str:
    """
    >>> some_names(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _headers(files: Sequence[Path], broken: Broken) -> dict[Path, Header]:
    headers = {}
    for file in files:
        try:
            headers[file] = read_header(file, str(file))
        except InputError:
            if broken == "refuse":
                raise
    if not headers:
        raise InputError(f"readable pictures in {files[0].parent}", f"{len(files)} that are not", "replace them")
    return headers


def _usual_size(headers: Sequence[Header]) -> tuple[int, int]:
    """The most frequent one, of equals the largest."""
    count = Counter((header.height, header.width) for header in headers)
    return max(count, key=lambda size: (count[size], size[0] * size[1], size))


def _stretch(header: Header, height: int, width: int) -> float:
    """By how much one side is lengthened more than the other."""
    ratio = (header.height * width) / (header.width * height)
    return max(ratio, 1 / ratio)


def _skipped(files: Sequence[Path], kept: Sequence[Path]) -> list[str]:
    read = set(kept)
    lost = [str(file) for file in files if file not in read]
    return [f"{count_of(len(lost), 'picture')} left out as unreadable: {some_names(lost)}"] if lost else []
