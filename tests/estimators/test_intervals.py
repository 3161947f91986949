"""Intervals hold what they claim on tasks that nothing was fitted on."""

import numpy as np
import pytest

from warmstart.core import InputError
from warmstart.estimators.meta_learner import MetaLearner
from warmstart.tasks.population import frames, population
from warmstart.tasks.roles import Roles
from warmstart.training.train import Plan


@pytest.fixture(scope="module")
def people():
    """Rows of 500 tasks and what is known of them."""
    rows, about = frames(population(train=500, validation=1, test=1, rows=15))
    return rows, about.drop(columns="split")


@pytest.mark.parametrize("name", ["empirical_bayes", "pretrain"])
def test_coverage_on_held_out_tasks(people, name):
    rows, about = people
    plan = Plan(steps=60, every=30, tasks=16, support=8, query=7)
    model = MetaLearner(name, plan=plan, trials=1).fit(rows, Roles("task", "target"), about)
    _, validation, test = model.fitted.schema.split
    assert len(validation) == 50
    known = about.set_index("task")
    inside, widths = {0.5: [], 0.9: []}, {0.5: [], 0.9: []}
    for shown in (0, 5):
        for task in test[shown::4]:
            own = rows[rows["task"] == task]
            adapted = model.adapt(own.head(shown) if shown else None, known.loc[task].to_dict())
            judged, truth = own.tail(7), own.tail(7)["target"].to_numpy()
            for level in inside:
                low, high = (edge.numpy() for edge in adapted.predict_interval(judged, level))
                inside[level].append(((low <= truth) & (truth <= high)).mean())
                widths[level].append((high - low).mean())
    assert len(inside[0.5]) >= 40
    assert 0.84 < np.mean(inside[0.9]) < 0.96
    assert 0.40 < np.mean(inside[0.5]) < 0.62
    assert np.mean(widths[0.5]) < 0.6 * np.mean(widths[0.9])
    if name == "pretrain":
        with pytest.raises(InputError, match="99 validation tasks"):
            adapted.predict_interval(judged, 0.99)
        assert np.isinf(adapted.frame(judged, 0.99)["high"]).all()
    else:  # its own variance
        low, high = adapted.predict_interval(judged, 0.99)
        assert float((high - low).mean()) > widths[0.9][-1]
    with pytest.raises(InputError, match="between 0 and 1"):
        adapted.predict_interval(judged, 1.0)
