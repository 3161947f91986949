"""Losses of rows: squared, binary and multi-class, each with mean, curvature and samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from warmstart.core import Likelihood


def _squared(out: Tensor, y: Tensor) -> Tensor:
    return (out.squeeze(-1) - y) ** 2


def _binary(out: Tensor, y: Tensor) -> Tensor:
    logit = out.squeeze(-1)
    return F.softplus(logit) - y * logit


def _multiclass(out: Tensor, y: Tensor) -> Tensor:
    # a gather, because F.one_hot and cross_entropy's target checks fail under vmap on a CPU
    return -F.log_softmax(out, -1).gather(-1, y.long().unsqueeze(-1)).squeeze(-1)


def _binary_curvature(out: Tensor) -> Tensor:
    p = torch.sigmoid(out)
    return (p * (1 - p)).unsqueeze(-1)


def _multiclass_curvature(out: Tensor) -> Tensor:
    p = torch.softmax(out, -1)
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


# y = f + e with e ~ N(0, 1/2): the loss (f - y)^2 is its negative log likelihood up to a constant
squared = Likelihood(
    name="squared",
    loss=_squared,
    mean=lambda out: out.squeeze(-1),
    curvature=lambda out: torch.full_like(out, 2.0).unsqueeze(-1),
    sample=lambda out, noise: (out + noise * 0.5**0.5).squeeze(-1),
)

binary = Likelihood(
    name="binary",
    loss=_binary,
    mean=lambda out: torch.sigmoid(out.squeeze(-1)),
    curvature=_binary_curvature,
    # a standard normal is below its own quantile of p with probability p
    sample=lambda out, noise: (torch.special.ndtr(noise) < torch.sigmoid(out)).to(out.dtype).squeeze(-1),
)


def weighed_binary(missed: float, clicked: float) -> Likelihood:
    """Binary, a row's loss times twice the weight of its class; halves are `binary` itself.

    Unlike weights of rows, which say what share of a task each row is, these stand beside the loss: a task of one row
    feels them too, and they move every logit by log(clicked / missed).
    """
    if missed == clicked:
        return binary

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return 2 * (missed + (clicked - missed) * y) * _binary(out, y)

    def curvature(out: Tensor) -> Tensor:
        """Expected of labels as often one as the model says."""
        p = torch.sigmoid(out).unsqueeze(-1)
        return 2 * (p * clicked + (1 - p) * missed) * _binary_curvature(out)

    return binary._replace(loss=loss, curvature=curvature)


multiclass = Likelihood(
    name="multiclass",
    loss=_multiclass,
    mean=lambda out: torch.softmax(out, -1),
    curvature=_multiclass_curvature,
    # Gumbel-max with Gumbels made from the normals
    sample=lambda out, noise: (out - torch.log(-torch.special.log_ndtr(noise))).argmax(-1),
)
