"""The vocabulary: tasks, learners, trees, models as functions, and the one user error. torch only."""

from warmstart.core.columns import Columns
from warmstart.core.errors import InputError, check_names
from warmstart.core.learner import Learner, Noise, Prediction, adapt, keep
from warmstart.core.model import Likelihood, Model, functional, mean_loss, task_log_likelihood, task_loss
from warmstart.core.task import Batch, Task, make_batch, make_task
from warmstart.core.trees import Params, Tree

__all__ = [
    "Batch",
    "Columns",
    "InputError",
    "Learner",
    "Likelihood",
    "Model",
    "Noise",
    "Params",
    "Prediction",
    "Task",
    "Tree",
    "adapt",
    "check_names",
    "functional",
    "keep",
    "make_batch",
    "make_task",
    "mean_loss",
    "task_log_likelihood",
    "task_loss",
]
