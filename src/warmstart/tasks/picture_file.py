"""One picture file as pixels: upright, eight bits, grey or colour; whatever was changed is said."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from warmstart.core import InputError

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jfif", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm"}
)
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
GREY = frozenset({"1", "L", "LA", "La", "I", "F"})
ORIENTATION = 0x0112
FAINT = 4096  # deeper pictures that stay below hold 8 to 12 bits, or next to nothing: which, they do not say

# what can happen to a picture beside resizing and a change between grey and colour
SIXTEEN_BITS = "reduced from 16 to 8 bits"
TURNED = "turned upright as the camera noted"
FLATTENED = "with transparency laid on white"
FIRST_FRAME = "with several frames read as the first"


class Header(NamedTuple):
    height: int
    width: int
    colour: bool


class Picture(NamedTuple):
    image: Image.Image  # mode L or RGB
    changes: tuple[str, ...]


def read_header(source: Path | bytes, name: str) -> Header:
    """Size and mode without decoding the pixels."""
    with _opened(source, name) as image:
        width, height = image.size
        return Header(*((width, height) if _sideways(image) else (height, width)), _colour(image))


def read_picture(source: Path | bytes, name: str) -> Picture:
    """A whole picture; a truncated or unreadable one is an InputError with its name."""
    with _opened(source, name) as image:
        several = image.format != "MPO" and getattr(image, "is_animated", False)
        changes = [FIRST_FRAME] if several else []
        image.load()
        if _orientation(image) != 1:
            image = ImageOps.exif_transpose(image)
            changes.append(TURNED)
        if image.mode.startswith("I") or image.mode == "F":
            image = _eight_bits(image)
            changes.append(SIXTEEN_BITS)
        if image.has_transparency_data:
            over = image.convert("RGBA")
            if np.asarray(over.getchannel("A")).min() < 255:
                flat = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
                image = flat.convert("RGB" if _colour(image) else "L")
                changes.append(FLATTENED)
        return Picture(image.convert("RGB" if _colour(image) else "L"), tuple(changes))


def to_pixels(image: Image.Image, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """[channels, height, width]; resized with Lanczos, without keeping the ratio of the sides."""
    channels, height, width = shape
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    pixels = np.array(image, dtype=np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


@contextmanager
def _opened(source: Path | bytes, name: str) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
                yield image
    except Exception as error:  # a decoder raises anything at all on damaged bytes
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        got = "no picture or a damaged one" if isinstance(error, UnidentifiedImageError) else reason
        raise InputError(f"a whole picture in {name}", got, "replace or remove it, or pass --broken skip") from error


def _colour(image: Image.Image) -> bool:
    return image.mode not in GREY and not image.mode.startswith("I")


def _orientation(image: Image.Image) -> int:
    """1 is upright; only cameras' formats are asked."""
    return int(image.getexif().get(ORIENTATION, 1)) if image.format in ("JPEG", "MPO") else 1


def _sideways(image: Image.Image) -> bool:
    return _orientation(image) in (5, 6, 7, 8)


def _eight_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > 65535:
        raise ValueError("pixels that are not whole numbers of 8 or 16 bits")
    if 0 < values.max() < FAINT:
        raise ValueError(f"more than 8 bits a pixel but none above {values.max()}, so save it with 8 bits")
    return Image.fromarray((values >> 8).astype(np.uint8))
