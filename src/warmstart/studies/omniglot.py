"""Omniglot: new characters from one or five drawings each, 5-way and 20-way.

Table 2 of Zou and Lu (2020) and of the papers it cites: 1,200 characters to train, turned by multiples of 90
degrees as further classes, the rest to test. MAML's inner rate and steps are its paper's at 5 ways and were found on
validation classes at 20; updates are half as many, but for MAML's on warped and mirrored drawings, at a rate that
falls to zero. What differs is on the methods' pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmstart.baselines import protonet
from warmstart.engine.loop import Report
from warmstart.learners import gem, gem_head, imaml, maml, meta_sgd, reptile, scratch
from warmstart.report.page import Outcome
from warmstart.studies.few_shot import SPLIT, Network, Parts, Size, run_study
from warmstart.studies.few_shot_rows import GAUSSIAN, HESSIAN_FREE, MIRRORED, WARPED, Setting, entries
from warmstart.tasks.class_split import take_classes
from warmstart.tasks.data_folder import given
from warmstart.tasks.images import with_rotations
from warmstart.tasks.omniglot import read_omniglot, split_omniglot
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
    "maml, blank head",
    "fomaml, blank head",
    "gem_bml_plus",
    "gem_head",
    "protonet, warped",
    "maml, warped",
    "fomaml, warped",
    "imaml_head, warped",
    "protonet, mirrored",
    "maml, mirrored",
    "fomaml, mirrored",
    "imaml_head, mirrored",
    "imaml, mirrored",
    "imaml, plain gradient, mirrored",
    "gem_bml_plus, mirrored",
)
PUBLISHED = {
    (name, way, shot): value
    for name, values in {
        "maml": (98.7, 99.9, 95.8, 98.9),
        "fomaml": (98.3, 99.2, 89.4, 97.9),
        "reptile": (97.68, 99.48, 89.43, 97.12),
        "imaml": (99.50, 99.74, 96.18, 99.14),
        "imaml, plain gradient": (99.16, 99.67, 94.46, 98.69),
        "gem_bml_plus": (99.23, 99.64, 96.24, 98.94),
    }.items()
    for (way, shot), value in zip(((5, 1), (5, 5), (20, 1), (20, 5)), values, strict=True)
}


def _descent(way: int) -> dict[str, Any]:
    """Rate and steps of the inner loop."""
    return {"inner_lr": 0.4, "inner_steps": 1, "test_steps": 3} if way <= 5 else {"inner_lr": 0.1, "inner_steps": 5}


STEEP: dict[str, Any] = {"inner_lr": 0.4, "inner_steps": 3, "test_steps": 3}  # better at 20 ways on validation classes
BLANK: dict[str, Any] = {"inner_lr": 1.0, "inner_steps": 3, "test_steps": 3, "blank": "head.*"}
LEARNERS = entries(
    {
        "scratch": lambda at: scratch.Config(inner_lr=0.01, test_steps=50),
        "maml": lambda at: maml.Config(**_descent(at.way) if at.way <= 5 else STEEP),
        "fomaml": lambda at: maml.Config(**_descent(at.way), first_order=True),
        "reptile": lambda at: reptile.Config(inner_lr=0.4, inner="sgd", minibatches=True, test_steps=50),
        "imaml": lambda at: HESSIAN_FREE,
        "imaml, plain gradient": lambda at: imaml.Config(
            inner_lr=0.4, inner_steps=5, test_steps=5, prox=0.1, damping=2.0, outer_lr=5e-4
        ),
        "imaml_head": lambda at: imaml.HEAD if at.way <= 5 else replace(imaml.HEAD, solve_steps=30),
        "meta_sgd": lambda at: meta_sgd.Config(inner_lr=0.1, inner_steps=1 if at.way <= 5 else 3),
        "anil": lambda at: maml.Config(inner_lr=1.0, inner_steps=3, test_steps=3),
        "maml, blank head": lambda at: maml.Config(**BLANK),
        "fomaml, blank head": lambda at: maml.Config(**BLANK, first_order=True),
        "gem_bml_plus": lambda at: gem.Config(**_descent(at.way), **GAUSSIAN, per_row=True, widths=False),
        "gem_head": lambda at: gem_head.Config(),
        "protonet": lambda at: protonet.Config(),
    },
    {WARPED: SLIGHT, MIRRORED: SLIGHT._replace(mirror="classes")},
)
for name in ("maml" + WARPED, "maml" + MIRRORED):
    LEARNERS[name] = LEARNERS[name]._replace(share=2.0)  # the paper's 60,000 updates
SIZES = {
    "quick": Size(
        ("nearest_centroid", "protonet", "fomaml", "maml"),
        (Setting(5, 1),),
        Plan(steps=250, every=125, patience=10),
        tests=100,
        looks=20,
        query=5,
        tasks={5: 8},
        asked={5: 5},
        classifier=300,
    ),
    "full": Size(
        ALL,
        (Setting(5, 1), Setting(5, 5), Setting(20, 1), Setting(20, 5)),
        Plan(steps=30_000, every=1000, patience=15),
        tests=1000,
        looks=200,
        query=15,
        tasks={5: 32, 20: 16},
        asked={5: 15, 20: 5},
        classifier=20_000,
    ),
}
FILTERS = {"quick": 32, "full": 64}


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
    data = given(data, "Omniglot")
    images = read_omniglot(data)
    split = split_omniglot(images)
    parts = Parts(*(with_rotations(take_classes(images, names)) for names in split))
    network = Network(FILTERS[preset], strided=True)
    outcome = run_study(
        "omniglot",
        preset,
        SIZES[preset],
        parts,
        network,
        LEARNERS,
        PUBLISHED,
        seeds,
        only,
        device,
        progress,
        folder,
    )
    return outcome._replace(beside={SPLIT: split._asdict()})
