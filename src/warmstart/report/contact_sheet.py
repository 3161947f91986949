"""A contact sheet: pictures in rows with a few words below each, as one `<svg>` element that holds them all."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# not from report.svg, which takes a second to load matplotlib
INK, ACCENT, WRONG = "#1f2933", "#0072b2", "#d55e00"
COLUMNS, CELL, PICTURE, LINE, LETTERS = 7, 104, 92, 14, 15
UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class Thumbnail(NamedTuple):
    pixels: NDArray[np.uint8]  # [channels, height, width]
    title: str
    words: str = ""  # a second line
    hint: str = ""  # shown by a browser when pointed at
    wrong: bool = False  # a mistake, in another colour


def contact_sheet(pictures: Sequence[Thumbnail], alt: str) -> str:
    """Small pictures are enlarged with sharp pixels; long words are shortened, and whole in the hint."""
    columns = min(COLUMNS, max(len(pictures), 1))
    cell = CELL + 2 * LINE
    rows = -(-len(pictures) // columns)
    parts = [_drawn(one, i % columns * CELL, i // columns * cell) for i, one in enumerate(pictures)]
    width, height = columns * CELL, rows * cell
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img"'
        f' aria-label="{_escaped(alt)}" font-family="system-ui, sans-serif" font-size="11">{"".join(parts)}</svg>'
    )


def _drawn(one: Thumbnail, x: int, y: int) -> str:
    _, height, width = one.pixels.shape
    scale = PICTURE / max(height, width)
    wide, high = width * scale, height * scale
    left, top, middle = x + (CELL - wide) / 2, y + PICTURE - high, x + CELL / 2
    sharp = ' style="image-rendering:pixelated"' if scale > 1 else ""
    return (
        f"<g><title>{_escaped(one.hint or one.title)}</title>"
        f'<image x="{left:g}" y="{top:g}" width="{wide:g}" height="{high:g}" href="{_png(one.pixels)}"{sharp}/>'
        + _text(one.title, middle, y + PICTURE + LINE, INK)
        + _text(one.words, middle, y + PICTURE + 2 * LINE, WRONG if one.wrong else ACCENT)
        + "</g>"
    )


def _text(words: str, x: float, y: float, colour: str) -> str:
    if not words:
        return ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill="{colour}">{_escaped(_short(words))}</text>'


def _png(pixels: NDArray[np.uint8]) -> str:
    """The picture inside an address, so that the page needs no other file."""
    content = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _short(words: str) -> str:
    """The end stays: names of one folder differ there.

    >>> _short("alphabets/greek/character07")
    '…ek/character07'
    """
    return words if len(words) <= LETTERS else "…" + words[1 - LETTERS :]


def _escaped(words: str) -> str:
    return html.escape(UNSEEN.sub("?", words))
