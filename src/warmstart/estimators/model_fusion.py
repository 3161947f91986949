"""Model fusion as a user calls it: fit a pool, generate a model for a new task, with or without a few rows of it.

Every way of fusing says what it would have made of each model's task without that model; the way with the smallest
mean error against the models themselves is taken, unless one is asked for. Intervals are conformal over the pool's
tasks, in units of how unsure the Gaussian process over descriptors is of a task.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import pandas as pd
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from warmstart.core import InputError, Params, check_names
from warmstart.core.trees import take
from warmstart.engine.files import read_tensors, same_tensors, write_bytes
from warmstart.estimators.folder import WEIGHTS, pack, read_config, write_folder
from warmstart.fusion import (
    adapter_functions,
    adapter_gp,
    average,
    few_shot,
    function_gp,
    hypernetwork,
    nearest,
    weight_gp,
    weight_ridge,
)
from warmstart.fusion.adapters import attach, layers
from warmstart.fusion.network import Network, Rival, assumed, chain, make_network, make_pool, run_models
from warmstart.fusion.zoo import Zoo, encode_descriptor, outside
from warmstart.maths import gp
from warmstart.metrics.intervals import conformal_quantile
from warmstart.tasks.features import Features

POINTS = 256
RANGE = (-3.0, 3.0)
FAR = 4.0  # times as unsure as of the typical task of the pool: said to be far outside


class Way(NamedTuple):
    build: Callable[..., Rival]
    config: Any
    state: type


WAYS = {
    "nearest": Way(nearest.build, nearest.Config(), nearest.State),
    "average": Way(average.build, average.Config(), average.State),
    "aligned_average": Way(average.build, average.ALIGNED, average.State),
    "weight_gp": Way(weight_gp.build, weight_gp.Config(), weight_gp.State),
    "weight_ridge": Way(weight_ridge.build, weight_ridge.Config(), weight_ridge.State),
    "hypernetwork": Way(hypernetwork.build, hypernetwork.Config(), hypernetwork.State),
    "function_gp": Way(function_gp.build, function_gp.Config(), function_gp.State),
}
ADAPTER_WAYS = {
    "nearest": WAYS["nearest"],
    "average": Way(average.build, average.PRODUCTS, average.State),
    "adapter_gp": Way(adapter_gp.build, adapter_gp.Config(), adapter_gp.State),
    "adapter_functions": Way(adapter_functions.build, adapter_functions.Config(), adapter_functions.State),
}
KIND = "fusion"


class Generated(NamedTuple):
    """A model for a new task."""

    params: Params
    network: Network
    half: Tensor  # [outputs] half the width of the interval of what the pool would call the task's function
    level: float
    relevance: dict[str, float]  # weight of the pool's models in the process's mean, largest first
    warning: str  # '' when the descriptor is inside the pool
    shots: int = 0
    noise: float = float("inf")  # that the conditioning took; infinite when the rows were not used

    @property
    def used(self) -> bool:
        """Whether rows changed the model."""
        return self.noise < float("inf")

    @property
    def interval(self) -> str:
        """In words."""
        half = ", ".join(f"{float(part):.4g}" for part in self.half)
        return f"{self.level:.0%} interval ± {half}" if bool(self.half.isfinite().all()) else too_few(self.level)

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, low and high [P, outputs] at inputs x [P, ...]."""
        mean = run_models(self.network, {name: value[None] for name, value in self.params.items()}, x)[0]
        return mean, mean - self.half, mean + self.half

    def save(self, path: str | Path) -> None:
        """A .safetensors file with the names of the pool's own."""
        write_bytes(Path(path), save_tensors({name: value.contiguous().clone() for name, value in self.params.items()}))


def too_few(level: float) -> str:
    """Said of a pool whose tasks are too few to calibrate an interval."""
    return f"an interval of level {level:g} needs at least {math.ceil(level / (1 - level) - 1e-9)} models in the pool"


def make_inputs(params: Params, span: tuple[float, float] = RANGE, points: int = POINTS) -> Tensor:
    """Inputs spread evenly over a range, for models whose first layer is linear."""
    first = next((value for value in params.values() if value.dim() == 3), None)
    if first is None:
        raise InputError("inputs to compare the models on", "none", "pass rows such as the models read")
    if not span[0] < span[1]:
        raise InputError("a range of inputs, low below high", f"{span[0]:g} to {span[1]:g}", "put the lower one first")
    width = first.shape[2]
    if width == 1:
        return torch.linspace(*span, points)[:, None]
    unit = torch.quasirandom.SobolEngine(width, scramble=True, seed=0).draw(points)  # type: ignore[no-untyped-call]
    return span[0] + (span[1] - span[0]) * unit


def relative_error(said: Tensor, wanted: Tensor) -> Tensor:
    """[n] RMSE of functions [n, P, outputs] over the range of the wanted one."""
    size = _range(wanted)
    return (said - wanted).square().mean((1, 2)).sqrt() / size


def _range(functions: Tensor) -> Tensor:
    flat = functions.flatten(1)
    return (flat.amax(1) - flat.amin(1)).clamp(min=1e-12)


class ModelFusion:
    """A generator of models, from a pool of models and what is known of their tasks."""

    def __init__(self, method: str = "auto", ways: Mapping[str, Way] | None = None, seed: int = 0) -> None:
        self.method, self.ways, self.seed = method, None if ways is None else dict(ways), seed

    def fit(
        self,
        zoo: Zoo,
        module: nn.Module | str = "relu",
        inputs: Tensor | tuple[float, float] = RANGE,
        progress: Callable[[str], None] = lambda words: None,
        base: Params | None = None,
    ) -> ModelFusion:
        """`module` is the network, or the activation of a chain of linear layers; `inputs` are rows, or their range.

        Of a pool of adapters `module` is the frozen network, or the activation of a chain with the weights `base`.
        """
        self.activation_ = module if isinstance(module, str) else None
        self.zoo_, self.base_ = zoo, _frozen(zoo.params, module, base)
        self.network_ = _network(zoo.params, module, self.base_)
        ways, process = self._ways, self._process
        check_names([] if self.method == "auto" else [self.method], ways, "a method auto or one")
        first = {name: value[None] for name, value in self.base_.items()} or zoo.params
        rows = make_inputs(_layers(first), inputs) if isinstance(inputs, tuple) else inputs
        self.pool_ = make_pool(self.network_, zoo.params, zoo.descriptor, rows)
        self.errors_: dict[str, Tensor] = {}
        self.notes_ = assumed(self.network_.module)
        held: dict[str, Params] = {}
        self.states_: dict[str, Any] = {}
        wanted = list(ways) if self.method == "auto" else [self.method]
        for name in dict.fromkeys([*wanted, process]):
            progress(name)
            try:
                rival = self._rival(name)
                self.states_[name] = rival.fit(self.pool_)
                held[name] = rival.held_out(self.states_[name])
            except InputError as error:
                if self.method != "auto":
                    raise
                self.notes_.append(f"{name} is left out: {error}")
                continue
            self.errors_[name] = relative_error(run_models(self.network_, held[name], rows), self.pool_.outputs)
        self.chosen_ = min(wanted, key=lambda name: float(self.errors_[name].mean()) if name in self.errors_ else 1e300)
        self.state_, self.process_ = self.states_[self.chosen_], self.states_[process].belief
        self.held_out_: Params = held[self.chosen_]
        self._prepare()
        return self

    @property
    def _ways(self) -> Mapping[str, Way]:
        return self.ways or (ADAPTER_WAYS if self.network_.adapter else WAYS)

    @property
    def _process(self) -> str:
        """The way whose Gaussian process says how unsure a task is."""
        return "adapter_gp" if self.network_.adapter else "function_gp"

    def _rival(self, name: str) -> Rival:
        way = self._ways[name]
        seeded = {"seed": self.seed} if hasattr(way.config, "seed") else {}
        return way.build(self.network_, replace(way.config, **seeded))

    def _prepare(self) -> None:
        """What generating needs beside the state: how the held-out models err, and how unsure the process was."""
        spread = gp.leave_one_out(self.process_)[1].sqrt()
        self.typical_ = float(spread.median())
        pool = self.pool_
        self.left_out_ = few_shot.some_errors(
            self.network_, pool.params, self.held_out_, spread, pool.descriptor, pool.inputs
        )
        self._widths: dict[float, Tensor] = {}

    def width(self, level: float) -> Tensor:
        """[outputs] half the width of an interval before any row, for a process that is unsure by 1."""
        if level not in self._widths:
            self._widths[level] = self._width(self.left_out_.values, level)
        return self._widths[level]

    def _width(self, left: Tensor, level: float) -> Tensor:
        """The same, of errors left [n, P, outputs]."""
        scores = left.abs() / self.left_out_.spread[:, None, None]
        mask = torch.ones(scores.shape[:2])
        return torch.tensor([conformal_quantile(part, mask, level) for part in scores.unbind(-1)]).double()

    def generate(
        self,
        known: pd.DataFrame | Mapping[str, Any] | Tensor,
        support: tuple[Tensor, Tensor] | None = None,
        level: float = 0.9,
    ) -> Generated:
        """A model for the task that `known` describes; `support` holds rows x [k, ...] and their y [k] or [k, o]."""
        if not 0 < level < 1:
            raise InputError("a level between 0 and 1", f"{level}", "write for instance 0.9")
        encoded = known if isinstance(known, Tensor) else encode_descriptor(self.zoo_.columns, known)
        width = self.zoo_.descriptor.shape[1]
        if encoded.numel() != width or not bool(torch.isfinite(encoded).all()):
            got = f"{list(encoded.shape)}" if encoded.numel() != width else "NaN or infinity"
            raise InputError(f"one descriptor of {width} finite numbers", got, "generate for one task at a time")
        descriptor = encoded.double().reshape(1, -1)
        params: Params = take(self._rival(self.chosen_).zero_shot(self.state_, descriptor), 0)
        _, variance = gp.predict(self.process_, descriptor)
        spread = float((variance + self.process_.hyper.noise).sqrt())
        if support is None:
            half, noise, shots = self.width(level), float("inf"), 0
        else:
            x, y = support[0], support[1] if support[1].dim() > 1 else support[1][:, None]
            self._check_support(x, y)
            adapted = few_shot.adapt(self.network_, few_shot.Config(), self.left_out_, params, x, y)
            params, noise, shots = adapted.params, adapted.noise, len(x)
            half = self._width(adapted.left, level)
        warning = self._warning(descriptor[0], spread)
        if support is not None:
            said = run_models(self.network_, {name: value[None] for name, value in params.items()}, x)[0]
            if float(((said - y).abs() > half * spread).double().mean()) > 0.5:
                words = "most rows lie outside the interval, so they or the descriptor may be of another task"
                warning = "; ".join(filter(None, [warning, words]))
        weights = gp.relevance(self.process_, descriptor)[0]
        order = weights.abs().argsort(descending=True)
        ranked = zip(order.tolist(), weights[order].tolist(), strict=True)
        relevance = {self.zoo_.names[i]: weight for i, weight in ranked}
        return Generated(params, self.network_, half * spread, level, relevance, warning, shots, noise)

    def _warning(self, descriptor: Tensor, spread: float) -> str:
        """Why the task is far from the pool's, or nothing."""
        far = spread / self.typical_
        words = outside(self.zoo_, descriptor)
        if far > FAR:
            words = "; ".join(filter(None, [f"{far:.0f} times as unsure as of a typical task of it", words]))
        return f"the task is far outside the pool: {words}" if words else ""

    def _check_support(self, x: Tensor, y: Tensor) -> None:
        if self.network_.adapter:
            remedy = "generate without rows, then train the adapter on them"
            raise InputError("no rows for an adapter, which has no last layer to condition", f"{len(x)}", remedy)
        inputs, outputs = self.pool_.inputs.shape[1:], self.pool_.outputs.shape[-1]
        if not len(x) or len(x) != len(y) or x.shape[1:] != inputs or y.shape[1] != outputs:
            expected = f"support rows of {list(inputs)} inputs and {outputs} outputs"
            got = f"{list(x.shape)} and {list(y.shape)}"
            raise InputError(expected, got, "pass one row of inputs and its outputs for each sample")
        if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
            raise InputError("finite numbers in the support", "NaN or infinity", "clean those rows")

    def save(self, path: str | Path, extra: Mapping[str, bytes] | None = None) -> None:
        """A folder that is whole or not there."""
        config = {
            "kind": KIND,
            "method": self.chosen_,
            "activation": self.activation_,
            "names": list(self.zoo_.names),
            "columns": self.zoo_.columns.to_dict(),
            "notes": self.notes_,
        }
        tensors = {
            "zoo": self.zoo_.params,
            "base": self.base_,
            "descriptor": self.zoo_.descriptor,
            "inputs": self.pool_.inputs,
            "errors": self.errors_,
            "held_out": self.held_out_,
            "state": self.state_,
            "process": self.process_,
        }
        write_folder(Path(path), {**pack(config, tensors, None, self.card()), **(extra or {})})

    @classmethod
    def load(cls, path: str | Path, module: nn.Module | None = None) -> ModelFusion:
        """A folder that `save` wrote; a network that is no chain of linear layers has to be passed again."""
        config = read_config(Path(path), KIND)
        named = read_tensors(Path(path) / WEIGHTS)[0]
        try:
            return cls._restore(config, named, module)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            got = f"a damaged one ({type(error).__name__}: {error})"
            raise InputError(f"a generator in {path}", got, "restore it, or fuse again") from None

    @classmethod
    def _restore(cls, config: dict[str, Any], named: Params, module: nn.Module | None) -> ModelFusion:
        self = cls(config["method"])
        params = _under(named, "zoo")
        self.activation_, self.notes_, self.chosen_ = config["activation"], list(config["notes"]), config["method"]
        if module is None and self.activation_ is None:
            raise InputError("the network of the pool", "none", "pass the module to load")
        self.zoo_ = Zoo(tuple(config["names"]), params, named["descriptor"], Features.from_dict(config["columns"]))
        self.base_ = _under(named, "base")
        self.network_ = _network(params, str(self.activation_) if module is None else module, self.base_)
        self.pool_ = make_pool(self.network_, params, named["descriptor"], named["inputs"])
        self.errors_ = _under(named, "errors")
        self.held_out_ = _under(named, "held_out")
        self.state_ = rebuild(self._ways[self.chosen_].state, _under(named, "state"))
        self.process_ = rebuild(gp.Belief, _under(named, "process"))
        self._prepare()
        return self

    def card(self) -> str:
        lines = [f"| {name} | {float(error.mean()):.4f} |" for name, error in self.errors_.items()]
        return "\n".join(
            [
                "# A generator of models",
                "",
                f"Fused from {len(self.zoo_)} models; described by {', '.join(self.zoo_.columns.names)}.",
                f"Method: `{self.chosen_}`. Error of each way on the pool's tasks, each left out in turn",
                "(RMSE over the range of the model's outputs):",
                "",
                "| way | error |",
                "| --- | --- |",
                *lines,
                "",
                *self.notes_,
            ]
        )


def _frozen(params: Params, module: nn.Module | str, base: Params | None) -> Params:
    """The weights of the network that a pool of adapters belongs to; none where the pool is of whole models."""
    if not layers(take(params, 0)):
        if base is not None:
            raise InputError("adapters for the frozen network, pairs lora_A and lora_B", "whole models", "leave it out")
        return {}
    if isinstance(module, nn.Module):
        return {name: value.detach().clone() for name, value in sorted(module.state_dict().items())}
    if base is None:
        raise InputError("the frozen network of the adapters", "none", "pass it with --base, or as a module in Python")
    return dict(sorted(base.items()))


def _network(params: Params, module: nn.Module | str, base: Params) -> Network:
    """Of whole models, or of adapters with the weights of their frozen network."""
    if not base:
        return make_network(chain(take(params, 0), module) if isinstance(module, str) else module)
    frozen = chain(base, module) if isinstance(module, str) else copy.deepcopy(module)
    same_tensors(dict(frozen.state_dict()), base, Path("the frozen network"))
    frozen.load_state_dict(base)
    return attach(frozen, take(params, 0))


def _layers(params: Params) -> Params:
    """In the order of a chain, so that the first weight is the first layer's."""
    module = chain({name: value[0] for name, value in params.items()})
    return {f"{name}.weight": params[f"{name}.weight".lstrip(".")] for name in getattr(module, "path", [])}


def _under(named: Params, prefix: str) -> Params:
    """In alphabetical order, as a zoo has its tensors."""
    named = dict(sorted(named.items()))
    return {name.removeprefix(f"{prefix}/"): value for name, value in named.items() if name.startswith(f"{prefix}/")}


def rebuild(kind: Any, named: Params) -> Any:
    """A named tuple of tensors, such tuples and dicts of either, from the paths of its leaves."""
    parts: dict[str, Any] = {}
    for field, hint in get_type_hints(kind).items():
        if field in named:
            parts[field] = named[field]
        elif hasattr(hint, "_fields"):
            parts[field] = rebuild(hint, _under(named, field))
        elif hasattr(get_args(hint)[1], "_fields"):
            inside = _under(named, field)
            names = dict.fromkeys(path.partition("/")[0] for path in inside)
            parts[field] = {name: rebuild(get_args(hint)[1], _under(inside, name)) for name in names}
        else:
            parts[field] = _under(named, field)
    return kind(**parts)
