"""Small tables with every kind of column, and one fitted model of each method."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from warmstart.engine.stage import PLAIN
from warmstart.estimators.meta_learner import MetaLearner
from warmstart.estimators.methods import METHODS
from warmstart.estimators.preference_learner import PreferenceLearner
from warmstart.estimators.preference_methods import METHODS as PREFERENCES
from warmstart.estimators.preference_networks import NETWORKS, network_method
from warmstart.tasks.films import simulate_films
from warmstart.tasks.roles import Roles
from warmstart.training.preferences import Schedule
from warmstart.training.train import Plan

BAYES = ("abml", "bmaml", "gem_bml", "gem_bml_plus", "gem_mixture", "kl_chaser", "llama", "platipus", "pmaml")
LESS = {"scratch": {"test_steps": 5}, "imaml": {"inner_steps": 2, "solve_steps": 2}}  # settings that save time
LESS |= {name: {"inner_steps": 2, "test_steps": 3} for name in BAYES}
PLAN = Plan(steps=12, every=6, tasks=8, support=4, query=3)


def make_tables(tasks=24, rows=8, seed=0):
    """y depends on a number, a category, a bag and the task; the task table knows half of the latter."""
    draw = np.random.default_rng(seed)
    count = tasks * rows
    slope, offset, known = draw.normal(size=(3, tasks))
    table = pd.DataFrame(
        {
            "user": np.repeat([f"u{i:03d}" for i in range(tasks)], rows),
            "x": draw.normal(size=count),
            "colour": draw.choice(["red", "green", "blue"], count),
            "tags": ["|".join(draw.permutation(["a", "b", "c", "d"])[: draw.integers(1, 4)]) for _ in range(count)],
        }
    )
    tags = table["tags"].str.contains("a").to_numpy()
    level = np.repeat(slope, rows) * table["x"] + np.repeat(offset + known, rows) + (table["colour"] == "red") - tags
    table["y"] = 10 * level + 100
    about = pd.DataFrame({"user": table["user"].unique(), "known": known, "town": draw.choice(["oslo", "rome"], tasks)})
    return table, about


@pytest.fixture(scope="session")
def tables():
    return make_tables()


@pytest.fixture(scope="session")
def plan():
    return PLAN


@pytest.fixture(scope="session")
def fitted(tables):
    """method -> a model fitted on the first 20 tasks; made when first asked for."""
    kept = {}

    def get(method):
        if method not in kept:
            rows, about = tables
            old = rows[rows["user"] < "u020"]
            model = MetaLearner(method, LESS.get(method, {}), PLAN, trials=1, device="cpu")
            with pytest.MonkeyPatch.context() as patch:  # over before programs would be recorded
                patch.setattr("warmstart.estimators.fitting.TRACED", PLAIN)
                kept[method] = model.fit(old, Roles("user", "y"), about)
        return kept[method]

    return get


@pytest.fixture(scope="session")
def new_task(tables):
    """Support, query and descriptor of a task that no model has seen."""
    rows, about = tables
    own = rows[rows["user"] == "u022"]
    known = about.set_index("user").loc["u022"].to_dict()
    return own.head(5), own.tail(3), known


@pytest.fixture(scope="session")
def cinema():
    """Ratings, users and films."""
    return simulate_films(160, 40, seed=1, fewest=8, most=20)


@pytest.fixture(scope="session")
def preference_models(cinema):
    """One of each kind of method for preferences; the network is hardly trained."""
    settings = {"preference_bayes": {"factors": 3, "sweeps": 4, "choices": 5}, "rating_means": {"user_shrink": 3.0}}
    roles = Roles("user", "rating", item="film", time="time")
    module, config = NETWORKS["reg_paml"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warmstart.training.preferences.TRACED", PLAIN)
        patch.setitem(PREFERENCES, "reg_paml", network_method(module.build, config, {}, schedule=Schedule(epochs=1)))
        return {
            name: PreferenceLearner(name, given).fit(cinema.ratings, roles, cinema.users, cinema.films)
            for name, given in {**settings, "reg_paml": {}}.items()
        }


@pytest.fixture(scope="session")
def arcade():
    """Impressions, users and films of users who click by a level, a taste for groups of films, and the film itself."""
    draw = np.random.default_rng(3)
    users, films = 300, 50
    group, level = draw.choice(["a", "b"], films), 0.7 * draw.normal(size=films)
    kind, own = draw.choice(["x", "y"], users), draw.normal(size=users)
    taste = 1.3 * draw.normal(size=users) + np.where(kind == "x", 0.6, -0.6)
    rows = []
    for user in range(users):
        for time, film in enumerate(draw.choice(films, draw.integers(14, 40))):
            logit = -0.5 + level[film] + own[user] + taste[user] * (1 if group[film] == "a" else -1)
            chance = 1 / (1 + np.exp(-logit))
            rows.append((f"u{user:04d}", f"f{film:03d}", int(draw.random() < chance), time, chance))
    return SimpleNamespace(
        log=pd.DataFrame(rows, columns=["user", "film", "clicked", "time", "chance"]),
        users=pd.DataFrame(
            {"user": [f"u{i:04d}" for i in range(users)], "kind": kind, "age": draw.integers(20, 60, users)}
        ),
        films=pd.DataFrame({"film": [f"f{i:03d}" for i in range(films)], "group": group}),
    )


@pytest.fixture(scope="session")
def click_models(arcade):
    """One of each kind of method for clicks; the network is hardly trained."""
    trees = {"trees.trees": 60, "trees.leaves": 6, "trees.smallest_leaf": 20}
    settings = {"click_bayes": {**trees, "choices": 2, "width": 0.1}, "click_means": {}, "melu": {}}
    roles = Roles("user", "clicked", item="film", time="time")
    module, config = NETWORKS["melu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warmstart.training.preferences.TRACED", PLAIN)
        patch.setitem(PREFERENCES, "melu", network_method(module.build, config, {}, schedule=Schedule(epochs=1)))
        return {
            name: PreferenceLearner(name, given).fit(arcade.log, roles, arcade.users, arcade.films)
            for name, given in settings.items()
        }


def pytest_generate_tests(metafunc):
    if "method" in metafunc.fixturenames:
        metafunc.parametrize("method", list(METHODS))
