"""Methods for pictures by name, with what suits the four-block network, and which network suits the pictures."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

from warmstart.baselines import protonet
from warmstart.core import InputError, Learner, functional
from warmstart.engine.stage import Stage
from warmstart.estimators.methods import Method
from warmstart.learners import gem_head, imaml, maml, meta_sgd, reptile
from warmstart.models.conv4 import Conv4
from warmstart.models.likelihoods import multiclass
from warmstart.models.mlp import seeded

AUTO = ("protonet", "gem_head")  # what `auto` compares
ANY_CLASSES = ("protonet", "gem_head")
SMALL = 28  # grey pictures up to this side need no pooling
LARGEST = 84  # pictures are shrunk to this side unless told otherwise
SMALLEST_POOLED = 16  # four halvings leave one pixel


class Design(NamedTuple):
    """The size of a four-block network, as it is written down with a model."""

    filters: int
    strided: bool


def design_for(shape: tuple[int, int, int]) -> Design:
    """64 filters and strides for small grey pictures, 32 filters and pooling for others.

    >>> design_for((1, 28, 28)), design_for((3, 84, 84))
    (Design(filters=64, strided=True), Design(filters=32, strided=False))
    """
    channels, *sides = shape
    strided = (channels == 1 and max(sides) <= SMALL) or min(sides) < SMALLEST_POOLED
    return Design(64, True) if strided else Design(32, False)


SLOW = Method(maml.Config(inner_lr=0.01, inner_steps=5, test_steps=10), maml.build, maml.SPACE)
STRIDED = {
    "protonet": Method(protonet.Config(), protonet.build, protonet.SPACE),
    "maml": Method(maml.Config(inner_lr=0.4, test_steps=3), maml.build, maml.SPACE),
    "fomaml": Method(maml.Config(inner_lr=0.4, test_steps=3, first_order=True), maml.build, maml.SPACE),
    "anil": Method(maml.Config(inner_lr=0.4, test_steps=3), maml.build, maml.SPACE, "head.*"),
    "reptile": Method(reptile.Config(inner_lr=1e-3, inner_steps=10, test_steps=50), reptile.build, reptile.SPACE),
    "imaml": Method(imaml.Config(inner_lr=0.1), imaml.build, imaml.SPACE),
    "imaml_head": Method(imaml.HEAD, imaml.build, imaml.HEAD_SPACE, "head.*"),
    "meta_sgd": Method(meta_sgd.Config(inner_lr=0.1), meta_sgd.build, meta_sgd.SPACE),
    "gem_head": Method(gem_head.Config(dof=20.0), gem_head.build, gem_head.SPACE),
}
POOLED = STRIDED | {
    "maml": SLOW,
    "fomaml": SLOW._replace(config=maml.Config(inner_lr=0.01, inner_steps=5, test_steps=10, first_order=True)),
    "anil": SLOW._replace(fast="head.*"),
    "meta_sgd": Method(meta_sgd.Config(), meta_sgd.build, meta_sgd.SPACE),
}


def find(name: str, design: Design) -> Method:
    methods: Mapping[str, Method] = STRIDED if design.strided else POOLED
    if name not in methods:
        near = difflib.get_close_matches(name, methods, 1)
        hint = f"did you mean {near[0]}?" if near else "pick one"
        raise InputError(f"a method for pictures among {', '.join(methods)}", repr(name), hint)
    return methods[name]


def most_classes(name: str, way: int) -> int | None:
    """How many classes a task may have: what a head has outputs for, or as many as needed where all are alike."""
    return None if name in ANY_CLASSES else way


def assemble(
    name: str,
    cfg: Any,
    shape: tuple[int, int, int],
    design: Design,
    way: int,
    stage: Stage,
    seed: int,
    classes: int | None = None,
) -> tuple[Learner, Any]:
    """A learner for pictures and its state before training. `classes` of the tasks at hand, else `way`."""
    method = find(name, design)
    with seeded(seed):
        model = functional(Conv4(shape, way, *design), method.fast)
    many = way if classes is None else classes
    if name == "protonet":
        learner = method.build(model, many, cfg, stage)
    elif name == "gem_head":
        learner = method.build(model, multiclass, cfg, stage, many)
    else:
        learner = method.build(model, multiclass, cfg, stage)
    return learner, learner.init(model.params)
