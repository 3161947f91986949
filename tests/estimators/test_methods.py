"""The first trial of a method by name learns."""

import dataclasses

import pytest

from warmstart.engine.loop import silent
from warmstart.estimators.fitting import Problem, runner
from warmstart.estimators.methods import METHODS, NARROW, Network
from warmstart.learners import gem
from warmstart.models.likelihoods import squared
from warmstart.tasks.population import population
from warmstart.training.train import Plan

GAUSSIAN = [name for name, method in METHODS.items() if hasattr(method.config, "sd")]


@pytest.fixture(scope="module")
def train():
    drawn = population(0, 200, 40, 2)
    problem = Problem(drawn.train, drawn.validation, drawn.columns, drawn.descriptor_columns, squared)
    plan = Plan(steps=30, tasks=16, every=10)
    return runner(problem, plan, network=Network(hidden=(32,), embedding=4))


def test_a_prior_over_a_network_of_a_table_begins_narrow(train):
    """With the width that a learner has by itself, its draws drown what tasks say."""
    own = dataclasses.replace(gem.GEM_BML_PLUS, samples=1)
    narrow, wide = (train("gem_bml_plus", cfg, None, silent).value for cfg in (METHODS["gem_bml_plus"].config, own))
    assert narrow < 0.9 * wide


@pytest.mark.parametrize("name", GAUSSIAN)
def test_every_learner_of_a_gaussian_prior_begins_so(name):
    config = METHODS[name].config
    assert {key: getattr(config, key) for key in NARROW} == NARROW
