"""Empirical Bayes for clicks: what an unseen user will click, from a profile, the context and the first few events.

    logit P(click) = z . w_u,     z = (1, f, context, place of the item, its content),     w_u ~ N(beta, S)

f is the logit that boosted trees give to anybody with this profile, for this item in this context; the trees are
fitted across users, so that f of a training user comes from the others. A user is a Gaussian vector around it: an
own level, an own slope of f, own weights on the context, on the directions along which items are shown to the same
users and on those along which the content of items differs most. Adapting is conditioning by Jaakkola and Jordan's
bound; beta and S are learned by expectation-maximisation, and S is widened where that foretells training users better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds
from scipy.special import logit

from warmstart.core import InputError, Prediction
from warmstart.maths.bilinear import Floats, Side
from warmstart.maths.forest import Forest, make_forest, walk
from warmstart.maths.logistic import at_prior, believe, logits, omega, probability, weigh
from warmstart.maths.trees import Trees, make_trees
from warmstart.tasks.cold_start import Users
from warmstart.tasks.impressions import Known, columns, context_of, cross_fitted, fit_known, folds_of, users_in_order
from warmstart.tasks.ratings import Ratings, places

FEW, MOST = 6000, 10  # users in all folds, when there are more than asked for, and folds at most
WIDER = (1.0, 1.25, 1.5, 2.0, 3.0)
TINY = 1e-12
SUREST = 9.21  # the largest logit that is taken from the trees: of a share of 0.9999
SHORTEST = 0.02  # an item's place is scaled to length 1, one shorter than this (rarely shown) less


@dataclass(frozen=True)
class Config:
    trees: Trees = Trees(trees=200, rate=0.05, leaves=15)
    folds: int = 3  # of training users; more where these are few, since what a fold leaves out is then missed
    shrink: float = 10.0  # impressions' worth of the mean in an item's share of clicks
    least: int = 50  # rows that must have a value of a table for it to count
    choices: int = 8  # directions of "which items" that a user weighs
    content: int = 8  # directions of items' content that a user weighs
    context: bool = True  # whether a user weighs the context; the trees see it either way
    width: float = 0.01  # variance of users' own weights on context and places before learning, which moves it slowly
    sweeps: int = 10  # of expectation-maximisation
    rounds: int = 4  # of the bound, for a new user


LEVEL = Config(choices=0, content=0, context=False)  # a user has a level and a slope, nothing else
SPACE: dict[str, list[Any]] = {
    "trees": [
        Trees(trees=150, rate=0.05, leaves=15),
        Trees(trees=300, rate=0.03, leaves=15),
        Trees(trees=200, leaves=8),
    ],
    "shrink": [5.0, 10.0, 20.0],
    "width": [0.003, 0.01, 0.03],
}


class State(NamedTuple):
    known: Known
    model: Forest
    place: Floats  # [items, choices and content]
    beta: Floats  # [d]
    cov: Floats  # [d, d]
    context: bool
    rounds: int


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    """Probabilities of the impressions asked about, from what their users have shown."""
    state = learn(train, cfg, seed)
    return lambda users: score(state, finish(state, users.shown), users.asked)


def finish(state: State, shown: Ratings) -> Side:
    """What is believed of each user after these events."""
    prior = np.tile(state.beta, (len(shown.users), 1))
    return believe(design(state, shown), shown.value, shown.user, prior, state.cov, state.rounds)


def score(state: State, users: Side, asked: Ratings) -> Prediction:
    """The chance of each click, and how unsure that is: (p (1 - p))^2 Var s, with s the logit."""
    mean, variance = logits(design(state, asked), asked.user, users)
    said = probability(mean, variance)
    return Prediction(torch.from_numpy(said), torch.from_numpy((said * (1 - said)) ** 2 * variance))


def design(state: State, events: Ratings) -> Floats:
    """[events, d] what a user weighs."""
    expected = np.clip(walk(state.model, columns(state.known, events)), -SUREST, SUREST)
    return _design(state.known, state.place, state.context, events, expected)


def learn(train: Ratings, cfg: Config, seed: int) -> State:
    if min(cfg.rounds, cfg.folds - 1, cfg.sweeps) < 1:
        got = f"{cfg.rounds}, {cfg.folds} and {cfg.sweeps}"
        raise InputError("rounds and sweeps from 1 and folds from 2", got, "raise them")
    if len(train.users) < 2:
        raise InputError("two training users or more", f"{len(train.users)}", "pass more users")
    if not set(np.unique(train.value)) <= {0.0, 1.0} or len(set(train.value)) < 2:
        got = ", ".join(f"{value:g}" for value in np.unique(train.value)[:5])
        remedy = "pass more users, or ratings to preference_bayes"
        raise InputError("clicks of 0 and 1, some of each, of the training users", got, remedy)
    train = users_in_order(train)
    known = fit_known(train, cfg.shrink, cfg.least)
    fold = folds_of(train, max(cfg.folds, min(MOST, FEW // len(train.users))), seed)
    x, y = cross_fitted(known, train, fold, cfg.shrink), train.value
    expected = np.empty(len(y))
    for held in range(int(fold.max()) + 1):
        out = fold[train.user] == held
        expected[out] = make_trees(cfg.trees, seed, clicks=True).fit(x[~out], y[~out]).predict_proba(x[out])[:, 1]
    model = make_forest(make_trees(cfg.trees, seed, clicks=True).fit(x, y))
    place = np.concatenate([_place(train, cfg.choices, seed), _content(train, known, cfg.content)], 1)
    z = _design(known, place, cfg.context, train, _logit(expected))
    beta, cov = _learn_prior(z, train, cfg)
    return State(known, model, place, beta, _widened(z, train, beta, cov, cfg.rounds), cfg.context, cfg.rounds)


def _learn_prior(z: Floats, train: Ratings, cfg: Config) -> tuple[Floats, Floats]:
    """beta and S, from f as it is and small weights on everything else."""
    size, people = z.shape[1], len(train.users)
    beta, cov = np.zeros(size), np.diag(np.r_[0.3, 0.05, np.full(size - 2, cfg.width)])
    beta[1] = 1.0
    weights = at_prior(z, train.user, np.tile(beta, (people, 1)), cov)
    for _ in range(cfg.sweeps):
        users = weigh(z, train.value, train.user, weights, np.tile(beta, (people, 1)), cov)
        beta = users.mean.mean(0)
        left = users.mean - beta
        cov = (left.T @ left + users.cov.sum(0)) / people + 1e-6 * np.eye(size)
        mean, variance = logits(z, train.user, users)
        weights = omega(mean**2 + variance)
    return beta, cov


def _widened(z: Floats, train: Ratings, beta: Floats, cov: Floats, rounds: int) -> Floats:
    """S, which the bound makes too narrow, times the factor by which users' first halves best foretell their second."""
    count = np.bincount(train.user, minlength=len(train.users))
    early = places(train) < (count // 2)[train.user]
    prior, later = np.tile(beta, (len(count), 1)), train.value[~early]
    weight = 1 / np.bincount(train.user[~early], minlength=len(count))[train.user[~early]]

    def loss(factor: float) -> float:
        users = believe(z[early], train.value[early], train.user[early], prior, factor * cov, rounds)
        said = probability(*logits(z[~early], train.user[~early], users))
        return float(-(weight * np.log(np.maximum(np.where(later > 0.5, said, 1 - said), TINY))).sum())

    found: Floats = min(WIDER, key=loss) * cov
    return found


def _design(known: Known, place: Floats, context: bool, events: Ratings, expected: Floats) -> Floats:
    own = np.column_stack([np.ones(len(expected)), expected])
    around = context_of(known, events) if context else own[:, :0]
    return np.concatenate([own, around, place[events.item]], 1)


def _place(train: Ratings, size: int, seed: int) -> Floats:
    """[items, size]: right singular vectors of who was shown what, users of unit length."""
    shape = (len(train.users), len(train.items))
    size = min(size, min(shape) - 1)
    if size < 1:
        return np.zeros((shape[1], 0))
    shown: Any = csr_array((np.ones(len(train.item)), (train.user, train.item)), shape=shape)
    shown.data[:] = 1.0
    length = np.sqrt(np.maximum(shown.sum(1), 1))
    _, _, right = svds(shown.multiply(1 / length[:, None]).tocsr(), k=size, random_state=seed)
    found: Floats = right.T / np.maximum(np.linalg.norm(right.T, axis=1, keepdims=True), SHORTEST)
    return found


def _content(train: Ratings, known: Known, size: int) -> Floats:
    """[items, size]: principal directions of what is known of the items that were shown, at unit variance over them."""
    often = np.bincount(train.item, minlength=len(train.items)) / len(train.item)
    centred = known.content - often @ known.content
    spread, way = np.linalg.eigh((centred * often[:, None]).T @ centred)
    kept = np.flatnonzero(spread > 1e-9 * max(float(spread.max(initial=0.0)), 1e-300))[::-1][:size]
    found: Floats = centred @ way[:, kept] / np.sqrt(spread[kept])
    return found


def _logit(share: Floats) -> Floats:
    return np.clip(logit(share), -SUREST, SUREST)
