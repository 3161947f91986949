"""A trained model of pictures, and what a few pictures of new classes make of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from warmstart.core import InputError, Learner, Tree, adapt
from warmstart.core.trees import fill, named_leaves, take, to_device
from warmstart.engine.files import finite, read_tensors, same_tensors
from warmstart.engine.stage import PLAIN
from warmstart.estimators.folder import SCHEMA, WEIGHTS, read_text
from warmstart.estimators.methods import configure
from warmstart.estimators.onnx import export
from warmstart.estimators.picture_methods import Design, assemble, find, most_classes
from warmstart.estimators.powers import sharpen
from warmstart.estimators.trained import damaged, under
from warmstart.tasks.images import Images, as_batch
from warmstart.tasks.picture_folder import find_repeats, without_repeats
from warmstart.tasks.split import Split

VERSION = 1  # of schema.json
LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in grey


@dataclass(frozen=True)
class TrainedPictures:
    """Everything that adaptation needs. Tensors inside are on the CPU."""

    name: str  # method id
    config: Any
    theta: Tree
    shape: tuple[int, int, int]  # channels, height, width
    design: Design
    way: int
    shot: int
    rotations: bool  # whether turned classes were trained on too
    warp: bool  # whether pictures were warped for training
    split: Split  # names of the classes
    value: float  # log loss on the validation classes
    sharpness: float  # of the probabilities, which made that loss least

    def learner(self, classes: int) -> tuple[Learner, Any]:
        """For tasks of so many classes, with its state."""
        learner, state = assemble(self.name, self.config, self.shape, self.design, self.way, PLAIN, 0, classes)
        return learner, state._replace(theta=self.theta)

    def config_json(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "config": dataclasses.asdict(self.config),
            "way": self.way,
            "shot": self.shot,
            "rotations": self.rotations,
            "warp": self.warp,
            "network": self.design._asdict(),
            "sharpness": self.sharpness,
            "validation": self.value if self.value == self.value else None,
        }

    def schema_json(self) -> str:
        """The pictures' shape and the fixed split of the classes."""
        classes = {part: list(names) for part, names in self.split._asdict().items()}
        return json.dumps({"version": VERSION, "shape": list(self.shape), "classes": classes}, indent=1) + "\n"


def restore(path: Path, config: dict[str, Any]) -> TrainedPictures:
    """From its folder; nothing in it is run."""
    shape, split = _schema(path)
    try:
        design = Design(int(config["network"]["filters"]), bool(config["network"]["strided"]))
        name, way, shot, value = config["method"], int(config["way"]), int(config["shot"]), config["validation"]
        if way < 2 or shot < 1 or design.filters < 1:
            raise damaged(path)
        cfg = configure(find(name, design).config, config["config"])
        _, state = assemble(name, cfg, shape, design, way, PLAIN, 0)
        sharp = float(config["sharpness"])
        if not 0 < sharp < float("inf"):
            raise damaged(path)
        told = float("nan") if value is None else float(value)
        turned, bent = bool(config["rotations"]), bool(config.get("warp", False))  # models of before had no warp
        trained = TrainedPictures(name, cfg, state.theta, shape, design, way, shot, turned, bent, split, told, sharp)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):  # RuntimeError: torch on absurd sizes
        raise damaged(path) from None
    found, _ = read_tensors(path / WEIGHTS)
    if not finite(found):
        raise InputError(f"finite weights in {path / WEIGHTS}", "others", "restore the file, or fit again")
    theta = under(found, "theta")
    same_tensors(theta, named_leaves(state.theta), path / WEIGHTS)
    return dataclasses.replace(trained, theta=fill(state.theta, theta))


def _schema(path: Path) -> tuple[tuple[int, int, int], Split]:
    try:
        content = json.loads(read_text(path / SCHEMA))
        version = content["version"]
        if isinstance(version, int) and version > VERSION:
            raise InputError(f"version {VERSION} or older in {path / SCHEMA}", f"{version}", "update warmstart")
        channels, height, width = map(int, content["shape"])
        if min(channels, height, width) < 1:
            raise damaged(path, SCHEMA)
        parts = {part: tuple(map(str, content["classes"][part])) for part in Split._fields}
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError):
        raise damaged(path, SCHEMA) from None
    return (channels, height, width), Split(**parts)


@dataclass(frozen=True)
class AdaptedPictures:
    """A classifier of new classes, from the few pictures it was shown."""

    trained: TrainedPictures
    support: Images  # as the network sees it
    notes: tuple[str, ...]  # what was converted
    learner: Learner
    state: Any
    adapted: Tree
    shown: Tree  # the support as the network's input
    columns: Tensor  # where each class of the support lies in the network's output

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes, in the order of the probabilities."""
        return self.support.names

    def predict(self, pixels: Tensor) -> Tensor:
        """Class probabilities [n, classes] of pictures [n, channels, height, width], uint8.

        The network normalises by the pictures it is given, so each is judged alone with the support pictures:
        what is said of one does not depend on the others, to the bit. Neither names nor order of the classes matter.
        """
        pixels, _ = convert(pixels, self.trained.shape)
        said = [self._one(picture).cpu() for picture in pixels]
        return torch.stack(said) if said else torch.zeros(0, len(self.names))

    def _one(self, picture: Tensor) -> Tensor:
        pixels = picture[None].to(self.columns.device, torch.get_default_dtype()) / 255
        own = as_batch(pixels, torch.zeros(1, dtype=torch.long, device=pixels.device)).x
        among = {name: torch.cat([self.shown[name], own[name]]) for name in own}
        with torch.no_grad():
            said = take(self.learner.predict(self.state, self.adapted, among, ()), -1).mean
        kept = said[: len(self.names)]  # a head may have outputs for more classes than were shown
        return sharpen(kept, self.trained.sharpness)[self.columns]

    def export(self, path: str | Path) -> None:
        """An ONNX file from `pixels`, uint8 [rows, channels, height, width], to `probability` [rows, classes].

        Its metadata name the classes. Pictures must come in the model's size and mode, and are judged one by one.
        """
        example = {"pixels": self.support.pixels[:2].cpu()}
        export(_Exported(self), example, Path(path), ["probability"], {"classes": json.dumps(self.names)})


class _Exported(nn.Module):
    """The classifier as a module of tensors, for the exporter; a scan, since vmap would fix the number of pictures."""

    def __init__(self, adapted: AdaptedPictures) -> None:
        super().__init__()
        self.adapted = adapted

    def forward(self, pixels: Tensor) -> Tensor:
        def body(nothing: Tensor, picture: Tensor) -> tuple[Tensor, Tensor]:
            return nothing.clone(), self.adapted._one(picture)

        said: Tensor = scan(body, torch.zeros(1), pixels)[1]
        return said


def adapt_pictures(trained: TrainedPictures, support: Images, device: torch.device | str = "cpu") -> AdaptedPictures:
    """Adapt to the classes of the support; the classifier stays on the device."""
    count, most = len(support.names), most_classes(trained.name, trained.way)
    if count < 2:
        raise InputError("at least two classes in the support", f"{count}", "add a folder for each class")
    if most is not None and count > most:
        raise InputError(
            f"at most {most} classes in the support of this {trained.name} model",
            f"{count}",
            f"leave some out, or fit with --way {count} or --method gem_head",
        )
    if int(support.lengths.min()) < 1:
        empty = support.names[int(support.lengths.argmin())]
        raise InputError("a picture of every class in the support", f"none of {empty}", "add one, or leave it out")
    pixels, notes = convert(support.pixels, trained.shape)
    support = support._replace(pixels=pixels).to("cpu")
    for first, later in find_repeats(support):
        one, other = support.class_of(first), support.class_of(later)
        if one != other:
            raise InputError("each support picture in one class", f"one in {one} and in {other}", "remove one of them")
    support, repeated = without_repeats(support)
    # outputs go to classes in an order that only their pictures decide, or names would change what is said
    order = sorted(range(count), key=lambda c: _digest(support, c))
    rows = support.select(torch.tensor(order))
    label = torch.arange(count).repeat_interleave(rows.lengths)
    shown = as_batch(rows.pixels.to(torch.get_default_dtype()) / 255, label)
    learner, state = trained.learner(count)
    columns = torch.tensor([order.index(c) for c in range(count)])
    state, batch, columns = to_device((state, shown, columns), device)
    with torch.no_grad():
        adapted = adapt(learner, state, batch, torch.zeros(0, device=device))
    return AdaptedPictures(trained, support, (*notes, *repeated), learner, state, adapted, batch.x, columns)


def convert(pixels: Tensor, shape: tuple[int, int, int]) -> tuple[Tensor, list[str]]:
    """Pictures as a model of `shape` takes them, and what had to be done to them."""
    if pixels.dim() != 4 or pixels.dtype != torch.uint8:
        got = f"{list(pixels.shape)} {pixels.dtype}"
        raise InputError("pictures [n, channels, height, width] uint8", got, "convert them")
    notes = []
    channels, size = pixels.shape[1], tuple(pixels.shape[2:])
    if channels != shape[0]:
        if (channels, shape[0]) == (1, 3):
            pixels = pixels.expand(-1, 3, -1, -1)
        elif (channels, shape[0]) == (3, 1):
            grey = pixels.float() * torch.tensor(LUMA, device=pixels.device)[:, None, None]
            pixels = grey.sum(1, keepdim=True).round().clamp(0, 255).to(torch.uint8)
        else:
            raise InputError(
                f"pictures of {shape[0]} channels, as the model was fitted for",
                f"{channels}",
                "convert them, or fit again",
            )
        notes.append(f"pictures converted to {'colour' if shape[0] == 3 else 'grey'}")
    if size != shape[1:]:
        resized = F.interpolate(pixels.float(), shape[1:], mode="bilinear", antialias=True)
        pixels = resized.round().clamp(0, 255).to(torch.uint8)
        notes.append(f"pictures resized from {size[0]} x {size[1]} to {shape[1]} x {shape[2]}")
    return pixels, notes


def _digest(images: Images, which: int) -> bytes:
    first, last = int(images.offsets[which]), int(images.offsets[which + 1])
    return hashlib.blake2b(images.pixels[first:last].contiguous().numpy().tobytes()).digest()
