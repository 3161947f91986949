"""A few rows of the new task: the generated function is conditioned on them, as far as the pool shows that it helps.

What the pool's models say less what was made of their tasks without them, e_i, is how generated functions err. With

    C(x, x') = (1 - share) mean_i e_i(x) e_i(x') + share phi(x) B phi(x')'      phi: features of the generated model
    delta(X) = C(X, x) (C(x, x) + noise)^-1 (y - f(x))

the correction delta goes into the last layer by least squares. `share` and `noise` are those that would have served
the models of the pool best, had each been asked at the very same inputs and corrected by the errors of the others; a
choice that makes more than `harm` of them worse by 5 % is not taken, and where every choice does the model stays.
The share of those made worse has to be below `harm` by `sure` of its standard errors, so that chance in a small pool
does not pass for safety.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params
from warmstart.core.trees import take, tree_map
from warmstart.fusion.network import Network, head_params, run_features, run_models
from warmstart.maths.gp import spread_out

WORSE = 1.05  # times the error before


@dataclass(frozen=True)
class Config:
    shares: tuple[float, ...] = (0.05, 0.3)
    noises: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # of the mean variance at the rows
    harm: float = 0.05
    sure: float = 1.645  # standard errors that are added to the share of those made worse
    ridge: float = 1e-5
    models: int = 300  # of the pool, that the choice is made on
    points: int = 64  # of the inputs, likewise


class Errors(NamedTuple):
    """Functions of the pool and what was made of their tasks without them."""

    params: Params  # [n, ...]
    held_out: Params  # [n, ...]
    size: Tensor  # [n] range of each function
    spread: Tensor  # [n] how unsure the process was of each
    inputs: Tensor  # [P, ...]
    values: Tensor  # [n, P, outputs] what the models say of the inputs less what the held-out ones do


class Adapted(NamedTuple):
    params: Params  # of one model
    left: Tensor  # [n, points, outputs] what the same correction would have left of the pool's errors
    share: float
    noise: float  # infinite: the model stayed as it was


def some_errors(
    network: Network,
    params: Params,
    held_out: Params,
    spread: Tensor,
    descriptor: Tensor,
    inputs: Tensor,
    cfg: Config = Config(),
) -> Errors:
    """Of at most `models` models whose descriptors [n, p] are far apart."""
    few = len(descriptor) <= cfg.models
    kept = torch.arange(len(descriptor)) if few else spread_out(descriptor, cfg.models)
    params, held_out = take(params, kept), take(held_out, kept)
    said = run_models(network, params, inputs)
    size = (said.flatten(1).amax(1) - said.flatten(1).amin(1)).clamp(min=1e-12)
    return Errors(params, held_out, size, spread[kept], inputs, said - run_models(network, held_out, inputs))


def adapt(network: Network, cfg: Config, errors: Errors, params: Params, x: Tensor, y: Tensor) -> Adapted:
    """One generated model, conditioned on rows x [k, ...] with outputs y [k, o]."""
    points, outputs = errors.values.shape[1:]
    n, k = len(errors.size), y.numel()
    asked = run_models(network, errors.params, x) - run_models(network, errors.held_out, x)
    relative = (torch.cat([errors.values, asked], 1) / errors.size[:, None, None]).reshape(n, -1)  # the rows last
    one = tree_map(lambda value: value[None], params)
    phi = run_features(network, one, torch.cat([errors.inputs.to(x), x]))[0]
    gap = (y.double().reshape(-1, outputs) - run_models(network, one, x)[0]).flatten()
    mean, own = relative.mT @ relative[:, -k:] / n, _own_kernel(phi, points, outputs, relative)
    columns = torch.arange(points * outputs).reshape(points, -1)[:: -(-points // cfg.points)].flatten()
    some = torch.cat([columns, torch.arange(points * outputs, relative.shape[1])])
    before = relative[:, columns].square().mean(1).sqrt()
    best, chosen, left = float(before.mean()), None, relative[:, columns]
    for share, noise in [(share, noise) for share in cfg.shares for noise in cfg.noises]:
        rest = (relative[:, some] - _left_out(relative[:, some], mean[some], own[some], share, noise, k))[:, :-k]
        after = rest.square().mean(1).sqrt()
        worse = float((after > WORSE * before).double().mean())
        harmed = worse + cfg.sure * math.sqrt(worse * (1 - worse) / n)
        if float(after.mean()) < best and harmed <= cfg.harm:
            best, chosen, left = float(after.mean()), (share, noise), rest
    left = left.reshape(n, -1, outputs) * errors.size[:, None, None]
    if chosen is None:
        return Adapted(params, left, 0.0, float("inf"))
    share, noise = chosen
    covariance = (1 - share) * mean + share * own
    delta = covariance @ _solve(covariance[-k:], noise, gap)
    return Adapted(_correct(network, cfg, params, phi, delta.reshape(-1, outputs)), left, share, noise)


def _own_kernel(phi: Tensor, points: int, outputs: int, relative: Tensor) -> Tensor:
    """[m * o, k] functions of the generated model's last layer, as large on the inputs as the errors are."""
    seen = phi[:points]
    gram = seen.mT @ seen / points
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    kernel = phi @ torch.linalg.solve(gram + 0.01 * gram.diagonal().mean() * eye, phi[points:].mT)
    level = (seen * torch.linalg.solve(gram + 0.01 * gram.diagonal().mean() * eye, seen.mT).mT).sum(-1).mean()
    kernel = kernel * relative[:, : points * outputs].square().mean() / level
    # outputs are corrected apart from each other
    return torch.kron(kernel, torch.eye(outputs, dtype=kernel.dtype, device=kernel.device))


def _solve(square: Tensor, noise: float, right: Tensor) -> Tensor:
    level = square.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    eye = torch.eye(square.shape[-1], dtype=square.dtype, device=square.device)
    found: Tensor = torch.linalg.solve(square + (noise + 1e-9) * level.clamp(min=1e-30) * eye, right)
    return found


def _left_out(relative: Tensor, mean: Tensor, own: Tensor, share: float, noise: float, k: int) -> Tensor:
    """[n, m * o] the correction of each model by the errors of the others, asked at the same rows."""
    n, asked = len(relative), relative[:, -k:]
    rows = ((1 - share) / (n - 1)) * (n * mean[-k:] - asked[:, :, None] * asked[:, None]) + share * own[-k:]
    weights = _solve(rows, noise, asked[..., None]).squeeze(-1)  # [n, k]
    others = (n * weights @ mean.mT - relative * (asked * weights).sum(1, keepdim=True)) / (n - 1)
    return (1 - share) * others + share * weights @ own.mT


def _correct(network: Network, cfg: Config, params: Params, phi: Tensor, delta: Tensor) -> Params:
    """The model with `delta` [m, o] added to its function, as well as its last layer can."""
    gram = phi.mT @ phi / len(phi)
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    change = torch.linalg.solve(gram + cfg.ridge * gram.diagonal().mean() * eye, phi.mT @ delta / len(phi)).mT
    return params | {
        name: params[name] + value.to(params[name]) for name, value in head_params(network, change).items()
    }


def fine_tune(network: Network, params: Params, x: Tensor, y: Tensor, steps: int = 20, lr: float = 1e-3) -> Params:
    """Plain gradient steps on the rows, of a stack of models [q, ...] with rows x [q, k, ...] and y [q, k, o]."""

    def loss(one: Params, rows: Tensor, wanted: Tensor) -> Tensor:
        return (network.apply(one, rows) - wanted).square().mean()

    gradient = torch.func.vmap(torch.func.grad(loss))
    for _ in range(steps):
        grads = gradient(params, x, y)
        params = {name: value - lr * grads[name] for name, value in params.items()}
    return params
