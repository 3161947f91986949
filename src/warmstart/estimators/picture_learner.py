"""PictureLearner: fit on a folder of class folders, adapt to new classes from a few pictures of each."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from warmstart.core import InputError
from warmstart.core.trees import to_device
from warmstart.engine.device import choose_device
from warmstart.engine.loop import silent
from warmstart.engine.ranks import join_ranks
from warmstart.engine.stage import TRACED
from warmstart.estimators.fitting import replay, run_id
from warmstart.estimators.folder import pack, read_config, write_folder
from warmstart.estimators.methods import configure
from warmstart.estimators.picture_judging import Choice, Judged, judge, validator
from warmstart.estimators.picture_methods import DEFAULT, LARGEST, Design, assemble, design_for, find, most_classes
from warmstart.estimators.picture_model import AdaptedPictures, TrainedPictures, adapt_pictures, convert, restore
from warmstart.estimators.trained import damaged
from warmstart.models.conv4 import fastest_stage
from warmstart.tasks.class_split import split_classes, take_classes
from warmstart.tasks.images import Images, check_enough, fit_in, sampler
from warmstart.tasks.picture_folder import read_folder, without_repeats
from warmstart.tasks.picture_stack import Broken
from warmstart.tasks.split import Split
from warmstart.training.sources import from_family
from warmstart.training.train import Plan, train

KIND = "pictures"
PLAN = Plan(steps=1000, tasks=8, query=5, every=100, patience=10)
VALIDATION_TASKS = 40
VALIDATION_QUERY = 2  # pictures judged of a class
HELD = 64 * 2**20  # bytes of episodes drawn ahead


@dataclasses.dataclass
class PictureLearner:
    """Learns from many classes of pictures how to tell new ones apart from `shot` pictures of each.

    Tasks of training have `way` classes and judge `plan.query` pictures of each; `plan.support` is not used.
    Fitted names end in `_`.
    """

    way: int = 5
    shot: int = 1
    method: str = DEFAULT
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the method
    plan: Plan = PLAN
    size: tuple[int, int] | None = None  # height and width; None: as they are, shrunk to 84 where larger
    broken: Broken = "refuse"  # or "skip": pictures that cannot be read
    seed: int = 0
    device: str = "auto"
    trained_: TrainedPictures | None = dataclasses.field(default=None, init=False, repr=False)
    notes_: tuple[str, ...] = dataclasses.field(default=(), init=False, repr=False)  # what was converted

    def read(self, pictures: Images | str | Path) -> tuple[Images, list[str]]:
        """Pictures as the model takes them, or as it will be fitted, each once; and notes of what was changed."""
        known = None if self.trained_ is None else self.trained_.shape
        if isinstance(pictures, Images):
            wanted = known or (pictures.shape[0], *(self.size or fit_in(pictures.shape[1:], LARGEST)))
            pixels, notes = convert(pictures.pixels, wanted)
            images = pictures._replace(pixels=pixels)
        elif known is not None:
            images, notes = read_folder(pictures, known[1:], known[0] == 3, self.broken)
        else:
            images, notes = read_folder(pictures, self.size, None, self.broken, LARGEST)
        images, repeated = without_repeats(images)
        return images, notes + repeated

    def fit(
        self,
        pictures: Images | str | Path,
        *,
        folder: Path | None = None,
        progress: Callable[[str], Any] | None = None,
        record: Callable[[int, dict[str, float]], None] | None = None,
    ) -> PictureLearner:
        """Fit on a folder with one sub-folder for each class; early stopping on classes held out for it.

        With a folder for checkpoints the run resumes from them.
        """
        device = choose_device(self.device)
        self.trained_ = None  # pictures are read for a new model
        images, notes = self.read(pictures)
        self.notes_ = tuple(notes)
        counts = dataclasses.asdict(self.plan) | {"shot": self.shot}
        low = next((name for name, count in counts.items() if count is not None and count < 1), None)
        if low is not None:
            raise InputError(f"{low} of at least 1", f"{counts[low]}", "pass a larger number")
        split = split_for(images, self.way, self.seed)
        check_enough(images, self.way, self.shot + self.plan.query)
        design = design_for(images.shape)
        cfg = configure(find(self.method, design).config, self.settings)
        theta, chosen = self._train(cfg, design, images, split, device, folder, progress, record)
        self.trained_ = TrainedPictures(
            self.method, cfg, to_device(theta, "cpu"), images.shape, design, self.way, self.shot, split, *chosen
        )
        return self

    def evaluate(
        self,
        pictures: Images | str | Path,
        tasks: int = 100,
        query: int | None = None,
        progress: Callable[[str], Any] | None = None,
    ) -> Judged:
        """Accuracy on the test classes of the pictures given to fit, beside nearest centroid on pixels.

        Tasks have `way` classes, or all test classes where they are fewer.
        """
        trained, device = self.fitted, choose_device(self.device)
        images = take_classes(self.read(pictures)[0], trained.split.test).to(device)
        way = min(trained.way, len(images.names))
        learner, state = trained.learner(way)
        asked = self.plan.query if query is None else query
        bar = silent if progress is None else progress("judging")
        return judge(learner, to_device(state, device), images, way, trained.shot, asked, tasks, self.seed, bar)

    def adapt(self, support: Images | str | Path) -> AdaptedPictures:
        """A classifier of the support's classes, of which there are at most `way` where the method has a head.

        Pictures of another size or mode are converted, which the result's notes say.
        """
        trained = self.fitted
        if isinstance(support, Images):
            return adapt_pictures(trained, support)
        channels, *size = trained.shape
        images, notes = read_folder(support, (size[0], size[1]), channels == 3, self.broken)
        adapted = adapt_pictures(trained, images)
        return dataclasses.replace(adapted, notes=(*notes, *adapted.notes))

    @property
    def fitted(self) -> TrainedPictures:
        if self.trained_ is None:
            raise InputError("a fitted model", "one that is not", "call fit first")
        return self.trained_

    def save(self, path: str | Path) -> None:
        """A folder of config.json, weights.safetensors, schema.json and card.md."""
        trained = self.fitted
        config = {**trained.config_json(), "kind": KIND, "plan": dataclasses.asdict(self.plan), "seed": self.seed}
        write_folder(Path(path), pack(config, {"theta": trained.theta}, trained.schema_json(), card(trained)))

    @classmethod
    def load(cls, path: str | Path) -> PictureLearner:
        config = read_config(Path(path), KIND)
        trained = restore(Path(path), config)
        try:
            plan, seed = Plan(**config["plan"]), int(config["seed"])
        except (KeyError, TypeError, ValueError):
            raise damaged(Path(path)) from None
        settings = dataclasses.asdict(trained.config)
        learner = cls(trained.way, trained.shot, trained.name, settings, plan, trained.shape[1:], seed=seed)
        learner.trained_ = trained
        return learner

    def _train(
        self,
        cfg: Any,
        design: Design,
        images: Images,
        split: Split,
        device: torch.device,
        folder: Path | None,
        progress: Callable[[str], Any] | None,
        record: Callable[[int, dict[str, float]], None] | None,
    ) -> tuple[Any, Choice]:
        """theta and how it does on the validation classes."""
        plan = self.plan
        if hasattr(cfg, "outer_decay") and cfg.outer_decay == 0:
            cfg = dataclasses.replace(cfg, outer_decay=plan.steps)
        stage = TRACED if self.method == "protonet" else fastest_stage(device, design.strided, plan.steps)
        learner, state = assemble(self.method, cfg, images.shape, design, self.way, stage, self.seed)
        training, validation = (take_classes(images, part).to(device) for part in split[:2])
        judged = min(self.way, len(validation.names))
        asked = min(VALIDATION_QUERY, plan.query)
        # for as many prototypes as there are classes to judge
        seen, _ = assemble(self.method, cfg, images.shape, design, self.way, stage, self.seed, judged)
        check = validator(seen, validation, judged, self.shot, asked, VALIDATION_TASKS, self.seed)
        rank, world = join_ranks()
        if folder is not None:
            folder = folder / self._fingerprint(images) / run_id(self.method, cfg)
            folder = folder / f"rank{rank}" if world > 1 else folder
            if record is not None:
                replay(folder, record)
        draw = sampler(training, self.way, self.shot, plan.query)
        block = blocks(plan, self.way * (self.shot + plan.query) * images.pixels[0].numel())
        source = from_family(draw, plan.tasks, self.seed, learner.noise, device, rank, block)
        found = train(
            learner,
            to_device(state, device),
            source,
            plan,
            lambda state: check(state).value,
            stage=stage,
            folder=folder,
            progress=silent if progress is None else progress(f"training {self.method}"),
            record=record,
        )
        return found.state.theta, check(found.state)

    def _fingerprint(self, images: Images) -> str:
        """A name that changes with anything but the method that changes a run."""
        words = [dataclasses.asdict(self.plan), self.way, self.shot, self.seed, images.names, images.offsets.tolist()]
        digest = hashlib.blake2b(json.dumps(words).encode(), digest_size=6)
        digest.update(images.pixels.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def split_for(images: Images, way: int, seed: int) -> Split:
    """Classes to train on, to stop by and to judge on: 70, 10 and 20 %, but a part has `way` classes where there
    are enough for three such parts, and at least two to stop by and two to judge on."""
    count = len(images.names)
    if way < 2:
        raise InputError("at least two ways", f"{way}", "raise the way")
    if count < way + 4:
        raise InputError(
            f"at least {way + 4} classes: {way} to train on, two to stop by and two to judge on",
            f"{count}",
            "lower the way, or add classes",
        )
    least = min(way, (count - way) // 2)
    validation, test = max(least, round(0.1 * count)), max(least, round(0.2 * count))
    return split_classes(images, (count - validation - test, validation, test), seed)


def blocks(plan: Plan, numbers: int) -> int:
    """Updates whose episodes are drawn at once: one draw is a handful of operations, but they must fit."""
    return int(max(1, min(100, HELD // (4 * plan.tasks * numbers))))


def card(trained: TrainedPictures) -> str:
    """The page of a model for people."""
    channels, height, width = trained.shape
    train, validation, test = (len(part) for part in trained.split)
    most = most_classes(trained.name, trained.way)
    lines = [
        f"# A warmstart model of pictures: {trained.name}",
        "",
        f"- pictures: {height} x {width}, {'colour' if channels == 3 else 'grey'}",
        f"- trained on tasks of {trained.way} classes, {trained.shot} shown of each",
        f"- adapts to {'any number of' if most is None else f'at most {most}'} classes",
        f"- validation log loss: {trained.value:.4g}",
        *(f"- {name}: {value}" for name, value in dataclasses.asdict(trained.config).items()),
        f"- classes: {train} to train, {validation} to validate, {test} held out",
        "",
        "```python",
        "from warmstart.estimators import PictureLearner",
        'model = PictureLearner.load("this folder")',
        "```",
        "",
    ]
    return "\n".join(lines)
