"""The forms that the precision of Laplace's approximation can take, by name."""

from __future__ import annotations

from warmstart.core import InputError, Likelihood, Model
from warmstart.maths.curvature import Precision, diagonal, full, gauss_newton_root
from warmstart.maths.kronecker import kronecker


def precision(
    kind: str, model: Model, likelihood: Likelihood, prior: float, noise: float = 0.5**0.5, rank: int = 100
) -> Precision:
    """The form of that name, for configurations that are written down as text."""
    if not 0 < prior < float("inf"):
        raise InputError("a prior precision above 0", f"{prior}", "without it the curvature may have no inverse")
    match kind:
        case "full":
            return full(gauss_newton_root(model, likelihood, noise), prior, rank)
        case "diagonal":
            return diagonal(gauss_newton_root(model, likelihood, noise), prior)
        case "kronecker":
            return kronecker(model, likelihood, prior, noise)
    raise InputError("a curvature full, diagonal or kronecker", repr(kind), "use one of these names")
