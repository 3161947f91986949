"""Methods for preferences by name."""

from __future__ import annotations

import difflib

import numpy as np

from warmstart.baselines import click_means, rating_means
from warmstart.core import InputError
from warmstart.estimators.preference_contract import PreferenceMethod, by_events
from warmstart.estimators.preference_networks import NETWORKS, network_method
from warmstart.learners import click_bayes, preference_bayes
from warmstart.tasks.clicks import EVENTS
from warmstart.training.preferences import CLICK, Network

WEIGHTED = Network(weights=CLICK)
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
    "click_bayes": by_events(
        click_bayes.Config(),
        click_bayes.SPACE,
        click_bayes.State,
        lambda train, stop, cfg, seed, device, report: click_bayes.learn(train, cfg, seed),
        lambda state, users: click_bayes.score(state, click_bayes.finish(state, users.shown), users.asked),
        kinds=("binary",),
        context=lambda state: state.known.context,
    ),
    "click_means": by_events(
        click_means.Config(),
        click_means.SPACE,
        click_means.Effects,
        lambda train, stop, cfg, seed, device, report: click_means.fit_effects(train, cfg),
        click_means.predict,
        kinds=("binary",),
    ),
    **{name: network_method(module.build, config, module.SPACE) for name, (module, config) in NETWORKS.items()},
    **{
        f"{name}_weighted": network_method(module.build, config, module.SPACE, WEIGHTED, kinds=("binary",))
        for name, (module, config) in NETWORKS.items()
    },
}
AUTO = {  # what `auto` compares; the first wins where they cannot be told apart
    "squared": ("preference_bayes", "rating_means"),
    "binary": ("click_bayes", "click_means"),
}


def find(name: str, kind: str | None = None) -> PreferenceMethod:
    """The method, which must be one of this kind of preferences where that is known."""
    fitting = [one for one, method in METHODS.items() if kind in (None, *method.kinds)]
    if name in fitting:
        return METHODS[name]
    expected = "preferences" if kind is None else EVENTS[kind]
    if name in METHODS:
        raise InputError(f"a method for {expected} among {', '.join(fitting)}", repr(name), "name one, or another kind")
    near = difflib.get_close_matches(name, fitting, 1)
    hint = f"did you mean {near[0]}?" if near else "pick one"
    raise InputError(f"a method for {expected} among {', '.join(fitting)}", repr(name), hint)
