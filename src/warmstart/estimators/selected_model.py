"""The model that a selection of sources ends in: a network, boosted trees or both, saved alone, for rows of the target.

A folder as `estimators.folder` writes them; trees are LightGBM's text, kept as bytes among the tensors. Nothing in
it is run when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from warmstart.baselines import pooled_trees
from warmstart.core import InputError, Tree
from warmstart.core.trees import tree_map
from warmstart.engine.files import finite, read_tensors, same_tensors
from warmstart.estimators.adapted import class_frame
from warmstart.estimators.folder import SCHEMA, WEIGHTS, pack, read_config, read_text, write_folder
from warmstart.estimators.source_methods import FOREST, MEAN
from warmstart.estimators.source_selection import Selection
from warmstart.estimators.trained import damaged
from warmstart.selection.final import NETWORK
from warmstart.selection.training import LIKELIHOODS, Form, outputs_of, parameters
from warmstart.tasks.schema import Schema
from warmstart.tasks.table import Source, read_table

KIND, TREES = "selected", "trees"


@dataclass(frozen=True)
class SelectedModel:
    """What predicting needs, on the CPU."""

    schema: Schema
    form: dict[str, Any]  # the model's kind and shape
    tensors: dict[str, Tensor]
    about: dict[str, Any]  # method, target, sources that it was trained with, how many there were, metric, value

    @classmethod
    def of(cls, chosen: Selection, metric: str) -> SelectedModel:
        """The model that validation preferred."""
        transfer, fitted = chosen.transfer, chosen.fitted[chosen.best]
        if transfer.schema is None:
            raise InputError("sources read from a table", "rows of numbers", "keep `outputs` of the fitted method")
        used = [name for name, member in zip(transfer.names, fitted.members.tolist(), strict=False) if member]
        about = {
            "method": chosen.best,
            "target": transfer.names[-1],
            "sources": used,
            "of": transfer.sources,
            "metric": metric,
            "validation": fitted.value,
        }
        tensors = tree_map(lambda leaf: leaf.detach().cpu(), fitted.kept.tensors)
        return cls(transfer.schema, fitted.kept.form, tensors, about)

    def predict(self, rows: Source) -> Tensor:
        """Probabilities: of the second class [n], or of all [n, classes]."""
        x = self.schema.transform_rows(rows)
        return LIKELIHOODS[self.schema.target.kind].mean(self._outputs(x).float())

    def frame(self, rows: Source) -> pd.DataFrame:
        """Guesses and probabilities as a table, in the order of the rows."""
        frame = read_table(rows, "query")
        return class_frame(self.predict(frame), self.schema.target.classes)

    def save(self, path: str | Path, words: str = "") -> None:
        config = {"kind": KIND, **self.about, "form": self.form}
        sources = ", ".join(self.about["sources"]) or "none"
        card = (
            f"# A model of {self.about['target']}\n\nBy {self.about['method']}, with the sources: {sources}. {words}\n"
        )
        write_folder(Path(path), pack(config, self.tensors, self.schema.to_json(), card))

    @classmethod
    def load(cls, path: str | Path) -> SelectedModel:
        path = Path(path)
        config = read_config(path, KIND)
        schema, (tensors, _) = Schema.from_json(read_text(path / SCHEMA)), read_tensors(path / WEIGHTS)
        if not finite(tensors):
            raise InputError(f"finite weights in {path / WEIGHTS}", "others", "restore the file, or select again")
        try:
            about = {name: config[name] for name in ("method", "target", "sources", "of", "metric", "validation")}
            about |= {"of": int(about["of"]), "sources": [str(name) for name in about["sources"]]}
            model = cls(schema, dict(config["form"]), tensors, about)
            if model.form["model"] in (NETWORK, MEAN):
                same_tensors(model._network(), parameters(model._form()), path / WEIGHTS)
            model._outputs(model._example())
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError):
            raise damaged(path) from None
        return model

    def _outputs(self, x: Tree) -> Tensor:
        target, kind = self.about["of"], self.form["model"]
        said = []
        if kind in (NETWORK, MEAN):
            said.append(outputs_of(self._form(), target, self._network(), x)[0])
        if kind in (FOREST, MEAN):
            text = bytes(self.tensors[TREES].tolist()).decode()
            trees = pooled_trees.load(text, bool(self.form["with_task"]), target, self._form().outputs)
            said.append(trees(x).float())
        if not said:
            raise ValueError("another model")
        return torch.stack(said).mean(0)

    def _network(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.tensors.items() if name != TREES}

    def _form(self) -> Form:
        target = self.schema.target
        outputs = len(target.classes) if target.kind == "multiclass" else 1
        heads = self.about["of"] + 1 if self.form.get("own_heads") else 1
        hidden = tuple(int(size) for size in self.form.get("hidden", ()))
        return Form(self.schema.columns, hidden, outputs, heads, target.kind)

    def _example(self) -> Tree:
        """One row of nothing, which any model can be asked about."""
        columns = self.schema.columns
        none = torch.zeros(1, len(columns.categorical), dtype=torch.long)
        bag = torch.zeros(1, len(columns.bag), 1, dtype=torch.long)
        return {"numeric": torch.zeros(1, columns.numeric), "categorical": none, "bag": bag}
