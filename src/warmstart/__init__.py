"""warmstart: a good model from the first few samples, and how sure it is."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warmstart.estimators.adapted import AdaptedModel
    from warmstart.estimators.meta_learner import MetaLearner

__version__ = "0.1.0"
__all__ = ["AdaptedModel", "MetaLearner", "__version__"]


def __getattr__(name: str) -> Any:
    """The estimators on first use: `warmstart --help` must not wait for torch."""
    if name == "MetaLearner":
        from warmstart.estimators.meta_learner import MetaLearner

        return MetaLearner
    if name == "AdaptedModel":
        from warmstart.estimators.adapted import AdaptedModel

        return AdaptedModel
    raise AttributeError(f"module 'warmstart' has no attribute {name!r}")
