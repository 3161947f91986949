"""Which state of a training on pictures is kept."""

import numpy as np
import pytest
import torch

from warmstart.core.trees import tree_map
from warmstart.engine.loop import silent
from warmstart.estimators import picture_fitting
from warmstart.estimators.picture_fitting import fit_method, problem_for, split_for
from warmstart.estimators.picture_methods import find
from warmstart.tasks.images import make_images
from warmstart.training.train import Plan, Trained

PLAN = Plan(steps=2, tasks=2, query=2, every=1)


@pytest.fixture
def problem():
    """Classes are greys, which a network tells apart before any training."""
    draw = np.random.default_rng(0)
    grey = np.repeat(np.linspace(0, 230, 14), 6)[:, None, None]
    pixels = torch.from_numpy((grey + draw.integers(0, 10, (84, 12, 12))).astype(np.uint8))[:, None]
    images = make_images(pixels, torch.full((14,), 6), tuple(f"grey {k}" for k in range(14)))
    return problem_for(images, split_for(images, 3, 0), 3, 1, False, False, torch.device("cpu"))


@pytest.mark.parametrize("good", ["best", "last"])
def test_the_luckiest_look_must_beat_the_last_state_on_other_tasks(problem, monkeypatch, good):
    """Whichever of the two tells classes apart is kept, with its own loss; a network of zeros does not."""
    states = {}

    def train(learner, state, source, plan, look, **_):
        blank = state._replace(theta=tree_map(torch.zeros_like, state.theta))
        states.update(best=state, last=blank) if good == "best" else states.update(best=blank, last=state)
        return Trained(states["best"], 0.0, 1, states["last"])

    monkeypatch.setattr(picture_fitting, "train", train)
    cfg = find("protonet", problem.design).config
    found = fit_method("protonet", cfg, problem, PLAN, 0, None, silent)
    assert found.theta is states[good].theta and found.value < 0.9 < np.log(3)
