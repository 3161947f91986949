"""A marker in test users' ratings and in the items they rate: nothing that is fitted sees it, whatever the method.

Test users give the highest rating to the last items of the catalogue instead of their own choices; every method is
tuned, fitted and stacked on both worlds, and must say the same of validation users. Then test users in another order.
"""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.engine.loop import silent
from warmstart.studies import cold_clicks, cold_ratings
from warmstart.tasks.cold_start import CLICKS, PAPER, Users, everything, split_users
from warmstart.tasks.ratings import take_users, to_stack
from warmstart.training.preferences import Schedule

USERS = 60


def rated(simulated_ratings, changed=()):
    return simulated_ratings(users=USERS, changed=changed)


def clicked(simulated_ratings, changed=()):
    """Liked is clicked; the tab tells half of it, save for changed users."""
    ratings = simulated_ratings(users=USERS, changed=changed)
    liked = ratings.value > 3.2
    tab = np.where(liked & (ratings.item % 2 == 0), "a", "b")
    context = pd.DataFrame({"tab": pd.Categorical(tab, ["a", "b"])})
    return ratings._replace(value=liked.astype(float), context=context, scale=(0.0, 1.0))


def worlds(make, simulated_ratings, protocol):
    clean = split_users(make(simulated_ratings), protocol)
    names = set(clean.test.shown.users.index)
    marked = split_users(make(simulated_ratings, names), protocol)
    assert set(marked.test.shown.users.index) == names
    assert set(marked.test.shown.item) != set(clean.test.shown.item)
    return clean, marked


def check(predict, again, clean, marked):
    assert torch.equal(predict(clean.validation).mean, again(marked.validation).mean)
    users = clean.test
    said = to_stack(users.asked, predict(users).mean)
    order = np.random.default_rng(0).permutation(len(users.shown.users))
    moved = Users(take_users(users.shown, order), take_users(users.asked, order), np.zeros(0))
    assert torch.allclose(to_stack(moved.asked, predict(moved).mean), said[order], atol=1e-5)


NETWORKS = ("at_paml", "reg_paml, content only")  # that stand for all: they are trained alike
PLAIN = [name for name, entry in cold_ratings.ENTRIES.items() if not entry.learns]


@pytest.mark.parametrize("name", [*PLAIN, *NETWORKS, *cold_ratings.STACKS])
@pytest.mark.usefixtures("plain_preferences")
def test_ratings(name, simulated_ratings, monkeypatch):
    clean, marked = worlds(rated, simulated_ratings, PAPER)
    if name in NETWORKS:
        entry = cold_ratings.ENTRIES[name]
        short = partial(entry.fit, schedule=Schedule(epochs=2, look=1))
        monkeypatch.setitem(cold_ratings.ENTRIES, name, entry._replace(fit=short))

    def fitted(parts):
        trials = 2 if name in ("bias", "als") else 1
        split = cold_ratings.Split("ml-1m", parts, trials, 0, None, torch.device("cpu"), {}, {}, {})
        if name in cold_ratings.STACKS:
            return cold_ratings.fit_stack(cold_ratings.STACKS[name], split, everything(parts.train), silent)
        found = cold_ratings.fitted(name, cold_ratings.settled(name, split, silent), split)
        return found.predict if name in NETWORKS else found

    check(fitted(clean), fitted(marked), clean, marked)


@pytest.mark.parametrize("name", [*(n for n, entry in cold_clicks.ENTRIES.items() if not entry.learns), *NETWORKS])
@pytest.mark.usefixtures("plain_preferences")
def test_clicks(name, simulated_ratings):
    clean, marked = worlds(clicked, simulated_ratings, CLICKS)
    entry = cold_clicks.ENTRIES[name]

    def fitted(parts):
        train = everything(parts.train)
        if not entry.learns:
            return entry.fit(train, entry.config, 0)
        return entry.fit(train, entry.config, 0, parts.validation, schedule=Schedule(epochs=2, look=1)).predict

    check(fitted(clean), fitted(marked), clean, marked)
