"""A trained model: a method, its state, and what its tensors mean. What is saved, and what adapts."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from warmstart.core import Batch, Columns, InputError, Learner, Likelihood, Prediction, Task, Tree, adapt
from warmstart.core.trees import fill, leaves, named_leaves, take, to_device, tree_map
from warmstart.engine.files import finite, read_tensors, same_tensors
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import adapt_noise, generator
from warmstart.engine.stage import PLAIN
from warmstart.estimators.folder import CONFIG, SCHEMA, WEIGHTS, read_text
from warmstart.estimators.judging import Calibration, join_task
from warmstart.estimators.methods import LIKELIHOODS, Network, assemble, configure, find
from warmstart.estimators.powers import Powers, raised
from warmstart.models.tabular import join
from warmstart.tasks.schema import Schema


@dataclass(frozen=True)
class Trained:
    """Everything that prediction needs. It takes and gives tensors on the CPU, wherever it works itself."""

    name: str  # method id
    config: Any
    learner: Learner
    state: Any
    likelihood: Likelihood
    classes: int
    schema: Schema | None
    network: Network
    module: nn.Module | None
    calibration: Calibration | Powers | None  # of a target of numbers, and of classes; older models of these have none
    value: float  # validation error

    @property
    def joined(self) -> bool:
        """Whether rows carry their task's descriptor as further columns."""
        return self.schema is not None and self.name != "empirical_bayes"

    @property
    def device(self) -> torch.device:
        found: torch.device = leaves(self.state)[0].device
        return found

    def to(self, device: torch.device | str) -> Trained:
        """The same model, working there."""
        return dataclasses.replace(self, state=to_device(self.state, device))

    def predict(self, task: Task, steps: int | None = None) -> Prediction:
        """Adapt to every task of a stack and predict its query rows, in the units the network sees."""
        count = self.learner.steps if steps is None else steps
        noise = adapt_noise(self.learner.noise, len(task.key), count, generator(0))
        there, noise = to_device((self.view(task), noise), self.device)
        said: Prediction = to_device(predict_stack(self.learner, self.state, there, noise, steps, chunk=256), "cpu")
        return self.put_right(said, task.support.mask.sum(-1))

    def put_right(self, said: Prediction, shown: Tensor) -> Prediction:
        """Probabilities of classes to the power that validation tasks settled for tasks of so many rows [*t]."""
        return raised(said, self.calibration, shown.cpu()) if isinstance(self.calibration, Powers) else said

    def view(self, task: Task) -> Task:
        return join_task(task) if self.joined else task

    def adapt(self, support: Batch, descriptor: Tree) -> Tree:
        """Adapt to one task; descriptor [1, ...]."""
        stack = Task(
            tree_map(lambda leaf: leaf[None], support),
            tree_map(lambda leaf: leaf[None], support),
            descriptor,
            torch.zeros(1, dtype=torch.long),
        )
        seen = take(self.view(stack), 0)
        noise = take(adapt_noise(self.learner.noise, 1, self.learner.steps, generator(0)), 0)
        with torch.no_grad():
            return adapt(self.learner, self.state, *to_device((seen.support, seen.descriptor, noise[0]), self.device))

    def before(self, descriptor: Tree) -> Tree:
        """What `adapt` gives without a single sample: the zero-shot model, descriptor [1, ...]."""
        nothing = Batch((), torch.zeros(0), torch.zeros(0), torch.zeros(0))
        if self.schema is not None:
            x = self.example(1)
            nothing = Batch(x, torch.zeros(1), torch.zeros(1), torch.zeros(1))
            return self.adapt(nothing, descriptor)
        about, nothing = to_device((take(descriptor, 0), nothing), self.device)
        return self.learner.finish(self.state, self.learner.start(self.state, about), nothing)

    def example(self, rows: int) -> Tree:
        """Rows of which everything is missing."""
        assert self.schema is not None
        columns = self.schema.columns
        return {
            "numeric": torch.zeros(rows, columns.numeric),
            "categorical": torch.zeros(rows, len(columns.categorical), dtype=torch.long),
            "bag": torch.zeros(rows, len(columns.bag), self.schema.rows.bag_length, dtype=torch.long),
        }

    def predict_rows(self, adapted: Tree, descriptor: Tree, x: Tree, shown: int) -> Prediction:
        """Rows of the adapted task, which has shown so many."""
        if self.joined:
            rows = x["numeric"].shape[0]
            x = join(x, {name: leaf.expand(rows, *leaf.shape[1:]) for name, leaf in descriptor.items()})
        noise = take(adapt_noise(self.learner.noise, 1, 0, generator(0))[1], 0)
        with torch.no_grad():
            said = self.learner.predict(self.state, adapted, *to_device((x, noise), self.device))
        here: Prediction = to_device(said, "cpu")
        return self.put_right(here, torch.tensor(shown))

    def decode(self, said: Prediction) -> Prediction:
        """From the units the network sees to those of the target."""
        if self.schema is None or self.likelihood.name != "squared":
            return said
        spread = self.schema.target.std
        return Prediction(
            self.unscale(said.mean),
            tree_map(lambda v: v * spread**2, said.variance),
            tree_map(self.unscale, said.samples),
        )

    def unscale(self, value: Tensor) -> Tensor:
        if self.schema is None:
            return value
        return value * self.schema.target.std + self.schema.target.mean

    def tensors(self) -> dict[str, Tree]:
        """What is saved."""
        kept: dict[str, Tree] = {"theta": self.state.theta}
        if self.module is not None:
            kept["buffers"] = buffers(self.module)
        return kept if self.calibration is None else {**kept, "calibration": self.calibration}

    def config_json(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "config": dataclasses.asdict(self.config),
            "likelihood": self.likelihood.name,
            "classes": self.classes,
            "network": {**self.network._asdict(), "hidden": list(self.network.hidden)},
            "own_module": self.module is not None,
            "validation": self.value if self.value == self.value else None,
        }

    def schema_json(self, named: bool = True) -> str | None:
        """With or without the names of the tasks that it was fitted on."""
        if self.schema is None:
            return None
        return self.schema.to_json() if named else dataclasses.replace(self.schema, split=None).to_json()


def restore(path: Path, config: dict[str, Any], module: nn.Module | None) -> tuple[Trained, dict[str, Tensor]]:
    """A trained model from its folder, and the tensors that lie there beside it."""
    if config.get("own_module") and module is None:
        raise InputError(f"the network that {path} was trained with", "none", "pass load(path, model=...)")
    schema = None if config.get("own_module") else Schema.from_json(read_text(path / SCHEMA))
    found, _ = read_tensors(path / WEIGHTS)
    if not finite(found):
        raise InputError(f"finite weights in {path / WEIGHTS}", "others", "restore the file, or fit again")
    if module is not None:
        module = copy.deepcopy(module)
        kept = under(found, "buffers")
        same_tensors(kept, buffers(module), path / WEIGHTS)
        module.load_state_dict(kept, strict=False)
    try:
        cfg = configure(find(config["method"]).config, config["config"])
        likelihood = LIKELIHOODS[config["likelihood"]]
        network = Network(**{**config["network"], "hidden": tuple(config["network"]["hidden"])})
        classes, value = int(config["classes"]), config["validation"]
        columns, about = (Columns(), Columns()) if schema is None else (schema.columns, schema.descriptor_columns)
        learner, state = assemble(config["method"], cfg, columns, about, likelihood, classes, PLAIN, 0, network, module)
        trained = Trained(
            config["method"],
            cfg,
            learner,
            state,
            likelihood,
            classes,
            schema,
            network,
            module,
            None,
            float("nan") if value is None else float(value),
        )
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):  # RuntimeError: torch on absurd sizes
        raise damaged(path) from None
    theta = {**_replaced(under(found, "adapted"), named_leaves(state.theta)), **under(found, "theta")}
    same_tensors(theta, named_leaves(state.theta), path / WEIGHTS)
    filled = state._replace(theta=fill(state.theta, theta))
    return dataclasses.replace(trained, state=filled, calibration=_calibration(path, found, likelihood)), found


def _calibration(path: Path, found: dict[str, Tensor], likelihood: Likelihood) -> Calibration | Powers | None:
    scores = under(found, "calibration")
    if likelihood.name != "squared":
        if not scores:
            return None
        if set(scores) != set(Powers._fields) or len({part.shape for part in scores.values()}) > 1:
            raise damaged(path, WEIGHTS)
        return Powers(**scores)
    if set(scores) != set(Calibration._fields):
        raise damaged(path, WEIGHTS)
    kept = Calibration(**scores)
    if kept.scores.shape != (*kept.sizes.shape, *kept.mask.shape):
        raise damaged(path, WEIGHTS)
    return kept


def buffers(module: nn.Module) -> dict[str, Tensor]:
    """What a module keeps beside its parameters."""
    parameters = dict(module.named_parameters())
    return {name: value.detach() for name, value in module.state_dict().items() if name not in parameters}


def unreplaced(theta: Tree, adapted: Tree) -> dict[str, Tensor]:
    """Those of the meta-parameters that an adapted model needs beside its own, which stand in the place of others."""
    own = named_leaves(adapted) if isinstance(adapted, dict) else {}
    named = named_leaves(theta)
    return {name: value for name, value in named.items() if name not in _replaced(own, named)}


def _replaced(adapted: dict[str, Tensor], theta: dict[str, Tensor]) -> dict[str, Tensor]:
    """An adapted model's own parameters under the names of the meta-parameters they take the place of."""
    own = {name: adapted.get(name.removeprefix("params/")) for name in theta}
    return {name: value for name, value in own.items() if value is not None and value.shape == theta[name].shape}


def damaged(path: Path, name: str = CONFIG) -> InputError:
    return InputError(f"a complete {name} in {path}", "a damaged one", "restore it, or fit again")


def under(named: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below a path, by the rest of their path."""
    return {name[len(prefix) + 1 :]: value for name, value in named.items() if name.startswith(f"{prefix}/")}
