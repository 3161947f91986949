"""Own pictures: a folder of 100 characters, as a user has it, through the door of `fit --images`.

The other picture studies train on thousands of classes for tens of thousands of updates. Here are 100 characters of
Omniglot, 20 drawings of each, and a thousand updates, and tasks have characters of none of them: what a method is worth
at home, with pictures as they are and warped for training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from warmstart.core import check_names
from warmstart.core.trees import to_device
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Diverged, Report, silent
from warmstart.engine.noise import generator
from warmstart.estimators.picture_comparison import Teller, fit_baseline, tell
from warmstart.estimators.picture_fitting import problem_for, split_for
from warmstart.estimators.picture_learner import PLAN, PictureLearner
from warmstart.metrics.errors import accuracy, log_loss
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.page import Outcome, Section
from warmstart.tasks.class_split import split_classes, take_classes
from warmstart.tasks.data_folder import given
from warmstart.tasks.images import Images, sampler
from warmstart.tasks.omniglot import read_omniglot
from warmstart.training.train import Plan

LEARNERS, BASELINES = ("protonet", "gem_head", "imaml_head"), ("nearest_centroid", "linear_head")
ACCURACY, NLL = "accuracy", "NLL"
WAY, SHOT, QUERY = 5, 1, 5
OTHERS = 400  # characters that tasks are drawn from
TEST = 50_000  # seed of the test tasks


class Preset(NamedTuple):
    methods: tuple[str, ...]
    classes: int  # of the folder
    plan: Plan
    tests: int


PRESETS = {
    "quick": Preset(("nearest_centroid", "protonet"), 50, replace(PLAN, steps=200), 100),
    "full": Preset((*BASELINES, *LEARNERS), 100, PLAN, 400),
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
    check_names(only, (*BASELINES, *LEARNERS))
    size, where, bar = PRESETS[preset], choose_device(device), progress or (lambda label: silent)
    images = read_omniglot(given(data, "Omniglot"))
    scores: dict[tuple[str, bool, str], dict[int, Any]] = {}
    for seed in seeds:
        rest = len(images.names) - size.classes - OTHERS
        own, others, _ = (
            take_classes(images, names) for names in split_classes(images, (size.classes, OTHERS, rest), seed)
        )
        draw = sampler(others.to(where), WAY, SHOT, QUERY)
        test = draw(size.tests, generator(TEST, seed))
        for name in [method for method in (*BASELINES, *LEARNERS) if method in (only or size.methods)]:
            for warped in (False, True):
                words = f"{name}, {'warped' if warped else 'as they are'}, seed {seed}"
                kept = None if folder is None else folder / words
                try:
                    said = fitted(name, own, warped, size.plan, seed, where, bar(words), kept)(test)
                    found = {ACCURACY: 100 * accuracy(said, test.query), NLL: log_loss(said, test.query)}
                except Diverged:  # which is a result
                    found = dict.fromkeys((ACCURACY, NLL), torch.full((size.tests,), float("nan")))
                for metric, values in found.items():
                    scores.setdefault((name, warped, metric), {})[seed] = values.tolist()
    rows = [
        make_row(name, {"classes": size.classes, "warped": warped}, metric, by_seed, "%" if metric == ACCURACY else "")
        for (name, warped, metric), by_seed in scores.items()
    ]
    results = make_results("own_pictures", preset, str(where), called(), rows)
    return Outcome(results, [section(results, size.classes)], verdict(rows))


def fitted(
    name: str,
    own: Images,
    warped: bool,
    plan: Plan,
    seed: int,
    device: torch.device,
    report: Report,
    folder: Path | None,
) -> Teller:
    """A method on the classes of the folder, as `fit` and `evaluate` have it: tasks to class probabilities."""
    method = name if name in LEARNERS else "protonet"
    model = PictureLearner(WAY, SHOT, method, plan=plan, warp=warped, seed=seed, device=str(device))
    own, _ = model.read(own)
    if name in LEARNERS:
        trained = model.fit(own, folder=folder, progress=lambda label: report).fitted
        learner, state = trained.learner(WAY)
        return partial(tell, learner, to_device(state, device), WAY, trained.sharpness)
    problem = problem_for(own, split_for(own, WAY, seed), WAY, SHOT, False, warped, device)
    return fit_baseline(name, model, problem, WAY, 1, folder, lambda label: report)


def section(results: Results, classes: int) -> Section:
    columns = [
        Column(f"{words}{unit}", metric, {"classes": classes, "warped": warped}, digits, better)
        for metric, unit, digits, better in ((ACCURACY, " (%)", 1, "higher"), (NLL, ", log loss", 3, "lower"))
        for warped, words in ((False, "as they are"), (True, "warped"))
    ]
    made = table(results, columns=columns, baselines=BASELINES, caption=f"{classes} characters to learn from")
    return Section(f"{WAY}-way {SHOT}-shot, each picture judged alone", PROSE, made)


PROSE = (
    "All methods learn from the same characters, of which some are held out to stop and choose by, and are asked of "
    "characters that none of them has seen. Warped: pictures to train on are turned, moved, stretched and slanted a "
    "little, anew at every draw."
)


def verdict(rows: Sequence[Row]) -> str:
    at = {
        (row.method, row.setting["warped"]): row.mean for row in rows if row.metric == ACCURACY and row.mean == row.mean
    }
    if not at:
        return "Nothing ended in finite numbers."
    best, warped = max(at, key=lambda key: at[key])
    words = f"{best}{', warped,' if warped else ''} is right on {at[best, warped]:.1f} % of unseen characters"
    if (best, not warped) not in at:
        return f"{words}."
    return f"{words}, {at[best, not warped]:.1f} {'with pictures as they are' if warped else 'warped'}."
