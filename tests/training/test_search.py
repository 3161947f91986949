"""Tuning: as many trials for all, finished ones never run again, failures last."""

import math
from dataclasses import dataclass

import pytest

from warmstart.core import InputError
from warmstart.engine.loop import Diverged
from warmstart.training.search import draw_configs, search


@dataclass(frozen=True)
class Config:
    lr: float = 0.5
    steps: int = 3


SPACE = {"lr": (0.1, 0.2, 0.4, 0.8), "steps": (1, 2, 5, 9)}
FAILED = {0.2: math.nan, 0.8: math.inf}  # by learning rate


def value(config):
    return FAILED.get(config.lr, abs(config.lr - 0.3) + config.steps)


@pytest.mark.parametrize("trials", [1, 4, 7])
def test_every_method_gets_as_many_trials_its_default_among_them(trials):
    for default in (Config(), Config(lr=0.1, steps=1)):  # outside the space, and within
        found = search(value, default, SPACE, trials, seed=3)
        configs = [trial.config for trial in found]
        assert len(configs) == len(set(configs)) == trials and default in configs
        assert draw_configs(default, SPACE, trials, seed=3)[0] == default
    assert len(search(value, Config(), {"lr": (0.1, 0.4)}, trials)) == min(trials, 3)  # all there are


def test_the_draws_are_those_of_the_seed():
    first, again, other = (draw_configs(Config(), SPACE, 6, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first[:4] == draw_configs(Config(), SPACE, 4, 1)  # more trials go on from fewer


def test_the_best_comes_first_and_failures_last():
    found = search(value, Config(), SPACE, 17)
    assert len(found) == 17
    assert (found[0].config, found[0].value) == (Config(0.4, 1), pytest.approx(1.1))
    kept = [trial.value for trial in found[:9]]
    assert kept == sorted(kept) and all(value(trial.config) == trial.value for trial in found[:9])
    assert all(trial.value == math.inf and trial.config.lr in FAILED for trial in found[9:])


def test_a_trial_that_diverges_has_failed_and_is_not_run_again(tmp_path):
    ran = []

    def run(config):
        ran.append(config)
        if config != Config():
            raise Diverged("nan before step 3", "lower the learning rates", None)
        return 0.5

    for _ in range(2):
        found = search(run, Config(), SPACE, 3, store=tmp_path / "trials.json")
        assert (found[0].config, [trial.value for trial in found]) == (Config(), [0.5, math.inf, math.inf])
        assert len(ran) == 3


def test_a_search_resumes_from_its_store_without_running_again(tmp_path):
    store, ran = tmp_path / "trials.json", []

    def run(config):
        ran.append(config)
        if len(ran) == 9:
            raise KeyboardInterrupt
        return value(config)

    with pytest.raises(KeyboardInterrupt):
        search(run, Config(), SPACE, 17, store=store)
    told = []
    found = search(run, Config(), SPACE, 17, store=store, progress=lambda *words: told.append(words))
    assert len(ran) == 18 and set(ran[8:9]) == set(ran[9:10])  # the interrupted one only
    assert found == search(value, Config(), SPACE, 17)  # failures that were stored included
    assert [done for done, _, _ in told] == list(range(1, 18)) and told[-1][1:] == (17, "best 1.1")
    assert search(lambda config: pytest.fail("run again"), Config(), SPACE, 17, store=store) == found


def test_a_search_without_trials_is_refused():
    with pytest.raises(InputError, match="at least one trial"):
        search(value, Config(), SPACE, 0)
