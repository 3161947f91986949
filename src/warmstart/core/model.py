"""Networks and losses as pure functions.

A user's `nn.Module` becomes a `Model`; which parameters a task may adapt (*fast*) and which
all tasks share (*slow*) is decided by parameter name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from warmstart.core.errors import InputError
from warmstart.core.task import Batch
from warmstart.core.trees import Params, Tree, leaves


def _itself(params: Params, x: Tree) -> Tree:
    return x


def _nothing(params: Params, descriptor: Tree) -> Tensor:
    """Of a model that does not describe tasks."""
    numbers = [leaf for leaf in leaves(descriptor) if leaf.is_floating_point()]
    return numbers[0][..., :0] if numbers else next(iter(params.values())).new_zeros(0)


class Model(NamedTuple):
    """A network as functions of its parameters."""

    apply: Callable[[Params, Tree], Tensor]  # parameters, x [n, ...] -> outputs [n, out]
    features: Callable[[Params, Tree], Tensor]  # parameters, x -> what the last layer sees [n, d]
    params: Params  # as the module had them when it was handed over
    fast: frozenset[str]  # names of the parameters that a task adapts
    # apply is decide after encode, and encode uses slow parameters only: a stack of tasks is encoded at once
    encode: Callable[[Params, Tree], Tree] = _itself
    decide: Callable[[Params, Tree], Tensor] | None = None  # None: apply, since encode leaves rows as they are
    describe: Callable[[Params, Tree], Tensor] = _nothing  # slow parameters, descriptor [*t, ...] -> [*t, width]
    width: int = 0  # of what describe gives
    top: Callable[[Params, Tensor], Tensor] | None = None  # of `head.*` alone: apply is top after features

    def split(self, params: Params) -> tuple[Params, Params]:
        """The fast and the slow parameters."""
        fast = {name: value for name, value in params.items() if name in self.fast}
        return fast, {name: value for name, value in params.items() if name not in self.fast}


class Likelihood(NamedTuple):
    """How outputs are judged against targets."""

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]  # outputs [n, out], y [n] -> loss of each row [n]
    mean: Callable[[Tensor], Tensor]  # outputs -> mean [n], or probabilities [n, classes]
    curvature: Callable[[Tensor], Tensor]  # outputs -> second derivative of a row's loss, [n, out, out]
    sample: Callable[[Tensor, Tensor], Tensor]  # outputs, noise like outputs -> a draw of y [n]


class _Method(nn.Module):
    """A module whose forward is one method of another, so that functional_call can reach it."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module, self.method = module, method

    def forward(self, x: Tree) -> Any:
        return getattr(self.module, self.method)(x)


def functional(module: nn.Module, fast: str | Sequence[str] = "*") -> Model:
    """`nn.Module` -> pure functions. `fast` holds name patterns: `"head.*"` adapts the head only.

    A module may offer `encode(x)`, of parameters `encoder.*`, and `decide(encoded)`: where no `encoder.*` is fast,
    learners that can encode a stack of tasks at once. It may offer `describe(descriptor)` and its width `described`.
    Where its forward is `top(features(x))`, top of parameters `head.*` and all of these fast, some run the rest once.

    >>> functional(nn.Linear(2, 1), fast="bias").fast
    frozenset({'bias'})
    """
    _check_mode(module)
    patterns = [fast] if isinstance(fast, str) else list(fast)
    params = {name: value.detach().clone() for name, value in module.named_parameters()}
    buffers = {name: value.detach().clone() for name, value in module.named_buffers()}
    chosen = frozenset(name for name in params if any(fnmatch(name, pattern) for pattern in patterns))
    if not chosen:
        raise InputError(
            f"a parameter named like {' or '.join(patterns)}", ", ".join(params) or "no parameters", "name one of them"
        )
    skeleton = module

    def whole(params: Params) -> Params:
        """With the buffers, which follow the parameters to their device."""
        given = next(iter(params.values()), None)
        return {**params, **(buffers if given is None else {name: b.to(given.device) for name, b in buffers.items()})}

    def apply(params: Params, x: Tree) -> Tensor:
        out: Tensor = torch.func.functional_call(skeleton, whole(params), (x,))
        return out

    def features(params: Params, x: Tree) -> Tensor:
        if not hasattr(module, "features"):
            raise InputError(
                "a module with a method `features`", type(module).__name__, "add features(x), what the last layer sees"
            )
        out: Tensor = seen(params, x)
        return out

    def method(name: str) -> Callable[[Params, Tree], Any]:
        reach = _Method(module, name)
        return lambda params, x: torch.func.functional_call(
            reach, {f"module.{key}": value for key, value in whole(params).items()}, (x,)
        )

    seen = method("features")
    model = Model(apply, features, params, chosen)
    apart = all(hasattr(module, name) for name in ("encoder", "encode", "decide"))
    if apart and not any(name.startswith("encoder.") for name in chosen):
        model = model._replace(encode=method("encode"), decide=method("decide"))
    if hasattr(module, "features") and _owner(module, "top") is _owner(module, "forward") is not None:
        model = model._replace(top=method("top"))
    if hasattr(module, "describe"):
        width: Any = module.described
        model = model._replace(describe=method("describe"), width=width)
    return model


def _owner(module: nn.Module, method: str) -> type | None:
    """The class that defines it: who overrides `forward` but not `top` does not mean the latter."""
    return next((kind for kind in type(module).__mro__ if method in vars(kind)), None)


def mean_loss(rows: Tensor, batch: Batch) -> Tensor:
    """sum w l / sum w over the real rows; 0 when there are none."""
    weight = batch.w * batch.mask
    total = weight.sum(-1, keepdim=True)
    share = weight / torch.where(total > 0, total, 1.0)
    return (rows * share).sum(-1)


def task_loss(model: Model, likelihood: Likelihood) -> Callable[[Params, Batch], Tensor]:
    """The average loss of a task's rows as a function of the parameters."""

    def loss(params: Params, batch: Batch) -> Tensor:
        return mean_loss(likelihood.loss(model.apply(params, batch.x), batch.y), batch)

    return loss


def task_log_likelihood(
    model: Model, likelihood: Likelihood, noise: float | Tensor = 0.5**0.5
) -> Callable[[Params, Batch], Tensor]:
    """sum w log p(y | x, params) over a task's real rows: what Bayesian methods take, where others average.

    `noise` is the standard deviation of a squared likelihood's rows; the others have none.
    """
    if not isinstance(noise, Tensor) and not noise > 0:
        raise InputError("a noise above 0", f"{noise}", "raise it")

    def total(params: Params, batch: Batch) -> Tensor:
        rows = -likelihood.loss(model.apply(params, batch.x), batch.y)
        if likelihood.name == "squared":
            log = torch.log(noise) if isinstance(noise, Tensor) else math.log(noise)
            rows = rows / (2 * noise**2) - log - 0.5 * math.log(2 * math.pi)
        return (rows * batch.w * batch.mask).sum(-1)

    return total


def _check_mode(module: nn.Module) -> None:
    """A pure function neither draws nor remembers what it has seen."""
    for name, part in module.named_modules():
        draws = isinstance(part, _DropoutNd) and part.p > 0
        remembers = isinstance(part, _NormBase) and part.track_running_stats
        if part.training and (draws or remembers):
            got = f"{type(part).__name__}{f' {name}' * bool(name)} in training mode"
            remedy = "call eval() on the module, or use GroupNorm or LayerNorm"
            raise InputError("layers that do the same in training and after it", got, remedy)
