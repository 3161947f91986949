"""Pictures by class, and the few-shot episodes drawn from them.

All pictures lie in one tensor on the device and a class is a range of them, so an episode is an
index gather: no worker processes. Rows of an episode are class after class,

    x = {"pixels": [*t, n, c, h, w] between 0 and 1, "real": [*t, n] 0 where a row is padding}

so that a network with batch statistics can leave padding out of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Batch, InputError, Task, make_batch, make_task
from warmstart.tasks.warps import NUMBERS, SIDE, Warp, check_warp, warped

TURNS = ("", " turned left", " upside down", " turned right")


class Images(NamedTuple):
    """Classes end to end: class c owns pictures offsets[c] to offsets[c + 1]."""

    pixels: Tensor  # [N, channels, height, width] uint8
    offsets: Tensor  # [C + 1]
    names: tuple[str, ...]  # of the classes
    turns: int = 1  # how often every class is there, copies end to end: class c + C / turns is class c once more

    @property
    def lengths(self) -> Tensor:
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def class_of(self, row: int) -> str:
        """The name of the class that owns a picture."""
        return self.names[int((self.offsets[1:] <= row).sum())]

    def to(self, device: torch.device | str) -> Images:
        return self._replace(pixels=self.pixels.to(device), offsets=self.offsets.to(device))

    def select(self, classes: Tensor) -> Images:
        """These classes only, each for itself."""
        classes = classes.to(self.offsets.device)
        lengths = self.lengths[classes]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        shift = self.offsets[:-1][classes] - offsets[:-1]
        rows = shift.repeat_interleave(lengths) + torch.arange(int(offsets[-1]), device=offsets.device)
        return Images(self.pixels[rows], offsets, tuple(self.names[i] for i in classes.tolist()))


def make_images(pixels: Tensor, lengths: Tensor, names: tuple[str, ...]) -> Images:
    """From pictures that lie class after class.

    >>> make_images(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.tensor([2, 3]), ("a", "b")).offsets
    tensor([0, 2, 5])
    """
    if int(lengths.sum()) != len(pixels) or len(lengths) != len(names):
        got = f"{len(pixels)} pictures and {len(names)} names for lengths that add up to {int(lengths.sum())}"
        raise InputError("one length and one name for each class", got, "pass every class's pictures")
    return Images(pixels, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]), names)


def fit_in(size: tuple[int, ...], most: int) -> tuple[int, int]:
    """Height and width shrunk so that neither is beyond `most`, in proportion.

    >>> fit_in((300, 400), 84), fit_in((28, 28), 84)
    ((63, 84), (28, 28))
    """
    height, width = size
    share = min(1.0, most / max(size))
    return max(1, round(height * share)), max(1, round(width * share))


def with_rotations(images: Images) -> Images:
    """Every class four times, turned by multiples of 90 degrees: each turn is a class of its own."""
    _, height, width = images.shape
    if height != width:
        raise InputError("square pictures to turn", f"{height} x {width}", "read them in a square --size")
    turned = [torch.rot90(images.pixels, k, (2, 3)) for k in range(4)]
    names = tuple(name + turn for turn in TURNS for name in images.names)
    made = make_images(torch.cat(turned), images.lengths.repeat(4), names)
    return made._replace(turns=4 * images.turns)


def check_enough(images: Images, way: int, rows: int) -> None:
    """Whether episodes of so many classes and rows of each can be drawn; said before any work is done."""
    if way < 2 or rows < 1:
        raise InputError("at least two classes and one picture of each", f"{way} and {rows}", "raise them")
    if len(images.names) < way:
        raise InputError(f"at least {way} classes", f"{len(images.names)}", "lower the way, or add classes")
    if int(images.lengths.min()) < rows:
        least = int(images.lengths.argmin())
        raise InputError(
            f"{rows} pictures in every class, support and query together",
            f"{int(images.lengths[least])} in {images.names[least]}",
            "add pictures, leave the class out, or lower shots or queries",
        )


def sampler(
    images: Images,
    way: int,
    shot: int,
    query: int,
    least: int | None = None,
    warp: Warp | None = None,
    apart: bool = False,
) -> Callable[[int, torch.Generator], Task]:
    """Draws so many tasks of `way` classes each, `shot` pictures of a class shown and `query` others judged.

    Nothing is drawn twice within a task. With `least`, a class shows `least` to `shot` pictures, drawn evenly, and
    the rest is padding. With `warp` every picture is warped anew. With `apart` no two classes of a task are turns of
    one: a circle turned is the same circle. The result never waits for the device.
    """
    check_enough(images, way, shot + query)
    upright = len(images.names) // images.turns if apart else len(images.names)
    if upright < way:
        raise InputError(f"at least {way} classes that are not turns of each other", f"{upright}", "lower the way")
    if least is not None and not 0 <= least <= shot:
        raise InputError(f"0 to {shot} pictures shown at least", f"{least}", "pass at most the number of shots")
    check_warp(warp)
    device = images.pixels.device
    lengths, widest = images.lengths, int(images.lengths.max())
    fewest = shot if least is None else least

    def draw(count: int, generator: torch.Generator) -> Task:
        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=generator.device).to(device)

        classes = uniform(count, upright).topk(way, 1).indices  # [t, way]
        if apart:
            classes = classes + upright * (uniform(count, way) * images.turns).long()
        beyond = torch.arange(widest, device=device) >= lengths[classes][..., None]
        order = uniform(count, way, widest).masked_fill(beyond, 2.0).argsort(-1)  # of the pictures of a class
        rows = images.offsets[:-1][classes][..., None] + order[..., : shot + query]
        label = torch.arange(way, device=device).expand(count, way)
        shown = fewest + (uniform(count, way) * (shot - fewest + 1)).long()
        mask = (torch.arange(shot, device=device) < shown[..., None]).to(torch.get_default_dtype())

        side = uniform(count, way) if warp is not None and warp.mirror == "classes" else None

        def pixels(rows: Tensor) -> Tensor:
            found = scaled(images, rows.flatten(1))
            if warp is None:
                return found
            numbers = uniform(*found.shape[:2], NUMBERS)
            if side is not None:  # a class faces one way, where it is shown and where it is judged
                numbers[..., SIDE] = side.repeat_interleave(rows.shape[-1], 1)
            return warped(found, warp, numbers)

        support = as_batch(pixels(rows[..., :shot]), label.repeat_interleave(shot, 1), mask.flatten(1))
        judged = as_batch(pixels(rows[..., shot:]), label.repeat_interleave(query, 1))
        return make_task(support, judged)

    return draw


def draw_episodes(
    images: Images,
    count: int,
    way: int,
    shot: int,
    query: int,
    generator: torch.Generator,
    least: int | None = None,
) -> Task:
    """`count` tasks, drawn once."""
    return sampler(images, way, shot, query, least)(count, generator)


def scaled(images: Images, rows: Tensor) -> Tensor:
    """Pictures `rows` between 0 and 1."""
    return images.pixels[rows].to(torch.get_default_dtype()) / 255


def as_batch(pixels: Tensor, label: Tensor, mask: Tensor | None = None) -> Batch:
    """Pictures between 0 and 1 with their classes."""
    if mask is None:
        mask = torch.ones(label.shape, device=label.device, dtype=pixels.dtype)
    blank = pixels * mask[..., None, None, None]
    return make_batch({"pixels": blank, "real": mask}, label, mask=mask)
