"""The inference of learners that do not differentiate it, by name: gradient steps, or those of Gauss and Newton."""

from __future__ import annotations

from typing import Protocol

from warmstart.core import Likelihood, Model
from warmstart.maths.expectation import expectation
from warmstart.maths.newton import linearised, newton
from warmstart.maths.optim import named
from warmstart.maths.prior import Prior, learned_prior
from warmstart.maths.variational import Inference, inference


class Settings(Protocol):
    """What is asked of a configuration."""

    @property
    def inner(self) -> str: ...  # sgd, momentum, adam or newton
    @property
    def inner_lr(self) -> float: ...
    @property
    def estimator(self) -> str: ...
    @property
    def kl_weight(self) -> float: ...
    @property
    def noise(self) -> float: ...


def inferred(model: Model, likelihood: Likelihood, cfg: Settings, per_row: bool = False) -> tuple[Inference, Prior]:
    """Inference on one task, and what a learner of such a prior takes from it."""
    if cfg.inner == "newton":
        infer = newton(model, likelihood, cfg.noise, cfg.kl_weight)
        common = learned_prior(model, likelihood, infer, rate=1.0, noise=cfg.noise, unrolled=False)
        return infer, linearised(common, model, likelihood, cfg.noise, cfg.kl_weight)
    expected = expectation(model, likelihood, cfg.noise, cfg.estimator)
    infer = inference(expected, named(cfg.inner), cfg.kl_weight, per_row)
    return infer, learned_prior(model, likelihood, infer, rate=cfg.inner_lr, noise=cfg.noise, unrolled=False)
