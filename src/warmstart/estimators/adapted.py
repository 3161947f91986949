"""A model adapted to one task: small, saved alone, exported to ONNX."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from warmstart.core import InputError, Prediction, Tree
from warmstart.core.trees import fill, named_leaves, to_device, tree_map
from warmstart.engine.files import same_tensors
from warmstart.estimators.folder import WEIGHTS, pack, read_config, write_folder
from warmstart.estimators.judging import Calibration, interval
from warmstart.estimators.onnx import export
from warmstart.estimators.trained import Trained, damaged, restore, unreplaced
from warmstart.tasks.table import Source


@dataclass(frozen=True)
class AdaptedModel:
    """What a task's few samples made of a trained model."""

    trained: Trained
    adapted: Tree  # what differs between tasks
    descriptor: Tree  # [1, ...] of this task
    shown: int  # support rows it has seen

    def predict(self, rows: Source | Tree, item_table: Source | None = None) -> Prediction:
        """Mean, and variance where the method has one, in the units of the target."""
        return self.trained.decode(self._predict(self._rows(rows, item_table)))

    def predict_interval(
        self, rows: Source | Tree, level: float = 0.9, item_table: Source | None = None
    ) -> tuple[Tensor, Tensor]:
        """low and high, which hold a new value with probability `level` over tasks like the validation tasks."""
        low, high = self._interval(self._predict(self._rows(rows, item_table)), level)
        if not bool(torch.isfinite(low).all()):
            assert isinstance(self.trained.calibration, Calibration)
            few = len(self.trained.calibration.mask)
            need = int(np.ceil(level / (1 - level) - 1e-9))
            raise InputError(f"at least {need} validation tasks for level {level}", f"{few}", "lower the level")
        return low, high

    def frame(self, rows: Source, level: float = 0.9, item_table: Source | None = None) -> pd.DataFrame:
        """The predictions as a table, with class probabilities, or intervals: infinite where the validation
        tasks are too few to claim the level."""
        raw = self._predict(self._rows(rows, item_table))
        said = self.trained.decode(raw)
        schema = self.trained.schema
        if self.trained.likelihood.name == "squared":
            low, high = self._interval(raw, level)
            return pd.DataFrame({"prediction": said.mean, "low": low, "high": high})
        classes = schema.target.classes if schema is not None else [str(i) for i in range(said.mean.shape[-1])]
        return class_frame(said.mean, classes)

    def module(self) -> nn.Module:
        """A user's own network with this task's weights."""
        if self.trained.module is None or not isinstance(self.adapted, dict):
            raise InputError("a point method on your own module", self.trained.name, "use predict, or export to ONNX")
        theta = self.trained.state.theta
        own = copy.deepcopy(self.trained.module)
        own.load_state_dict({**theta.get("params", theta), **self.adapted}, strict=False)
        return own

    def save(self, path: str | Path) -> None:
        """Of the trained model only what this one needs: neither the weights it replaced nor the names of tasks."""
        theta = unreplaced(self.trained.state.theta, self.adapted)
        tensors = {**self.trained.tensors(), "theta": theta, "adapted": self.adapted, "descriptor": self.descriptor}
        config = {**self.trained.config_json(), "kind": "adapted", "shown": self.shown}
        card = f"# A model adapted to one task\n\nMethod {self.trained.name}, {self.shown} rows seen.\n"
        write_folder(Path(path), pack(config, tensors, self.trained.schema_json(named=False), card))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None) -> AdaptedModel:
        config = read_config(Path(path), "adapted")
        trained, found = restore(Path(path), config, model)
        empty = torch.zeros(1, 0) if trained.schema is None else trained.schema.transform_descriptor({})
        wanted = {"descriptor": empty, "adapted": trained.before(empty)}
        own = {name: value for name, value in found.items() if name.split("/")[0] in wanted}
        same_tensors(own, named_leaves(wanted), Path(path) / WEIGHTS)
        filled = fill(wanted, own)
        try:
            trained.before(filled["descriptor"])
            shown = int(config["shown"])
        except (KeyError, TypeError, ValueError, IndexError):  # IndexError: a category that there is not
            raise damaged(Path(path)) from None
        return cls(trained, filled["adapted"], filled["descriptor"], shown)

    def export(self, path: str | Path) -> None:
        """An ONNX file with inputs numeric, categorical and bag, as `schema.transform_rows` gives them."""
        example = self._example()
        outputs = ["mean", "variance"] if isinstance(self._predict(example).variance, Tensor) else ["mean"]
        here = replace(self, trained=self.trained.to("cpu"), adapted=to_device(self.adapted, "cpu"))
        export(_Exported(here), example, Path(path), outputs)

    def _rows(self, rows: Source | Tree, item_table: Source | None) -> Tree:
        if self.trained.schema is None:
            return rows
        return self.trained.schema.transform_rows(rows, item_table)

    def _predict(self, x: Tree) -> Prediction:
        return self.trained.predict_rows(self.adapted, self.descriptor, x, self.shown)

    def _interval(self, raw: Prediction, level: float) -> tuple[Tensor, Tensor]:
        if not isinstance(self.trained.calibration, Calibration):
            raise InputError("a squared target for intervals", self.trained.likelihood.name, "use the probabilities")
        if not 0 < level < 1:
            raise InputError("a level between 0 and 1", f"{level}", "pass for instance 0.9")
        stacked = Prediction(*tree_map(lambda leaf: leaf[None], tuple(raw)))
        low, high = interval(self.trained.calibration, stacked, torch.tensor([self.shown]), level)
        return self.trained.unscale(low[0]), self.trained.unscale(high[0])

    def _example(self) -> Tree:
        if self.trained.schema is None:
            raise InputError("a model of a table", "one of your own module", "export module() with torch.onnx")
        return self.trained.example(2)


def class_frame(chance: Tensor, classes: Sequence[str]) -> pd.DataFrame:
    """The likeliest class and the probabilities: of the second [n], or of all [n, classes]."""
    if chance.dim() == 1:
        guess = [classes[int(p > 0.5)] for p in chance]
        return pd.DataFrame({"prediction": guess, f"p({classes[1]})": chance})
    guess = [classes[int(i)] for i in chance.argmax(-1)]
    chances = {f"p({name})": chance[:, i] for i, name in enumerate(classes)}
    return pd.DataFrame({"prediction": guess, **chances})


class _Exported(nn.Module):
    """The adapted model as a module of tensors, for the exporter."""

    def __init__(self, adapted: AdaptedModel) -> None:
        super().__init__()
        self.adapted = adapted

    def forward(self, numeric: Tensor, categorical: Tensor, bag: Tensor) -> tuple[Tensor, ...]:
        x = {"numeric": numeric, "categorical": categorical, "bag": bag}
        said = self.adapted.trained.decode(self.adapted._predict(x))
        return (said.mean,) if not isinstance(said.variance, Tensor) else (said.mean, said.variance)
