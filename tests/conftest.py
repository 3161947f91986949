"""Every test starts from the same settings: one thread, the default dtype, fixed seeds."""

import os
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import settings

from warmstart.engine.stage import PLAIN
from warmstart.tasks.ratings import make_ratings

settings.register_profile("house", deadline=None, derandomize=True, database=None, max_examples=30)
settings.load_profile("house")

torch.set_num_threads(1)
BY_METHOD = ("learners/test_conformance.py", "estimators/test_meta_learner.py")
TOGETHER = (
    "cli/test_pictures.py",
    "estimators/test_picture_evaluation.py",
    "estimators/test_pictures.py",
    "estimators/test_preference_folders.py",
    "studies/test_few_shot.py",
)


def pytest_collection_modifyitems(items):
    """What is built once for a method or a module is built by one worker."""
    for item in items:
        params, place = getattr(item, "callspec", None), item.path.as_posix()
        if place.endswith(BY_METHOD) and params is not None:
            item.add_marker(pytest.mark.xdist_group(params.id.split("-")[0]))
        if place.endswith(TOGETHER):
            item.add_marker(pytest.mark.xdist_group(place))


@pytest.fixture(autouse=True)
def fresh_settings():
    kept = torch.get_default_dtype()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(kept)


@pytest.fixture
def float64(fresh_settings):
    """Double precision for one test; `fresh_settings` takes it back."""
    torch.set_default_dtype(torch.float64)


@pytest.fixture(scope="module")
def few_looks():
    """Models of pictures stop by a few validation tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warmstart.estimators.picture_fitting.VALIDATION_TASKS", 5)
        yield


@pytest.fixture
def plain_pictures(monkeypatch):
    """Trainings of a few updates are over before their programs would be recorded."""
    monkeypatch.setattr("warmstart.estimators.picture_fitting.TRACED", PLAIN)
    for module in ("picture_fitting", "picture_comparison"):
        monkeypatch.setattr(f"warmstart.estimators.{module}.fastest_stage", lambda *_: PLAIN)


@pytest.fixture
def plain_preferences(monkeypatch):
    """The same for networks of preferences."""
    monkeypatch.setattr("warmstart.training.preferences.TRACED", PLAIN)


@pytest.fixture(scope="session")
def shared_data():
    """The folder of public datasets: WARMSTART_DATA, or shared/data beside the repository."""
    folder = Path(os.environ.get("WARMSTART_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no public datasets in {folder}; set WARMSTART_DATA")
    return folder


def simulate_ratings(users=240, items=60, seed=0, changed=()):
    """Ratings from two factors, profiles that tell of the first and content that tells of the second.

    The users named in `changed` give other ratings to other items, as many as before.
    """
    draw = np.random.default_rng(seed)
    factor, taste = draw.normal(size=(items, 2)), draw.normal(size=(users, 2))
    rows = []
    for user in range(users):
        chance = np.exp(0.5 * factor @ taste[user])
        chosen = draw.choice(items, draw.integers(8, 30), replace=False, p=chance / chance.sum())
        noise = 0.4 * draw.normal(size=len(chosen))
        value = np.clip(3 + factor[chosen, 0] * 0.4 + factor[chosen] @ taste[user] * 0.6 + noise, 1, 5)
        if f"u{user}" in changed:
            chosen, value = np.arange(items - len(chosen), items), np.full(len(chosen), 5.0)
        rows += [{"user": f"u{user}", "item": f"i{i}", "value": v} for i, v in zip(chosen, value, strict=True)]
    names = [f"u{k}" for k in range(users)], [f"i{k}" for k in range(items + 1)]
    people = pd.DataFrame(
        {"kind": np.where(taste[:, 0] > 0, "a", "b"), "zip": [f"z{k}" for k in range(users)]}, names[0]
    )
    things = pd.DataFrame({"tags": [*np.where(factor[:, 1] > 0, "x|y", "y|z"), "x|z"], "year": np.arange(items + 1.0)})
    return make_ratings(pd.DataFrame(rows), people, things.set_axis(names[1], axis=0), (1.0, 5.0))


@pytest.fixture(scope="session")
def simulated_ratings():
    return simulate_ratings
