"""fit, adapt, predict: the shells that users call."""

from warmstart.estimators.adapted import AdaptedModel
from warmstart.estimators.meta_learner import MetaLearner

__all__ = ["AdaptedModel", "MetaLearner"]
