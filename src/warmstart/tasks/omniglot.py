"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings of each, from a folder.

Read from the publisher's `images_background.zip` and `images_evaluation.zip`, from the two folders
they unzip to, or, faster, from `omniglot_28x28.npz`. Ink is 255 on 0: the archives' black strokes on
white are inverted, then resized with Lanczos. That is how the array file was made, and at size 28
the two routes agree in every pixel. Lake, Salakhutdinov and Tenenbaum, 2015.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ImageOps

from warmstart.core import InputError
from warmstart.tasks.class_split import split_classes
from warmstart.tasks.data_folder import find_files
from warmstart.tasks.images import Images, make_images
from warmstart.tasks.picture_file import read_picture, to_pixels
from warmstart.tasks.split import Split

CHARACTERS, DRAWERS, TRAINING = 1623, 20, 1200
ARRAYS = "omniglot_28x28.npz"
PARTS = ("images_background", "images_evaluation")
FIELDS = ("images", "character", "drawer", "alphabet", "char_in_alphabet", "alphabet_names")
DRAWING = re.compile(r"([^/]+)/(character\d+)/(\d+)_(\d+)\.png$")  # alphabet, character, official number, drawer


def read_omniglot(path: str | Path, size: int = 28) -> Images:
    """Classes "Alphabet/characterNN" in the order of their official numbers, drawings in that of the drawers."""
    if size < 1:
        raise InputError("a size of at least 1", str(size), "pass 28, as in the literature")
    archives = [[f"{part}.zip" for part in PARTS], list(PARTS)]
    files = find_files(path, "omniglot", [[ARRAYS], *archives] if size == 28 else archives)
    return _from_arrays(files[0]) if files[0].name == ARRAYS else _from_archives(files, size)


def split_omniglot(images: Images, held_out: int = 100, seed: int = 0) -> Split:
    """1,200 characters to train with, `held_out` of them for validation; the other 423 are the test.

    The order is `split_classes`'s, a hash of seed and name; the test does not depend on `held_out`.
    Published splits differ: a random one of this size is usual (Vinyals et al., 2016; Finn et al., 2017).
    """
    if len(images.names) != CHARACTERS or not bool((images.lengths == DRAWERS).all()):
        expected = f"all of Omniglot, {CHARACTERS:,} characters with {DRAWERS} drawings each"
        got = f"{len(images.names):,} with {int(images.lengths.min())} to {int(images.lengths.max())}"
        raise InputError(expected, got, "download it again; add rotations after splitting")
    if not 0 <= held_out < TRAINING:
        raise InputError(f"0 to {TRAINING - 1:,} characters held out", str(held_out), "100 is usual")
    return split_classes(images, (TRAINING - held_out, held_out, CHARACTERS - TRAINING), seed)


def _from_archives(files: list[Path], size: int) -> Images:
    drawings: list[tuple[int, int, str, NDArray[np.uint8]]] = []
    for file in files:
        before = len(drawings)
        for name, content in _members(file):
            match = DRAWING.search(name)
            if match is None:
                continue
            ink = ImageOps.invert(read_picture(content, f"{name} of {file}").image.convert("L"))
            number, drawer = int(match[3]), int(match[4])
            drawings.append((number, drawer, f"{match[1]}/{match[2]}", to_pixels(ink, (1, size, size))))
        if len(drawings) == before:
            raise InputError(f"Alphabet/characterNN/NNNN_DD.png in {file}", "none", "download it again")
    drawings.sort(key=lambda drawing: drawing[:2])
    pixels = np.stack([drawing[3] for drawing in drawings])
    numbers, drawers = (np.array([drawing[i] for drawing in drawings]) for i in (0, 1))
    return _by_class(pixels, numbers, drawers, [drawing[2] for drawing in drawings], files[0].parent)


def _members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a zip file or a folder."""
    try:
        if file.is_dir():
            for picture in file.rglob("*.png"):
                yield picture.as_posix(), picture.read_bytes()
        else:
            with ZipFile(file) as archive:
                for name in archive.namelist():
                    yield name, archive.read(name)
    except Exception as error:  # damaged archives raise what zipfile and zlib happen to
        raise InputError(f"a whole archive {file}", f"a damaged one ({_brief(error)})", "download it again") from error


def _from_arrays(file: Path) -> Images:
    try:
        with file.open("rb") as source, np.load(source, allow_pickle=False) as content:
            arrays: dict[str, NDArray[Any]] = {field: content[field] for field in FIELDS}
    except Exception as error:  # damaged archives raise what zipfile and zlib happen to
        raise InputError(f"{', '.join(FIELDS)} in {file}", _brief(error), "make or copy the file again") from error
    images, names = arrays["images"], arrays["alphabet_names"]
    columns = [arrays[field] for field in FIELDS[1:5]]
    rows = images.shape[:1]
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28) or not len(images):
        got = f"{images.dtype} {list(images.shape)}"
        raise InputError(f"images of uint8 [n, 28, 28] in {file}", got, "make or copy the file again")
    if any(column.shape != rows or column.dtype.kind not in "iu" for column in columns):
        expected = f"whole numbers {', '.join(FIELDS[1:5])} for each image of {file}"
        raise InputError(expected, "other lengths or types", "make or copy the file again")
    character, drawer, alphabet, within = (column.astype(np.int64) for column in columns)
    if names.ndim != 1 or names.dtype.kind != "U" or not ((alphabet >= 0) & (alphabet < len(names))).all():
        expected = f"a name for every alphabet of {file}"
        raise InputError(expected, f"{names.dtype} {list(names.shape)}", "make or copy the file again")
    order = np.lexsort((drawer, character))
    labels = [f"{names[alphabet[i]]}/character{within[i]:02d}" for i in order]
    return _by_class(images[order][:, None], character[order], drawer[order], labels, file)


def _by_class(
    pixels: NDArray[np.uint8], numbers: NDArray[np.int64], drawers: NDArray[np.int64], names: list[str], place: Path
) -> Images:
    """From drawings sorted by official number and drawer; a number has one name, a name one number."""
    pairs = list(dict.fromkeys(zip(numbers.tolist(), names, strict=True)))
    drawn = len(set(zip(numbers.tolist(), drawers.tolist(), strict=True)))
    if len(pairs) != len({number for number, _ in pairs}) or len(pairs) != len({name for _, name in pairs}):
        raise InputError(f"one official number for each character in {place}", "several", "download it again")
    if drawn != len(names):
        got = f"{len(names) - drawn} repeated"
        raise InputError(f"one drawing by each drawer of a character in {place}", got, "download it again")
    lengths = np.unique(numbers, return_counts=True)[1]
    return make_images(torch.from_numpy(pixels), torch.from_numpy(lengths), tuple(name for _, name in pairs))


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
