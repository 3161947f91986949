"""What draws of a network's parameters say together of some rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from warmstart.core import Likelihood, Model, Params, Prediction, Tree


def predictive(
    model: Model, likelihood: Likelihood, draws: Params, x: Tree, noise: float | Tensor = 0.5**0.5
) -> Prediction:
    """The mixture over draws, which lead with a sample axis: mean, variance with the noise of a row, draws' own means.

    Class probabilities are averaged; they need no variance.
    """
    each: Tensor = vmap(lambda params: likelihood.mean(model.apply(params, x)))(draws)  # [s, n] or [s, n, classes]
    mean = each.mean(0)
    if likelihood.name == "multiclass":
        return Prediction(mean, (), each)
    if likelihood.name == "binary":
        return Prediction(mean, mean * (1 - mean), each)
    spread = ((each - mean) ** 2).mean(0)
    scale = torch.as_tensor(noise, dtype=mean.dtype, device=mean.device)
    return Prediction(mean, spread + scale**2, each)
