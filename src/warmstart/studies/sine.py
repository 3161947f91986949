"""Sine regression (gradient-em, section 5.1; Finn et al., 2017, section 5.1).

y = A sin(x - b); 5 or 10 points of an unseen sine are shown, the error on fresh points is measured
after 0, 1, 5 and 10 gradient steps. Reference, 5 points: MAML 0.67 / 0.38 / 0.35 after 1 / 5 / 10
steps, joint pre-training 2.41 / 2.23 / 2.19.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from warmstart.core import Learner, Task, functional
from warmstart.core.trees import take, to_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.noise import generator
from warmstart.engine.stage import TRACED, Stage
from warmstart.learners import empirical_bayes, imaml, maml, meta_sgd, pretrain, reptile, scratch
from warmstart.maths.optim import named
from warmstart.metrics.errors import squared_error
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP, seeded
from warmstart.report import Row, make_row
from warmstart.tasks import sine
from warmstart.training.sources import from_family
from warmstart.training.train import Plan, train

STEPS = (0, 1, 5, 10)
SHOTS = (5, 10)
TEST_SEED = 20_000  # no training draw uses it
