"""The rows of study bayes_sine: each learner with where its search begins and what it may try.

Beginnings are the papers' settings, or what short exploratory runs on validation tasks of the challenging family
had found where the papers give none; that of `gem_head` was found by long ones on both families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Learner, Prediction, Task
from warmstart.learners import (
    abml,
    bmaml,
    empirical_bayes,
    gem,
    gem_head,
    imaml,
    kl_chaser,
    llama,
    maml,
    meta_sgd,
    pmaml,
    pretrain,
    reptile,
    scratch,
)
from warmstart.studies.sines import conditioned

GP, ZERO = "Gaussian process on the support", "predict 0"
CONDITIONED = ("empirical_bayes", "gem_head")  # in one step; a second would count the rows twice

Space = Mapping[str, Sequence[Any]]


class Entry(NamedTuple):
    build: Callable[..., Learner]
    config: Any  # the first trial
    space: Space
    fast: str = "*"


OUTER: Space = {"outer_lr": [3e-4, 1e-3, 3e-3]}
DESCENT: Space = {"inner_lr": [0.003, 0.01, 0.03, 0.1], "inner_steps": [1, 3, 5, 10], **OUTER}
# Of a Gaussian prior, whose rows are summed: ten rows of noise 1 make a rate five times that of a mean loss. The pull
# of the prior on a mean is inner_lr kl_weight / sd^2 a step, and beyond 2 it overshoots. A prior as wide as weights
# usually are drowns the signal in its own draws, so it starts narrow and is widened where tasks differ.
PRIOR: Space = {
    "inner_lr": [2e-3, 4e-3, 8e-3],
    "inner_steps": [3, 5, 10],
    "kl_weight": [1e-3, 2.5e-3, 0.01],
    "noise": [0.7, 1.0],
    "sd": [0.005, 0.01, 0.02],
    "outer_lr": [1e-3, 3e-3],
}
BEGIN: dict[str, Any] = {
    "inner_lr": 4e-3,
    "inner_steps": 5,
    "kl_weight": 2.5e-3,
    "noise": 1.0,
    "sd": 0.005,
    "outer_lr": 3e-3,
}

ENTRIES = {
    "scratch": Entry(
        scratch.build, scratch.Config(), {"inner_lr": [0.003, 0.01, 0.03, 0.1], "inner": ["sgd", "adam", "momentum"]}
    ),
    "pretrain": Entry(pretrain.build, pretrain.Config(), {"inner_lr": [0.003, 0.01, 0.03, 0.1], **OUTER}),
    "maml": Entry(maml.build, maml.Config(inner_lr=0.03, inner_steps=5, outer_lr=3e-3), DESCENT),
    "fomaml": Entry(maml.build, maml.Config(inner_lr=0.03, inner_steps=5, first_order=True, outer_lr=3e-3), DESCENT),
    "anil": Entry(maml.build, maml.Config(inner_lr=0.03, inner_steps=5, outer_lr=3e-3), DESCENT, "head.*"),
    "reptile": Entry(
        reptile.build,
        reptile.Config(inner_lr=0.01, inner_steps=10, outer_lr=0.3),
        {
            "inner_lr": [0.003, 0.01, 0.03],
            "inner_steps": [3, 5, 10, 20],
            "inner": ["sgd", "adam"],
            "outer_lr": [0.1, 0.3, 1.0],
        },
    ),
    "imaml": Entry(
        imaml.build,
        imaml.Config(halvings=5),
        {"inner_lr": [0.003, 0.01, 0.03], "inner_steps": [8, 16], "prox": [0.3, 1.0, 2.0], **OUTER},
    ),
    "meta_sgd": Entry(
        meta_sgd.build,
        meta_sgd.Config(inner_steps=10, outer_lr=3e-3),
        {"inner_lr": [0.003, 0.01, 0.03], "inner_steps": [1, 2, 3, 5, 10], **OUTER},
    ),
    "empirical_bayes": Entry(
        conditioned,
        empirical_bayes.Config(components=1, rank=8, weight_decay=0.0, outer_lr=1e-3),
        {"components": [1, 4, 8], "rank": [0, 8, 16], "weight_decay": [0.0, 0.1], "outer_lr": [1e-3, 3e-3]},
    ),
    "gem_head": Entry(
        gem_head.build,
        gem_head.Config(objective="all", rank=16, noise=0.1, dof=10.0, outer_lr=1.5e-3, outer_b2=0.99),
        {
            "objective": ["each", "query", "all"],
            "rank": [0, 8, 16],
            "dof": [0.0, 10.0],
            "outer_b2": [0.99, 0.999],
            "spread": [1.0, 3.0],
            "noise": [0.03, 0.1, 0.3],
            "weight_decay": [0.0, 0.1],
            "outer_lr": [1e-3, 3e-3, 0.01],
        },
    ),
    "llama": Entry(
        llama.build,
        llama.Config(inner_lr=0.03, inner_steps=5, eta=0.1, outer_lr=3e-3),
        {**DESCENT, "eta": [0.0, 0.1, 0.5], "prior_precision": [100.0, 1000.0], "noise": [0.3, 0.5, 1.0]},
    ),
    "bmaml": Entry(
        bmaml.build,
        bmaml.Config(),
        {
            "particles": [5, 10],
            "inner_lr": [0.001, 0.003, 0.01],
            "inner_steps": [1, 3, 5],
            "leader_steps": [1, 3, 5],
            "weight_precision": [0.0, 0.01],
            "noise": [0.7, 1.0],
            "loss": ["chaser", "query"],
            **OUTER,
        },
    ),
    "abml": Entry(abml.build, abml.Config(**BEGIN), {**PRIOR, "objective": ["query", "both", "all"]}),
    "pmaml": Entry(pmaml.build, pmaml.Config(**BEGIN), PRIOR),
    "platipus": Entry(pmaml.build, pmaml.Config(algorithm="platipus", **BEGIN), PRIOR),
    "kl_chaser": Entry(kl_chaser.build, kl_chaser.Config(**BEGIN), {**PRIOR, "leader_steps": [1, 5, 10]}),
    "gem_bml": Entry(gem.build, gem.Config(plus=False, **BEGIN), PRIOR),
    "gem_bml_plus": Entry(
        gem.build,
        gem.Config(inner="newton", joint=True, inner_steps=3, noise=0.05, sd=3e-3, head_sd=0.3, outer_lr=3e-3),
        {
            "inner_steps": [2, 3],
            "noise": [0.03, 0.05, 0.1],
            "sd": [1e-3, 3e-3, 0.01],
            "head_sd": [0.1, 0.3, 1.0],
            "outer_lr": [1e-3, 3e-3, 0.01],
        },
    ),
    "gem_bml_plus, sgd": Entry(gem.build, gem.Config(**BEGIN), {**PRIOR, "joint": [False, True]}),
    # as in appendix C.4, where the negative log likelihood is the squared error; nothing is tuned
    "maml, paper": Entry(maml.build, maml.Config(inner_lr=1e-3), {}),
    "reptile, paper": Entry(reptile.build, reptile.Config(inner_lr=1e-3, inner_steps=1, inner="sgd"), {}),
    "gem_bml_plus, paper": Entry(gem.build, gem.Config(inner_lr=1e-3, inner_steps=1, noise=0.5**0.5), {}),
}


@dataclass(frozen=True)
class Smoother:
    """A Gaussian process with a squared-exponential kernel."""

    length: float = 1.0
    amplitude: float = 3.0
    noise: float = 0.1

    SPACE: ClassVar[Space] = {
        "length": [0.5, 0.7, 1.0, 1.4, 2.0],
        "amplitude": [1.0, 2.0, 3.0, 5.0],
        "noise": [0.01, 0.03, 0.1, 0.3],
    }


def smooth(cfg: Smoother, task: Task) -> Prediction:
    """What the process says of the query rows given the support rows, task by task."""
    support, query = task.support.x.squeeze(-1).double(), task.query.x.squeeze(-1).double()

    def near(a: Tensor, b: Tensor) -> Tensor:
        return cfg.amplitude**2 * torch.exp(-0.5 * ((a.unsqueeze(-1) - b.unsqueeze(-2)) / cfg.length) ** 2)

    system = near(support, support) + cfg.noise**2 * torch.eye(support.shape[-1], device=support.device)
    across = near(query, support)
    weights: Tensor = torch.linalg.solve(system, torch.cat([task.support.y.double()[..., None], across.mT], -1))
    mean = (across @ weights[..., :1]).squeeze(-1)
    variance = cfg.amplitude**2 + cfg.noise**2 - (across * weights[..., 1:].mT).sum(-1)
    return Prediction(mean.float(), variance.clamp(min=cfg.noise**2).float())
