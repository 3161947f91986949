"""Pictures that are never seen twice alike: a little turned, moved, stretched and slanted, anew at every draw.

A picture's corners lie at (+-1, +-1), so a turn by a of one that is r times as wide as high is R. The point p of the
new picture shows what the old one has at

    A p + b,    A = R [[m e^u, s], [0, e^v]],    R = [[cos a, -sin a / r], [r sin a, cos a]],

with a, s, u, v and both numbers of b drawn evenly between plus and minus the limits of a `Warp`; m is 1, or -1 where a
picture is mirrored.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from warmstart.core import InputError

NUMBERS, SIDE = 7, 6  # drawn for a picture; the one of them that mirrors it


class Warp(NamedTuple):
    """How far a picture may go, either way."""

    turn: float = 0.0  # degrees
    shift: float = 0.0  # share of a side
    stretch: float = 0.0  # logarithm of the factor, of each side on its own
    slant: float = 0.0  # share of a side by which top and bottom move apart
    mirror: str = ""  # left for right, by chance: every other of the "pictures", or of the "classes" of a task


SLIGHT = Warp(turn=10.0, shift=0.07, stretch=0.1, slant=0.1)  # a hand's or a camera's


def check_warp(how: Warp | None) -> None:
    if how is None:
        return
    if not all(limit >= 0 for limit in how[:4]):
        raise InputError("limits of at least 0", f"{how}", "a warp goes so far either way")
    if how.mirror not in ("", "pictures", "classes"):
        raise InputError('mirror as "pictures", "classes" or ""', repr(how.mirror), "use one of these words")


def warped(pixels: Tensor, how: Warp, uniform: Tensor) -> Tensor:
    """Pictures [*n, c, h, w], each by its own numbers [*n, 7] between 0 and 1; beyond an edge is what lies on it."""
    flat, drawn = pixels.flatten(0, -4), 2 * uniform.to(pixels.dtype).flatten(0, -2) - 1
    angle, slant = math.radians(how.turn) * drawn[:, 0], how.slant * drawn[:, 1]
    wide, high = ((how.stretch * drawn[:, i]).exp() for i in (2, 3))
    across, down = (2 * how.shift * drawn[:, i] for i in (4, 5))  # a side is two long
    side = torch.where(drawn[:, SIDE] > 0, -1.0, 1.0) if how.mirror else torch.ones_like(angle)
    cos, sin, ratio = angle.cos(), angle.sin(), pixels.shape[-1] / pixels.shape[-2]
    upper = (side * cos * wide, cos * slant - sin * high / ratio, across)
    lower = (side * ratio * sin * wide, ratio * sin * slant + cos * high, down)
    grid = F.affine_grid(torch.stack((*upper, *lower), -1).reshape(-1, 2, 3), list(flat.shape), align_corners=False)
    found: Tensor = F.grid_sample(flat, grid, padding_mode="border", align_corners=False)
    return found.reshape(pixels.shape)
