"""Tiny-ImageNet: new classes of colour pictures from one or five examples each, 5-way.

It stands in for miniImageNet, so its numbers are not comparable with a paper's: all rows are run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from warmstart.baselines import protonet
from warmstart.engine.loop import Report
from warmstart.learners import abml, gem, gem_head, imaml, maml, meta_sgd, reptile, scratch
from warmstart.report.page import Outcome
from warmstart.studies.few_shot import SPLIT, Network, Parts, Size, run_study
from warmstart.studies.few_shot_rows import GAUSSIAN, HESSIAN_FREE, WARPED, Setting, entries, of_sums
from warmstart.tasks.class_split import take_classes
from warmstart.tasks.data_folder import given
from warmstart.tasks.tiny_imagenet import read_tiny_imagenet, split_tiny_imagenet
from warmstart.tasks.warps import SLIGHT
from warmstart.training.train import Plan

ALL = (
    "nearest_centroid",
    "linear_head",
    "protonet",
    "scratch",
    "maml",
    "fomaml",
    "reptile",
    "imaml",
    "imaml, plain gradient",
    "imaml_head",
    "meta_sgd",
    "anil",
    "abml",
    "gem_bml_plus",
    "gem_head",
    "protonet, warped",
    "maml, warped",
    "abml, warped",
    "gem_head, warped",
)
DESCENT: dict[str, Any] = {"inner_lr": 0.01, "inner_steps": 5, "test_steps": 10}
LEARNERS = entries(
    {
        "scratch": lambda at: scratch.Config(inner_lr=0.01, test_steps=50),
        "maml": lambda at: maml.Config(**DESCENT),
        "fomaml": lambda at: maml.Config(**DESCENT, first_order=True),
        "reptile": lambda at: reptile.Config(inner_lr=0.1, inner_steps=8, inner="sgd", minibatches=True, test_steps=50),
        "imaml": lambda at: HESSIAN_FREE,
        "imaml, plain gradient": lambda at: imaml.Config(inner_lr=0.01, inner_steps=10, test_steps=10, prox=0.5),
        "imaml_head": lambda at: imaml.HEAD,
        "meta_sgd": lambda at: meta_sgd.Config(inner_lr=0.01, inner_steps=1),
        "anil": lambda at: maml.Config(inner_lr=0.1, inner_steps=5, test_steps=10),
        "abml": lambda at: abml.Config(**of_sums(DESCENT, at), **GAUSSIAN),
        "gem_bml_plus": lambda at: gem.Config(**DESCENT, **GAUSSIAN, per_row=True, widths=False),
        "gem_head": lambda at: gem_head.Config(weight_decay=1.0, rank=32, dof=20.0),
        "protonet": lambda at: protonet.Config(),
    },
    {WARPED: SLIGHT._replace(mirror="pictures")},
)
SIZES = {
    "quick": Size(
        ("nearest_centroid", "protonet", "fomaml"),
        (Setting(5, 1),),
        Plan(steps=30, every=15, patience=10),
        tests=20,
        looks=10,
        query=5,
        tasks={5: 4},
        asked={5: 5},
        classifier=100,
    ),
    "full": Size(
        ALL,
        (Setting(5, 1), Setting(5, 5)),
        Plan(steps=20_000, every=1000, patience=15),
        tests=1000,
        looks=200,
        query=15,
        tasks={5: 4},
        asked={5: 15},
        classifier=20_000,
        many=100,
        calibrated=("maml", "abml", "gem_bml_plus", "gem_head"),
    ),
}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """With a folder, a run that was interrupted goes on where it stopped."""
    data = given(data, "Tiny-ImageNet")
    images = read_tiny_imagenet(data)
    split = split_tiny_imagenet(data)
    parts = Parts(*(take_classes(images, names) for names in split))
    network = Network(32, strided=False)
    outcome = run_study(
        "tiny_imagenet", preset, SIZES[preset], parts, network, LEARNERS, {}, seeds, only, device, progress, folder
    )
    return outcome._replace(beside={SPLIT: split._asdict()})
