"""fit, adapt, predict: the shells that users call."""

from warmstart.estimators.adapted import AdaptedModel
from warmstart.estimators.adapted_users import AdaptedUsers
from warmstart.estimators.meta_learner import MetaLearner
from warmstart.estimators.model_fusion import ModelFusion
from warmstart.estimators.picture_learner import PictureLearner
from warmstart.estimators.picture_model import AdaptedPictures
from warmstart.estimators.preference_learner import PreferenceLearner

__all__ = [
    "AdaptedModel",
    "AdaptedPictures",
    "AdaptedUsers",
    "MetaLearner",
    "ModelFusion",
    "PictureLearner",
    "PreferenceLearner",
]
