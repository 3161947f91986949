"""Hidden units in one order: models trained apart have theirs in any, and their average means nothing before.

A hidden unit of a layer may change places with another of the layer when its incoming weights, its bias and its
outgoing weights move together; a ReLU unit may also be scaled, its outgoing weights by the inverse. Neither changes
the function. Which parameters belong to a unit is read off the traced module, for chains of linear layers, convolutions
and operations that treat units alike. Where paths meet (residual, attention) symmetries are others: refused. So is what
may cut across units: they lie on axis 1 after a convolution, on the last after a linear layer, of whose inputs [P, ...]
the number of axes is known only where they are flattened.

    order_i = argmax over permutations of sum_u <unit_{order(u)} of model i, unit_u of the target>

solved by linear assignment, layer after layer until nothing moves (Ainsworth, Hayase and Srinivasa, 2023). The target
is one reference for all, or for each model what the others predict of it. Incoming weights count by their `reach`, what
they multiply: on inputs from -5 to 5 they move a unit more than its bias does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, fx, nn
from torch.nn import functional as F

from warmstart.core import InputError, Params

# Modules by their types, functions, methods by their names.
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
FLATTENS = (nn.Flatten, torch.flatten, "flatten")
MEANS = (torch.mean, "mean")
POOLS_1D = (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d)
POOLS_2D = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, F.max_pool2d, F.avg_pool2d)
SCALED: set[Any] = {nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Dropout, nn.Dropout2d, *POOLS_1D, *POOLS_2D}
SCALED |= {torch.relu, F.relu, F.leaky_relu, F.dropout, "relu"}
ALIKE: set[Any] = {nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.BatchNorm1d, nn.BatchNorm2d}
ALIKE |= {torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu, F.softplus, "tanh", "sigmoid"}
AXES: dict[Any, tuple[int | None, ...]] = {  # how many they read with the units on axis 1; None: any, the units last
    nn.Linear: (None, 2),
    nn.BatchNorm1d: (2, 3),
    **dict.fromkeys((nn.Conv1d, *POOLS_1D), (3,)),
    **dict.fromkeys((nn.Conv2d, nn.BatchNorm2d, *POOLS_2D), (4,)),
    **dict.fromkeys(FLATTENS, (2, 3, 4)),
    **dict.fromkeys(MEANS, (3, 4)),
}
SWEEPS = 20


class Place(NamedTuple):
    """Where units lie in a parameter: along an axis, in runs of `run` entries (pixels of a flattened channel)."""

    name: str
    axis: int
    run: int = 1


class Hidden(NamedTuple):
    """A layer of units that may change places."""

    units: int
    writes: tuple[Place, ...]  # incoming weights, bias, normalisation
    reads: tuple[Place, ...]  # outgoing weights
    scalable: bool  # what follows passes positive factors on


def _unknown(module: nn.Module, what: str) -> InputError:
    return InputError(
        "a chain of linear layers or convolutions, whose symmetry is known",
        f"{what} in {type(module).__name__}",
        "fuse without alignment: nearest, function_gp or hypernetwork",
    )


def _trace(module: nn.Module) -> fx.GraphModule:
    if any(True for _ in module.buffers()):
        raise _unknown(module, "buffers (running statistics)")
    owned = [value for part in module.modules() for value in part.parameters(recurse=False)]
    if len(owned) != len(set(owned)):
        raise _unknown(module, "parameters that layers share")
    try:
        return fx.symbolic_trace(module)
    except Exception as error:  # whatever a user's forward does
        raise _unknown(module, f"a forward that cannot be traced ({type(error).__name__})") from None


def symmetries(module: nn.Module) -> tuple[Hidden, ...]:
    """The hidden layers of a chain, first to last; a network that is no plain chain is refused."""
    return tuple(hidden for hidden, _ in _walk(module)[1])


def _keeps_units(node: fx.Node, kind: Any, layer: Any, axes: int | None) -> bool:
    """Whether a flatten is of all axes but the batch's, or a mean over all those behind the units'."""
    names = ("start_dim", "end_dim") if kind in FLATTENS else ("dim", "keepdim")
    given: dict[str, Any] = vars(layer) if layer else {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    if kind in FLATTENS:
        return (given.get("start_dim", 0), given.get("end_dim", -1)) == (1, -1)
    over = given.get("dim") or ()
    over = (over,) if isinstance(over, int) else over
    return axes is not None and {axis % axes for axis in over} == set(range(2, axes)) and not given.get("keepdim")


def _walk(module: nn.Module) -> tuple[fx.GraphModule, list[tuple[Hidden, fx.Node]]]:
    """With the node that each next layer reads."""
    traced = _trace(module)
    parts = dict(traced.named_modules())
    found: list[tuple[Hidden, fx.Node]] = []
    units, scalable = 0, True
    axes: int | None = None  # as in AXES
    writes: list[Place] = []
    used: set[str] = set()
    before: fx.Node | None = None
    for node in traced.graph.nodes:
        if node.op == "placeholder" or node.op == "output":
            before = node if node.users else before
            continue
        if len(node.users) != 1 or node.all_input_nodes != [before]:
            raise _unknown(module, f"paths that part or meet at '{node.name}'")
        layer: Any = parts[str(node.target)] if node.op == "call_module" else None
        kind: Any = type(layer) if layer else node.target
        own = [Place(f"{node.target}.{name}", 0) for name, _ in layer.named_parameters()] if layer else []
        if own and str(node.target) in used:
            raise _unknown(module, f"a repeated layer '{node.target}'")
        used.add(str(node.target))
        merges = kind in (*FLATTENS, *MEANS)
        cuts = kind in AXES and axes not in AXES[kind] and (units or axes is not None)
        if cuts or (merges and not _keeps_units(node, kind, layer, axes)):
            raise _unknown(module, f"'{node.target}', which may cut across the units before it,")
        if kind in LAYERS:
            if getattr(layer, "groups", 1) != 1 or not isinstance(layer.weight, nn.Parameter):
                raise _unknown(module, f"a grouped or reparametrised layer '{node.target}'")
            width = layer.weight.shape[1]
            if units and width % units:
                raise _unknown(module, f"layer '{node.target}', which does not read the units before it")
            if units:
                reads = (Place(f"{node.target}.weight", 1, width // units),)
                found.append((Hidden(units, tuple(writes), reads, scalable), node.all_input_nodes[0]))
            units, scalable, writes = layer.weight.shape[0], True, own
            axes = axes if kind is nn.Linear else layer.weight.dim()
        elif merges:
            axes = 2
        elif kind in ALIKE:
            scalable = False
            writes = [*writes, *own]
        elif kind not in SCALED:
            raise _unknown(module, f"'{node.target}'")
        before = node
    return traced, found


def _units(value: Tensor, place: Place, units: int) -> Tensor:
    """[n, units, everything else] of a stacked parameter."""
    moved = value.movedim(place.axis + 1, 1)
    return moved.reshape(len(value), units, -1)


def _put(units: Tensor, place: Place, like: Tensor) -> Tensor:
    shape = like.movedim(place.axis + 1, 1).shape
    return units.reshape(shape).movedim(1, place.axis + 1)


def permute(params: Params, hidden: Hidden, order: Tensor) -> Params:
    """The stack [n, ...] with unit order[i, u] of model i in place u. The functions stay what they are."""
    changed = dict(params)
    for place in (*hidden.writes, *hidden.reads):
        units = _units(params[place.name], place, hidden.units)
        changed[place.name] = _put(units.gather(1, order[..., None].expand_as(units)), place, params[place.name])
    return changed


def balance(params: Params, layers: tuple[Hidden, ...]) -> Params:
    """Every scalable unit scaled so that its incoming and outgoing weights have one norm."""
    for hidden in (hidden for hidden in layers if hidden.scalable):
        sizes = [
            torch.cat([_units(params[place.name], place, hidden.units) for place in places], -1).norm(dim=-1)
            for places in (hidden.writes, hidden.reads)
        ]
        factor = (sizes[1].clamp(min=1e-12) / sizes[0].clamp(min=1e-12)).sqrt()
        factor = torch.where((sizes[0] > 1e-12) & (sizes[1] > 1e-12), factor, torch.ones_like(factor))[..., None]
        changed = dict(params)
        for places, power in ((hidden.writes, 1), (hidden.reads, -1)):
            for place in places:
                units = _units(params[place.name], place, hidden.units)
                changed[place.name] = _put(units * factor**power, place, params[place.name])
        params = changed
    return params


def signatures(params: Params, hidden: Hidden, incoming: bool = False, reach: float = 1.0) -> Tensor:
    """[n, units, k] all weights of each unit, or only those that come in, of which the first kind is times `reach`."""
    places = hidden.writes if incoming else (*hidden.writes, *hidden.reads)
    first, *rest = (_units(params[place.name], place, hidden.units) for place in places)
    return torch.cat([reach * first, *rest], -1)


def assign(scores: Tensor) -> Tensor:
    """[n, units] the best order of each model for scores [n, units of the model, units of the target]."""
    best = [linear_sum_assignment(score.T, maximize=True)[1] for score in scores.detach().cpu().numpy()]
    return torch.from_numpy(np.stack(best)).to(scores.device)


def match_weights(
    params: Params, layers: tuple[Hidden, ...], target: Params, reach: Sequence[float] | None = None
) -> Params:
    """Units put where the target's most similar ones are; the target is a stack of n, or of one for all.

    `reach` is one for each layer, 1 where it is not given. Of several layers the first sweep goes by incoming weights
    alone: what comes out is read by units not yet in order.
    """
    for sweep in range(SWEEPS if len(layers) > 1 else 1):
        incoming, moved = len(layers) > 1 and sweep == 0, sweep == 0
        for hidden, far in zip(layers, reach or [1.0] * len(layers), strict=True):
            order = assign(signatures(params, hidden, incoming, far) @ signatures(target, hidden, incoming, far).mT)
            moved = moved or bool((order != torch.arange(hidden.units, device=order.device)).any())
            params = permute(params, hidden, order)
        if not moved:
            break
    return params


def match_activations(params: Params, module: nn.Module, inputs: Tensor, target: Params) -> Params:
    """The same by what units say of the inputs [P, ...]: their correlation with the target's units."""
    layers = symmetries(module)
    for place, hidden in enumerate(layers):
        ours, theirs = (activations(stack, module, inputs)[place] for stack in (params, target))
        params = permute(params, hidden, assign(ours.mT @ theirs))
    return params


def reaches(params: Params, module: nn.Module, inputs: Tensor) -> list[float]:
    """Of each hidden layer, the root mean square of what incoming weights multiply, half of which a unit lets pass."""
    said = [inputs, *_said(params, module, inputs)]
    return [math.sqrt(float(value.double().square().mean()) / 2) for value in said[:-1]]


def activations(params: Params, module: nn.Module, inputs: Tensor) -> list[Tensor]:
    """[n, values, units] of every hidden layer, each unit with mean 0 and norm 1 over the inputs."""
    parts = []
    for hidden, value in zip(symmetries(module), _said(params, module, inputs), strict=True):
        (read,) = hidden.reads
        linear = params[read.name].dim() == 3  # its inputs' last axis is the units', a convolution's the first
        pixels = read.run if linear else value[0, 0, 0].numel()
        units = value.reshape(len(value), -1, hidden.units, pixels).movedim(2, 3).flatten(1, 2)
        centred = units - units.mean(1, keepdim=True)
        parts.append(centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-9))
    return parts


def _said(params: Params, module: nn.Module, inputs: Tensor) -> tuple[Tensor, ...]:
    """What each next layer reads [n, P, ...], of every hidden layer."""
    traced, found = _walk(module)
    if not found:
        return ()
    output = next(node for node in traced.graph.nodes if node.op == "output")
    output.args = (tuple(node for _, node in found),)
    traced.recompile()
    said: tuple[Tensor, ...] = torch.func.vmap(lambda one: torch.func.functional_call(traced, one, (inputs,)))(params)
    return said


def align(
    params: Params,
    layers: tuple[Hidden, ...],
    reference: int | None,
    predict: Callable[[Params], Params] | None = None,
    rounds: int = 10,
    reach: Sequence[float] | None = None,
) -> Params:
    """To the reference, if one is named, then `rounds` times to what `predict` says of each model from the others."""
    if reference is not None:
        params = match_weights(params, layers, {name: value[reference, None] for name, value in params.items()}, reach)
    for _ in range(rounds if predict else 0):
        assert predict is not None
        before = params
        params = match_weights(params, layers, predict(params), reach)
        if all(torch.equal(before[name], params[name]) for name in params):
            break
    return params
