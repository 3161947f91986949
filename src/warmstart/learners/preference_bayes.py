"""Empirical Bayes for preferences: what an unseen user thinks of items, from a profile and the first few events.

    y = mu + m_i + b_u + q_i . p_u + c_i . v_u + e,         e ~ N(0, noise_i)
    w_u = (b_u, p_u, v_u) ~ N(B h_u, S),                    h_u: profile, and which items the user chose at all
    (m_i, q_i)            ~ N(A x_i, L),                    x_i: content c_i, and who else is chosen with the item

A user is a Gaussian vector, an event is a row of a linear model, and adapting is conditioning: exact, in any
order, one more event being a rank-one change of the sums. B, S, A, L and the noises are learned by
expectation-maximisation of the evidence bound in which users and items are independent.

Salakhutdinov and Mnih, 2008 (the factors); Agarwal and Chen, 2009 (regression priors on both sides).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import svds

from warmstart.core import InputError, Prediction
from warmstart.maths.bilinear import (
    Floats,
    Ints,
    Side,
    Sums,
    condition,
    each_user,
    expected_error,
    gather,
    make_events,
    moments,
)
from warmstart.tasks.cold_start import Users
from warmstart.tasks.features import Features
from warmstart.tasks.profiles import fit_table, numbers_of
from warmstart.tasks.ratings import Ratings

TYPICAL = 5.0  # users' worth of shrinkage of an item's typical chooser
FEW = 4  # users up to whom `catalogue` goes one by one
BLOCK = 512  # items in one product


@dataclass(frozen=True)
class Config:
    factors: int = 16  # size of q_i and p_u
    sweeps: int = 16  # of expectation-maximisation
    choices: int = 32  # directions of "which items" that are told apart; 0 leaves that out
    least: int = 5  # rows that must have a value of a side table for it to count
    profile: bool = True  # whether users' and items' tables are read
    content: float = 0.05  # least share of items that a column of content tells of for users to weigh it; 1: none
    user_ridge: float = 30.0  # of B, in users
    item_ridge: float = 15.0  # of A, in items
    noise_events: float = 20.0  # events' worth of shrinkage of an item's noise to the mean of all


SPACE: dict[str, list[Any]] = {
    "factors": [12, 16, 24],
    "user_ridge": [10.0, 30.0, 100.0],
    "content": [0.02, 0.05],
    "item_ridge": [5.0, 15.0, 40.0],
}


class Prior(NamedTuple):
    """A vector ~ N(features @ weight, cov)."""

    weight: Floats
    cov: Floats


class Choices(NamedTuple):
    """Which items a user chooses: the mean of their rows in `basis` is a fact of the user, seen through few draws."""

    basis: Floats  # [items, c]
    weight: Floats  # [1 + profile, c]: the mean that a profile leads one to expect
    within: Floats  # [c] variance of one choice around its user's mean
    between: Floats  # [c] variance of users' means around what their profile tells
    typical: Floats  # [items, c]: how far, on average, those who choose an item are from what their profile tells


class State(NamedTuple):
    """What was learned from training users; coordinates are item bias, user bias, factors, content."""

    centre: float
    items: Side
    noise: Floats  # [items]
    user_prior: Prior
    item_prior: Prior
    choices: Choices
    profile: Features
    scale: tuple[float, float]


class Adapted(NamedTuple):
    """What is believed of users, and how that moves with where their mean choice is taken to be before any."""

    user: Side
    move: Floats  # [users, d, c]


class Inner(NamedTuple):
    """Sums over what each user has shown; they add up."""

    seen: Sums
    chosen: Floats  # [users, choices]
    number: Floats  # [users] of events


def fit(train: Ratings, cfg: Config = Config(), seed: int = 0) -> Callable[[Users], Prediction]:
    """Predictions for the users asked about, from what they have shown."""
    state = learn(train, cfg, seed)
    return lambda users: predict(state, users)


def predict(state: State, users: Users) -> Prediction:
    adapted = finish(state, users.shown, observe(state, users.shown))
    return score(state, adapted, users.asked)


def observe(state: State, shown: Ratings, before: Inner | None = None) -> Inner:
    """The sums after these events, and those before."""
    used, place = np.unique(shown.item, return_inverse=True)
    events = make_events(shown.user, place, shown.value - state.centre, (len(shown.users), len(used)))
    items = Side(state.items.mean[used], state.items.cov[used], state.items.free)
    seen = gather(events, items, 1 / state.noise[used])
    found = Inner(seen, events.ones @ state.choices.basis[used], events.ones.sum(1))
    if before is None:
        return found
    sums = Sums(*(a + b for a, b in zip(before.seen, found.seen, strict=True)))
    return Inner(sums, before.chosen + found.chosen, before.number + found.number)


def finish(state: State, users: Ratings, inner: Inner) -> Adapted:
    """What is believed of each user: the prior that profile and choices give, conditioned on the sums."""
    profile = _constant(numbers_of(state.profile, users.users, "users"))
    told, unsure = _told(state.choices, profile, inner.chosen, inner.number)
    prior = np.concatenate([profile, told], 1) @ state.user_prior.weight
    given = np.ones((len(prior), prior.shape[1] + 1))
    before = _widened(state.user_prior, unsure)
    found = condition(inner.seen, given, np.arange(1, given.shape[1]), prior, before)
    weight = state.user_prior.weight[profile.shape[1] :].T
    pull = unsure[:, None, :] / state.choices.between * weight
    return Adapted(found, found.cov @ np.linalg.solve(before, pull))


def score(state: State, adapted: Adapted, asked: Ratings) -> Prediction:
    """Mean, kept on the scale, and variance of each event asked about.

    A rating exists because its user chose the item, so before any event the user is taken for a typical
    chooser of that item; the support's choices outweigh this as they grow.
    """
    who, what = asked.user, asked.item
    mean, variance = moments(adapted.user, state.items, who, what)
    for one, rows in each_user(who):
        moved = state.items.mean[what[rows]][:, 1:] @ adapted.move[one]
        mean[rows] += (moved * state.choices.typical[what[rows]]).sum(1)
    on_scale = np.clip(state.centre + mean, *state.scale)
    return Prediction(torch.from_numpy(on_scale), torch.from_numpy(variance + state.noise[what]))


def catalogue(
    state: State, adapted: Adapted, which: Ints | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What `score` says of all items, or of some, for every user, [users, items] each: mean and variance.

    Means are not kept on the scale, so that items at its end can be told apart.
    With more than a few users everything is one product for each block of items: what is known of an item,
    the pairs of its coordinates and of its typical chooser among them, times what is believed of a user.
    """
    if which is not None:
        items = Side(state.items.mean[which], state.items.cov[which], state.items.free)
        typical = state.choices._replace(typical=state.choices.typical[which])
        state = state._replace(items=items, noise=state.noise[which], choices=typical)
    if len(adapted.user.mean) <= FEW:
        said = [_whole(state, adapted, user) for user in range(len(adapted.user.mean))]
        mean, variance = (np.stack([one[part] for one in said]) for part in (0, 1))
    else:
        mean, variance = _products(state, adapted)
    return mean + np.float32(state.centre), variance + state.noise.astype(np.float32)


def _whole(state: State, adapted: Adapted, user: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One user and all items, by the same sums as `score`."""
    items, w, v = state.items, adapted.user.mean[user], adapted.user.cov[user]
    own = items.mean[:, adapted.user.free].astype(np.float32)
    mean = items.mean @ w + ((own @ adapted.move[user].astype(np.float32)) * state.choices.typical).sum(1)
    second = np.outer(w, w)
    second[adapted.user.free[:, None], adapted.user.free] += v
    unsure = second[items.free[:, None], items.free].ravel()
    variance = ((own @ v.astype(np.float32)) * own).sum(1) + items.cov.reshape(len(own), -1) @ unsure
    return mean.astype(np.float32), variance.astype(np.float32)


def _products(state: State, adapted: Adapted) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    items, users, free = state.items, adapted.user, adapted.user.free
    people, things = len(users.mean), len(items.mean)
    pairs, held = np.triu_indices(len(free)), np.triu_indices(len(items.free))
    double, twice = (np.where(rows == columns, 1.0, 2.0) for rows, columns in (pairs, held))
    first, then = (items.free[part] for part in held)
    second = users.mean[:, first] * users.mean[:, then]
    place = np.full(users.mean.shape[1], -1)
    place[free] = np.arange(len(free))
    both = (place[first] >= 0) & (place[then] >= 0)
    second[:, both] += users.cov[:, place[first[both]], place[then[both]]]
    believed = np.concatenate([users.cov[:, pairs[0], pairs[1]] * double, second * twice], 1).astype(np.float32)
    towards = np.concatenate([users.mean, adapted.move.reshape(people, -1)], 1).astype(np.float32)
    mean, variance = (np.empty((people, things), dtype=np.float32) for _ in range(2))
    for rows in (slice(start, start + BLOCK) for start in range(0, things, BLOCK)):
        block = items.mean[rows].astype(np.float32)
        own, typical = block[:, free], state.choices.typical[rows].astype(np.float32)
        moved = (own[:, :, None] * typical[:, None, :]).reshape(len(own), -1)
        mean[:, rows] = towards @ np.concatenate([block, moved], 1).T
        unsure = items.cov[rows][:, held[0], held[1]].astype(np.float32)
        variance[:, rows] = believed @ np.concatenate([own[:, pairs[0]] * own[:, pairs[1]], unsure], 1).T
    return mean, variance


def learn(train: Ratings, cfg: Config, seed: int, hear: Callable[[int, State], None] | None = None) -> State:
    """Expectation-maximisation; `hear` is told every sweep."""
    if cfg.factors < 1 or cfg.sweeps < 1:
        raise InputError("at least one factor and one sweep", f"{cfg.factors} and {cfg.sweeps}", "pass 1 or more")
    people, things = len(train.users), len(train.items)
    centre = float(train.value.mean())
    events = make_events(train.user, train.item, train.value - centre, (people, things))
    ones, back = events.ones, events.turned
    features = fit_table(train.users, "users", cfg.least) if cfg.profile else Features()
    profile = _constant(numbers_of(features, train.users, "users"))
    choices = _choices(train, ones, profile, cfg, seed)
    told, unsure = _told(choices, profile, ones @ choices.basis, ones.sum(1))
    about = np.concatenate([profile, told], 1)
    content = _content(train, cfg)
    described = _constant(np.concatenate([content, choices.basis], 1))
    ratings = back.ones.sum(1)
    known = ratings > 0
    fixed = content[:, (content > 0).mean(0) >= max(cfg.content, 1e-9)] if cfg.content < 1 else content[:, :0]
    unit = (train.scale[1] - train.scale[0]) / 4  # 1 for one to five stars
    items, user_prior, item_prior = _start(back.values, known, fixed, about, described, cfg, seed, unit)
    free_item = items.free
    noise = np.full(things, float(train.value.var()))
    rated = described[known]
    of_users, of_items = _ridge(about, cfg.user_ridge), _ridge(rated, cfg.item_ridge)
    for sweep in range(cfg.sweeps):
        state = State(centre, items, noise, user_prior, item_prior, choices, features, train.scale)
        seen = gather(events, items, 1 / noise)
        given = np.ones((people, items.mean.shape[1]))
        free = np.arange(1, given.shape[1])
        users = condition(seen, given, free, about @ user_prior.weight, _widened(user_prior, unsure))
        user_prior = _refit(about, of_users, users.mean[:, 1:], users.cov)
        sums = gather(back, users)
        scaled = Sums(*(part / noise.reshape(-1, *(1,) * (part.ndim - 1)) for part in sums))
        items = condition(scaled, items.mean, free_item, described @ item_prior.weight, item_prior.cov)
        item_prior = _refit(rated, of_items, items.mean[known][:, free_item], items.cov[known])
        error = expected_error(sums, items)
        noise = (error + cfg.noise_events * error.sum() / ratings.sum()) / (ratings + cfg.noise_events)
        if hear is not None:
            hear(sweep, state)
    return State(centre, items, noise, user_prior, item_prior, choices, features, train.scale)


def _constant(features: Floats) -> Floats:
    return np.concatenate([np.ones((len(features), 1)), features], 1)


def _told(choices: Choices, profile: Floats, chosen: Floats, number: Floats) -> tuple[Floats, Floats]:
    """[users, c] each user's mean choice, shrunk to what the profile tells, and the variance that is left."""
    expected = profile @ choices.weight
    few = choices.within / choices.between  # choices that weigh as much as the profile
    trust = number[:, None] / (number[:, None] + few)
    mean = chosen / np.maximum(number, 1)[:, None]
    return expected + trust * (mean - expected), (1 - trust) * choices.between


def _widened(prior: Prior, unsure: Floats) -> Floats:
    """[users, d, d]: S, and what not knowing a user's mean choice adds to it."""
    weight = prior.weight[len(prior.weight) - unsure.shape[1] :]
    widened: Floats = prior.cov + np.einsum("uc,cd,ce->ude", unsure, weight, weight, optimize=True)
    return widened


def _choices(train: Ratings, ones: Any, profile: Floats, cfg: Config, seed: int) -> Choices:
    """Analysis of variance of users' choices along the singular vectors of who chose what."""
    basis = _basis(ones, cfg.choices, seed)
    number = ones.sum(1)
    mean = (ones @ basis) / np.maximum(number, 1)[:, None]
    weight = _ridge(profile, cfg.user_ridge)(mean)
    within = ((basis[train.item] - mean[train.user]) ** 2).sum(0) / max(len(train.item) - len(number), 1)
    apart = mean - profile @ weight
    total = (apart**2).mean(0)
    noise = within * (1 / np.maximum(number, 1)).mean()
    between = np.maximum(total - noise, 0.05 * total + 1e-9)
    typical = (ones.T @ apart) / (ones.sum(0) + TYPICAL)[:, None]
    return Choices(basis, weight, within, between, typical)


def _basis(ones: Any, size: int, seed: int) -> Floats:
    """[items, size]: right singular vectors of who chose what, users of unit length, at unit variance."""
    size = min(size, min(ones.shape) - 1)
    if size < 1:
        return np.zeros((ones.shape[1], 0))
    length = np.sqrt(np.maximum(ones.sum(1), 1))
    _, _, right = svds(ones.multiply(1 / length[:, None]).tocsr(), k=size, random_state=seed)
    scaled: Floats = right.T / np.maximum(right.T.std(0), 1e-12)
    return scaled


def _content(train: Ratings, cfg: Config) -> Floats:
    """[items, c], centred; nothing when tables are not read."""
    if not cfg.profile:
        return np.zeros((len(train.items), 0))
    table = numbers_of(fit_table(train.items, "items", cfg.least), train.items, "items")
    centred: Floats = table - table.mean(0)
    return centred


def _start(
    values: Any, known: Any, fixed: Floats, about: Floats, described: Floats, cfg: Config, seed: int, unit: float
) -> tuple[Side, Prior, Prior]:
    """Shrunk item means, small random factors, and priors that are wide by the unit of ratings."""
    draw = np.random.default_rng(seed)
    things, factors = len(fixed), cfg.factors
    count = np.diff(values.indptr)
    free = np.r_[0, 2 : 2 + factors]
    mean = np.ones((things, 2 + factors + fixed.shape[1]))
    mean[:, 0] = values.sum(1) / (count + 5)
    mean[:, 2 : 2 + factors] = 0.1 * draw.normal(size=(things, factors))
    mean[:, 2 + factors :] = fixed
    spread = float(mean[known, 0].var()) + 1e-6 * unit**2
    users = np.diag(np.r_[spread, np.full(factors, unit**2), np.full(fixed.shape[1], 0.01 * unit**2)])
    items = np.diag(np.r_[spread, np.full(factors, 0.02)])
    return (
        Side(mean, np.zeros((things, len(free), len(free))), free),
        Prior(np.zeros((about.shape[1], len(users))), users),
        Prior(np.zeros((described.shape[1], len(items))), items),
    )


def _refit(features: Floats, regress: Callable[[Floats], Floats], mean: Floats, cov: Floats) -> Prior:
    """Regression of the means on the features, and what it leaves over."""
    weight = regress(mean)
    left = mean - features @ weight
    spread = (left.T @ left + cov.sum(0)) / len(left)
    return Prior(weight, spread + 1e-8 * np.eye(len(spread)))


def _ridge(features: Floats, ridge: float) -> Callable[[Floats], Floats]:
    """values -> weights, factorised once; the constant, which comes first, is not shrunk."""
    penalty = np.full(features.shape[1], ridge)
    penalty[0] = 1e-6
    factor = cho_factor(features.T @ features + np.diag(penalty))

    def regress(values: Floats) -> Floats:
        weight: Floats = cho_solve(factor, features.T @ values)
        return weight

    return regress
