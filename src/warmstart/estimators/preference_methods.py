"""Methods for preferences by name."""

from __future__ import annotations

import difflib

import numpy as np

from warmstart.baselines import rating_means
from warmstart.core import InputError
from warmstart.estimators.preference_contract import PreferenceMethod, by_events
from warmstart.estimators.preference_networks import NETWORKS, network_method
from warmstart.learners import preference_bayes

METHODS = {
    "preference_bayes": PreferenceMethod(
        preference_bayes.Config(),
        preference_bayes.SPACE,
        preference_bayes.State,
        lambda train, stop, cfg, seed, device, report: preference_bayes.learn(
            train, cfg, seed, lambda sweep, state: report(sweep + 1, cfg.sweeps, "sweeps")
        ),
        preference_bayes.observe,
        preference_bayes.finish,
        preference_bayes.score,
        preference_bayes.catalogue,
    ),
    "rating_means": by_events(
        rating_means.Config(),
        rating_means.SPACE,
        rating_means.Bias,
        lambda train, stop, cfg, seed, device, report: rating_means.fit_bias(train, cfg),
        lambda bias, users: rating_means.on_scale(users, bias, np.zeros(len(users.asked.value))),
    ),
    **{name: network_method(module.build, config, module.SPACE) for name, (module, config) in NETWORKS.items()},
}
AUTO = ("preference_bayes", "rating_means")  # what `auto` compares; the first wins where they cannot be told apart


def find(name: str) -> PreferenceMethod:
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]}?" if near else "pick one"
        raise InputError(f"a method for preferences among {', '.join(METHODS)}", repr(name), hint)
    return METHODS[name]
