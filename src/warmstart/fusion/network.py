"""What every way of fusing sees: the network as functions, and the pool with what its models say of some inputs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from warmstart.core import InputError, Params
from warmstart.models.mlp import ACTIVATIONS

ATTENTION = frozenset({"q", "k", "v", "query", "key", "value", "qkv", "attn", "attention"})  # parts of names


class Network(NamedTuple):
    """One architecture. `params` are those of one model; callers vmap."""

    module: nn.Module
    head: str  # name of the last linear layer
    apply: Callable[[Params, Tensor], Tensor]  # params, x [P, ...] -> [P, outputs]
    features: Callable[[Params, Tensor], Tensor]  # params, x -> what the head sees [P, h]
    adapter: tuple[str, ...] = ()  # the tensors of an adapter, where models are adapters of the module


class Pool(NamedTuple):
    params: Params  # [n, ...]
    descriptor: Tensor  # [n, p] float64
    inputs: Tensor  # [P, ...] on which functions are compared
    outputs: Tensor  # [n, P, outputs] what the models say of them, float64


class Rival(NamedTuple):
    """A way to make a model from a pool; all of them have this form."""

    fit: Callable[[Pool], Any]  # Pool -> State
    zero_shot: Callable[[Any, Tensor], Params]  # State, descriptors [q, p] -> models [q, ...]
    held_out: Callable[[Any], Params]  # State -> for each model of the pool, what the others make of its task [n, ...]


def make_network(module: nn.Module) -> Network:
    """`nn.Module` with a last linear layer, as functions."""
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise InputError("a network with a last linear layer", type(module).__name__, "add one")
    head = linear[-1]
    body = copy.deepcopy(module)
    if head:
        parent, _, child = head.rpartition(".")
        setattr(body.get_submodule(parent), child, nn.Identity())
    else:
        body = nn.Identity()

    def apply(params: Params, x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(module, params, (x,))
        return out

    def features(params: Params, x: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(body, without_head(params, head), (x,))
        return out

    return Network(module, head, apply, features)


def without_head(params: Params, head: str) -> Params:
    return {name: value for name, value in params.items() if name.rpartition(".")[0] != head}


def head_params(network: Network, weights: Tensor) -> Params:
    """The head's parameters from weights [..., outputs, h + 1], the bias last."""
    prefix = f"{network.head}." if network.head else ""
    layer: Any = network.module.get_submodule(network.head)
    if layer.bias is None:
        return {f"{prefix}weight": weights[..., :-1]}
    return {f"{prefix}weight": weights[..., :-1], f"{prefix}bias": weights[..., -1]}


def run_models(network: Network, params: Params, x: Tensor) -> Tensor:
    """[n, P, outputs] of a stack of models on the same inputs, float64."""
    like = next(iter(params.values()))
    with torch.no_grad():
        said: Tensor = torch.func.vmap(network.apply, (0, None))(params, x.to(like))
    return said.double()


def run_features(network: Network, params: Params, x: Tensor) -> Tensor:
    """[n, P, h + 1] what the heads of a stack see, with a last column of ones where the head has a bias."""
    like = next(iter(params.values()))
    with torch.no_grad():
        said = torch.func.vmap(network.features, (0, None))(params, x.to(like)).double()
    layer: Any = network.module.get_submodule(network.head)
    last = said.new_full((*said.shape[:-1], 1), 0.0 if layer.bias is None else 1.0)
    return torch.cat([said, last], -1)


def make_pool(network: Network, params: Params, descriptor: Tensor, inputs: Tensor) -> Pool:
    """The pool, once the network has shown that it fits the weights and, unless they are adapters, ends in its head."""
    own = {name: value.shape for name, value in network.module.named_parameters()}
    given = {name: value.shape[1:] for name, value in params.items()}
    if len(torch.unique(inputs.flatten(1), dim=0)) < 2:
        raise InputError("different rows to compare functions on", f"{len(inputs)}, all alike", "pass some more")
    if not bool(torch.isfinite(inputs).all()):
        raise InputError("finite inputs to compare functions on", "NaN or infinity", "clean those rows")
    if not network.adapter and own != given:
        odd = sorted(set(own.items()) ^ set(given.items()))[0]
        expected = f"a network with the weights of the pool in {type(network.module).__name__}"
        raise InputError(expected, f"a difference at {odd[0]!r}", "pass the module that the models were trained with")
    try:
        outputs = run_models(network, params, inputs)
    except RuntimeError as error:
        words = str(error).splitlines()[0]
        raise InputError("inputs that the models can read", f"{list(inputs.shape)} ({words})", "correct them") from None
    if not bool(torch.isfinite(outputs).all()):
        raise InputError("models with finite outputs", "NaN or infinity", "remove broken models, or narrow the inputs")
    if not network.adapter:
        _check_head(network, {name: value[:1] for name, value in params.items()}, inputs, outputs[:1])
    return Pool(params, descriptor.double(), inputs, outputs)


def _check_head(network: Network, one: Params, inputs: Tensor, outputs: Tensor) -> None:
    """Complain unless the first model's last linear layer says what the model says."""
    seen = run_features(network, one, inputs)
    prefix = f"{network.head}." if network.head else ""
    weight, bias = (one.get(f"{prefix}{part}", torch.zeros(())).double() for part in ("weight", "bias"))
    if seen.dim() != 3 or not torch.allclose(seen[..., :-1] @ weight.mT + bias, outputs, rtol=1e-3, atol=1e-4):
        got = f"something after '{network.head}' in {type(network.module).__name__}"
        raise InputError("a network that ends in its last linear layer", got, "leave what follows out of the module")


def chain(params: Params, activation: str = "relu") -> nn.Module:
    """The multi-layer perceptron that these tensors are the weights of, in the order of the numbers in their names.

    >>> chain({"0.weight": torch.zeros(4, 1), "0.bias": torch.zeros(4), "2.weight": torch.zeros(1, 4)})
    Chain(
      (0): Linear(in_features=1, out_features=4, bias=True)
      (2): Linear(in_features=4, out_features=1, bias=False)
      (activation): ReLU()
    )
    """
    odd = next((name for name in params if ATTENTION & set(re.split(r"[^a-z]+", name.lower()))), None)
    if odd is not None:
        remedy = "use Python and pass the module; only what has a known symmetry is aligned"
        raise InputError("linear layers one after another", f"{odd!r}, which looks like attention", remedy)
    if activation not in ACTIVATIONS:
        raise InputError(f"an activation among {', '.join(ACTIVATIONS)}", repr(activation), "use one of these names")
    weights = sorted((name for name in params if name.endswith("weight")), key=_natural)
    names = [name.removesuffix("weight").removesuffix(".") for name in weights]
    known = {f"{name}.{part}".lstrip(".") for name in names for part in ("weight", "bias")}
    width: int | None = None
    for name in weights:
        value = params[name]
        if value.dim() != 2 or (width is not None and value.shape[1] != width) or not set(params) <= known:
            raise InputError(
                "linear layers, each as wide as the next one reads",
                f"{name} of shape {list(value.shape)}",
                "use Python and pass the module that the models were trained with",
            )
        width = value.shape[0]
    biased = {name for name in names if f"{name}.bias".lstrip(".") in params}
    if names == [""]:  # a linear layer on its own
        return nn.Linear(params["weight"].shape[1], params["weight"].shape[0], "" in biased)
    return Chain({name: params[weight] for name, weight in zip(names, weights, strict=True)}, biased, activation)


class Chain(nn.Module):
    """Linear layers of given names with one activation between."""

    def __init__(self, weights: Params, biased: set[str], activation: str) -> None:
        super().__init__()
        self.path = list(weights)
        for name, weight in weights.items():
            place: nn.Module = self
            *parents, last = name.split(".")
            for parent in parents:
                if parent not in dict(place.named_children()):
                    place.add_module(parent, nn.Module())
                place = place.get_submodule(parent)
            place.add_module(last, nn.Linear(weight.shape[1], weight.shape[0], name in biased))
        self.activation = ACTIVATIONS[activation]()

    def words(self) -> str:
        """What it is, layer by layer."""
        layers = {name: self.get_submodule(name) for name in self.path}
        sizes = [f"{name} ({layer.in_features} to {layer.out_features})" for name, layer in layers.items()]
        return f", {type(self.activation).__name__}, ".join(sizes)

    def forward(self, x: Tensor) -> Tensor:
        for name in self.path[:-1]:
            x = self.activation(self.get_submodule(name)(x))
        out: Tensor = self.get_submodule(self.path[-1])(x)
        return out


def assumed(module: nn.Module) -> list[str]:
    """What tensors alone do not say and was taken for granted."""
    if not isinstance(module, Chain):
        return []
    return [f"read as {module.words()}, with nothing around the layers; if it is another network, pass it in Python"]


def _natural(name: str) -> list[Any]:
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name) if part]
