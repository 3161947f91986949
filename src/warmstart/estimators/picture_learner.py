"""PictureLearner: fit on a folder of class folders, adapt to new classes from a few pictures of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from warmstart.core import InputError
from warmstart.core.trees import to_device
from warmstart.engine.device import choose_device
from warmstart.estimators.choosing import Record, choose
from warmstart.estimators.folder import pack, read_config, write_folder
from warmstart.estimators.picture_fitting import fingerprint, problem_for, runner, split_for
from warmstart.estimators.picture_methods import AUTO, LARGEST, find, most_classes
from warmstart.estimators.picture_model import AdaptedPictures, TrainedPictures, adapt_pictures, convert, restore
from warmstart.estimators.trained import damaged
from warmstart.tasks.images import Images, check_enough, fit_in
from warmstart.tasks.picture_folder import read_folder, without_repeats
from warmstart.tasks.picture_stack import Broken
from warmstart.training.search import Trial
from warmstart.training.train import Plan

KIND = "pictures"
PLAN = Plan(steps=1000, tasks=8, query=5, every=100, patience=10)


@dataclasses.dataclass
class PictureLearner:
    """Learns from many classes of pictures how to tell new ones apart from `shot` pictures of each.

    Tasks of training have `way` classes and judge `plan.query` pictures of each; `plan.support` is not used.
    `method="auto"` compares a few methods on the validation classes.
    Fitted names end in `_`.
    """

    way: int = 5
    shot: int = 1
    method: str = "auto"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the method
    plan: Plan = PLAN
    trials: int = 1  # configurations tried for each method; the same number for all
    rotations: bool = False  # training classes turned by 90, 180 and 270 degrees are classes of their own
    warp: bool = True  # training pictures are turned, moved, stretched and slanted a little, anew at every draw
    size: tuple[int, int] | None = None  # height and width; None: as they are, shrunk to 84 where larger
    broken: Broken = "refuse"  # or "skip": pictures that cannot be read
    seed: int = 0
    device: str = "auto"
    trained_: TrainedPictures | None = dataclasses.field(default=None, init=False, repr=False)
    trials_: dict[str, list[Trial]] = dataclasses.field(default_factory=dict, init=False, repr=False)
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
        record: Record | None = None,
    ) -> PictureLearner:
        """Fit on a folder with one sub-folder for each class; early stopping on classes held out for it.

        With a folder for checkpoints the run resumes from them.
        """
        device = choose_device(self.device)
        self.trained_ = None  # pictures are read for a new model
        images, notes = self.read(pictures)
        self.notes_ = tuple(notes)
        counts = dataclasses.asdict(self.plan) | {"shot": self.shot, "trials": self.trials}
        low = next((name for name, count in counts.items() if count is not None and count < 1), None)
        if low is not None:
            raise InputError(f"{low} of at least 1", f"{counts[low]}", "pass a larger number")
        if self.method == "auto" and self.settings:
            raise InputError("a method to apply the settings to", "auto", "name one, for instance protonet")
        split = split_for(images, self.way, self.seed)
        check_enough(images, self.way, self.shot + self.plan.query)
        problem = problem_for(images, split, self.way, self.shot, self.rotations, self.warp, device)
        names = AUTO if self.method == "auto" else (self.method,)
        found = choose(
            {name: find(name, problem.design) for name in names},
            self.settings,
            runner(problem, self.plan, self.seed),
            1 if self.settings else self.trials,
            seed=self.seed,
            folder=None if folder is None else folder / fingerprint(problem, self.plan, self.seed),
            progress=progress,
            record=record,
        )
        self.trials_ = found.trials
        theta, value, sharpness = found.found
        self.trained_ = TrainedPictures(
            found.name,
            found.config,
            to_device(theta, "cpu"),
            images.shape,
            problem.design,
            self.way,
            self.shot,
            self.rotations,
            self.warp,
            split,
            value,
            sharpness,
        )
        return self

    def adapt(self, support: Images | str | Path, device: str = "cpu") -> AdaptedPictures:
        """A classifier of the support's classes, of which there are at most `way` where the method has a head.

        Pictures of another size or mode are converted, which the result's notes say. Every class must show a picture
        that can be read, and no picture may be of two classes.
        """
        trained, where = self.fitted, choose_device(device)
        if isinstance(support, Images):
            return adapt_pictures(trained, support, where)
        channels, *size = trained.shape
        images, notes = read_folder(support, (size[0], size[1]), channels == 3, self.broken, whole=True)
        adapted = adapt_pictures(trained, images, where)
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
        learner = cls(trained.way, trained.shot, trained.name, settings, plan, size=trained.shape[1:], seed=seed)
        learner.rotations, learner.warp = trained.rotations, trained.warp
        learner.trained_ = trained
        return learner


def card(trained: TrainedPictures) -> str:
    """The page of a model for people."""
    channels, height, width = trained.shape
    train, validation, test = (len(part) for part in trained.split)
    most = most_classes(trained.name, trained.way)
    turned = " and their turns by 90 degrees" if trained.rotations else ""
    bent = ", slightly warped" if trained.warp else ""
    lines = [
        f"# A warmstart model of pictures: {trained.name}",
        "",
        f"- pictures: {height} x {width}, {'colour' if channels == 3 else 'grey'}",
        f"- trained on tasks of {trained.way} classes{turned}{bent}, {trained.shot} shown of each",
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
