"""MetaLearner: fit on the tables of many tasks, adapt to a new one, predict with intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from warmstart.core import Columns, InputError, Prediction, Tree, check_names, make_batch
from warmstart.core.trees import named_leaves, to_device, tree_map
from warmstart.engine.device import choose_device
from warmstart.engine.files import finite
from warmstart.engine.loop import LOG
from warmstart.engine.stage import PLAIN
from warmstart.estimators.adapted import AdaptedModel
from warmstart.estimators.choosing import Chosen, Record, choose, run_id
from warmstart.estimators.fitting import Problem, fingerprint, possible, predictor, runner, sees_descriptor_in_rows
from warmstart.estimators.folder import pack, read_config, read_text, write_folder
from warmstart.estimators.judging import Calibration, calibrate, held_out, sizes_up_to
from warmstart.estimators.methods import AUTO, LIKELIHOODS, Network, assemble
from warmstart.estimators.powers import Powers, fit_powers
from warmstart.estimators.trained import Trained, damaged, restore
from warmstart.tasks.pool import Pool
from warmstart.tasks.roles import Roles, require
from warmstart.tasks.schema import NamedPool, Schema
from warmstart.tasks.side_tables import keys
from warmstart.tasks.split import Split, split_tasks
from warmstart.tasks.table import Source, read_support, read_table
from warmstart.training.search import Trial
from warmstart.training.train import Plan

KIND = "meta"


@dataclasses.dataclass
class MetaLearner:
    """Learns from many tasks how to learn a new one from few samples.

    `method="auto"` tunes and compares a few methods on validation tasks. Fitted names end in `_`.
    """

    method: str = "auto"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the method
    plan: Plan = Plan()
    trials: int = 4  # configurations tried for each method; the same number for all
    network: Network = Network()
    model: nn.Module | None = None  # your own network, for `fit_pools`
    seed: int = 0
    device: str = "auto"
    trained_: Trained | None = dataclasses.field(default=None, init=False, repr=False)
    trials_: dict[str, list[Trial]] = dataclasses.field(default_factory=dict, init=False, repr=False)
    log_: str = dataclasses.field(default="", init=False, repr=False)  # of the training, a JSON object a line

    def fit(
        self,
        rows: Source,
        roles: Roles | None = None,
        task_table: Source | None = None,
        item_table: Source | None = None,
        *,
        start: MetaLearner | None = None,
        kind: str | None = None,
        folder: Path | None = None,
        progress: Callable[[str], Any] | None = None,
        record: Record | None = None,
    ) -> MetaLearner:
        """Fit on a table of rows. With `start`, go on from a fitted model: its columns, method and weights.

        With a folder the run keeps checkpoints there and resumes from them.
        """
        if self.model is not None:
            raise InputError("pools of tensors for your own network", "a table", "call fit_pools, or leave model out")
        frame = read_table(rows, "rows")
        old = None if start is None else known_schema(start, roles, kind)
        roles = roles if old is None else old.roles
        if roles is None:
            raise InputError("the roles of the columns", "none", "pass Roles(task=..., target=...)")
        require([roles.task], frame.columns, "rows")
        names = keys(frame[roles.task], "rows")[1]
        if old is None:
            split = split_tasks(names, seed=self.seed)
            schema = Schema.fit(frame, roles, task_table, item_table, target=kind, split=split)
        else:
            schema = dataclasses.replace(old, split=extend_split(old.split, names, self.seed))
        train, validation, _ = split_pools(schema, schema.transform(frame, task_table, item_table))
        if not train.count or not validation.count:
            have = f"{train.count} and {validation.count}"
            raise InputError(
                "training and validation tasks",
                have,
                "add tasks that the model was validated on, or at least 3 new ones",
            )
        problem = Problem(
            train,
            validation,
            schema.columns,
            schema.descriptor_columns,
            LIKELIHOODS[schema.target.kind],
            len(schema.target.classes),
        )
        self._fit(problem, schema, start, folder, progress, record)
        return self

    def fit_pools(
        self,
        train: Pool,
        validation: Pool,
        kind: str = "squared",
        classes: int = 0,
        *,
        start: MetaLearner | None = None,
        folder: Path | None = None,
        progress: Callable[[str], Any] | None = None,
    ) -> MetaLearner:
        """Fit your own network on pools of tensors."""
        if self.model is None:
            raise InputError("a network for pools of tensors", "none", "pass MetaLearner(model=...), or fit a table")
        if self.method == "auto":
            raise InputError("a method for your own network", "auto", "name one, for instance maml")
        check_names([kind], LIKELIHOODS, "a kind")
        problem = Problem(train, validation, Columns(), Columns(), LIKELIHOODS[kind], classes, self.model)
        self._fit(problem, None, start, folder, progress, None)
        return self

    def adapt(
        self,
        support: Source | Tree | None = None,
        descriptor: pd.DataFrame | Mapping[str, Any] | None = None,
        item_table: Source | None = None,
        y: Tensor | None = None,
        device: str = "cpu",
    ) -> AdaptedModel:
        """A model for a new task from its rows (none: zero-shot) and what is known of it.

        A model of a table takes a table with the target column; one of your own network takes x and y. A few rows
        are small work, for which a CPU is quick enough.
        """
        trained = self.fitted.to(choose_device(device))
        schema = trained.schema
        if schema is None:
            about = torch.zeros(1, 0)
            if support is None:
                return AdaptedModel(trained, trained.before(about), about, 0)
            if y is None:
                raise InputError("x and y of the support", "no y", "pass adapt(x, y=...)")
            if not finite(named_leaves({"x": support, "y": y})):
                raise InputError("finite numbers in x and y of the support", "others", "leave those rows out")
            return AdaptedModel(trained, trained.adapt(make_batch(support, y), about), about, len(y))
        known = schema.transform_descriptor({} if descriptor is None else descriptor)
        frame = read_support(support)
        if frame is None:
            return AdaptedModel(trained, trained.before(known), known, 0)
        if schema.roles.target not in frame:
            raise InputError(
                f"a target column '{schema.roles.target}' in the support", ", ".join(frame.columns), "add it"
            )
        if schema.roles.task in frame and frame[schema.roles.task].nunique() > 1:
            raise InputError("support rows of one task", "several tasks", "adapt to each by itself, or use adapt_tasks")
        x, y = schema.transform_rows(frame, item_table), schema.target.encode(frame[schema.roles.target])
        batch = make_batch(x, y, schema.weights(frame))
        return AdaptedModel(trained, trained.adapt(batch, known), known, len(frame))

    def predict(self, rows: Source | Tree, **known: Any) -> Prediction:
        """Of rows of a new task, of which `known` is what `adapt` takes: nothing, its support, its descriptor."""
        return self.adapt(**known).predict(rows, known.get("item_table"))

    def predict_interval(self, rows: Source | Tree, level: float = 0.9, **known: Any) -> tuple[Tensor, Tensor]:
        """low and high, likewise."""
        return self.adapt(**known).predict_interval(rows, level, known.get("item_table"))

    @property
    def fitted(self) -> Trained:
        if self.trained_ is None:
            raise InputError("a fitted model", "one that is not", "call fit first")
        return self.trained_

    def save(self, path: str | Path) -> None:
        """A folder of config.json, weights.safetensors, schema.json, card.md and, where there was one, log.jsonl."""
        trained = self.fitted
        config = {
            **trained.config_json(),
            "kind": KIND,
            "plan": dataclasses.asdict(self.plan),
            "seed": self.seed,
        }
        files = pack(config, trained.tensors(), trained.schema_json(), card(trained))
        write_folder(Path(path), files | ({LOG: self.log_.encode()} if self.log_ else {}))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None) -> MetaLearner:
        config = read_config(Path(path), KIND)
        trained, _ = restore(Path(path), config, model)
        try:
            plan, seed = Plan(**config["plan"]), int(config["seed"])
        except (KeyError, TypeError, ValueError):
            raise damaged(Path(path)) from None
        learner = cls(trained.name, dataclasses.asdict(trained.config), plan, seed=seed, model=model)
        learner.network, learner.trained_ = trained.network, trained
        learner.log_ = read_text(Path(path) / LOG) if (Path(path) / LOG).exists() else ""
        return learner

    def _fit(
        self,
        problem: Problem,
        schema: Schema | None,
        start: MetaLearner | None,
        folder: Path | None,
        progress: Callable[[str], Any] | None,
        record: Record | None,
    ) -> None:
        counts = dataclasses.asdict(self.plan) | {"trials": self.trials}
        low = next((name for name, count in counts.items() if count is not None and count < 1), None)
        if low is not None:
            raise InputError(f"{low} of at least 1", f"{counts[low]}", "pass a larger number")
        names: tuple[str, ...] = (self.method,)
        warm, settings, network = None, self.settings, self.network
        if start is not None:
            old = start.fitted
            if self.method not in ("auto", old.name):
                raise InputError(f"method {old.name}, to go on from it", self.method, "leave the method out")
            warm, names, network = old.state.theta, (old.name,), old.network
            settings = dataclasses.asdict(old.config) | dict(self.settings)
        elif self.method == "auto":
            if settings:
                raise InputError("a method to apply the settings to", "auto", "name one, for instance maml")
            names = AUTO
        trials = 1 if start is not None or (self.settings and self.method != "auto") else self.trials
        device = choose_device(self.device)
        if folder is not None:  # which may be shared by runs on other data or with other plans
            folder = folder / fingerprint(problem, self.plan, self.seed, network, warm)
        run = runner(problem, self.plan, seed=self.seed, device=device, network=network, warm=warm)
        found = choose(
            possible(names, problem),
            settings,
            run,
            trials,
            seed=self.seed,
            folder=folder,
            progress=progress,
            record=record,
        )
        self.trials_ = found.trials
        logs = [] if folder is None else sorted((folder / run_id(found.name, found.config)).rglob(LOG))
        self.log_ = logs[0].read_text("utf-8") if logs else ""  # of the first rank
        self.trained_ = self._trained(found, problem, schema, network)

    def _trained(self, found: Chosen, problem: Problem, schema: Schema | None, network: Network) -> Trained:
        """The fitted method on the CPU, with intervals or probabilities calibrated on the validation tasks."""
        if math.isinf(found.found.value):
            remedy = "lower the learning rates, or take another method"
            raise InputError(f"a finite error of {found.name} on the validation tasks", "an infinite one", remedy)
        learner, _ = assemble(
            found.name,
            found.config,
            problem.columns,
            problem.descriptor,
            problem.likelihood,
            problem.classes,
            PLAIN,
            self.seed,
            network,
            problem.module,
        )
        state = to_device(found.found.state, "cpu")
        task = held_out(problem.validation.to("cpu"), self.plan.support, self.plan.query, self.seed)
        predict = predictor(found.name, learner, state, sees_descriptor_in_rows(found.name, problem))
        settle: Callable[..., Calibration | Powers] = calibrate if problem.likelihood.name == "squared" else fit_powers
        calibration = settle(predict, task, sizes_up_to(self.plan.support))
        return Trained(
            found.name,
            found.config,
            learner,
            tree_map(lambda leaf: leaf.detach(), state),
            problem.likelihood,
            problem.classes,
            schema,
            network,
            problem.module,
            calibration,
            found.found.value,
        )


def known_schema(start: MetaLearner, roles: Roles | None, kind: str | None) -> Schema:
    """The columns of the model to start from, which new ones may not contradict."""
    schema = start.fitted.schema
    if schema is None:
        raise InputError("a model of a table to start from", "one of your own module", "use fit_pools")
    asked = roles or schema.roles
    known = (schema.roles.task, schema.roles.target, schema.target.kind)
    if (asked.task, asked.target, kind or schema.target.kind) != known:
        raise InputError(
            f"the task column, target and kind {', '.join(known)} of the model to start from",
            f"{asked.task}, {asked.target}, {kind or schema.target.kind}",
            "leave them out, or fit a new model",
        )
    return schema


def extend_split(old: Split | None, names: list[str], seed: int) -> Split:
    """Tasks that the model has seen keep their part, so that none becomes held out later; new ones are divided."""
    before = old or Split((), (), ())
    fresh = set(names).difference(*before)
    few = len(fresh) < 3 and any(before)  # too few to divide: they are trained with
    after = Split(tuple(fresh), (), ()) if few else split_tasks(fresh, seed=seed)
    return Split(*(tuple(sorted({*a, *b})) for a, b in zip(before, after, strict=True)))


def split_pools(schema: Schema, named: NamedPool) -> tuple[Pool, Pool, Pool]:
    """The pools of the schema's training, validation and test tasks."""
    if schema.split is None:
        raise InputError("a schema with a task split", "one without", "fit it with split=split_tasks(...)")
    place = {name: i for i, name in enumerate(named.names)}
    return tuple(  # type: ignore[return-value]
        named.pool.select(torch.tensor([place[name] for name in part if name in place], dtype=torch.long))
        for part in schema.split
    )


def card(trained: Trained) -> str:
    """The page of a model for people."""
    lines = [
        f"# A warmstart model: {trained.name}",
        "",
        f"- target: {trained.likelihood.name}",
        f"- validation error (mean over support sizes): {trained.value:.4g}",
        *(f"- {name}: {value}" for name, value in dataclasses.asdict(trained.config).items()),
    ]
    if trained.schema is not None and trained.schema.split is not None:
        train, validation, test = (len(part) for part in trained.schema.split)
        lines.append(f"- tasks: {train} to train, {validation} to validate, {test} held out")
    lines += [
        "",
        "```python",
        "from warmstart.estimators import MetaLearner",
        'model = MetaLearner.load("this folder")',
        "```",
        "",
    ]
    return "\n".join(lines)
