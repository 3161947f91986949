"""Two sides that multiply: y = w_u . a_i + e with Gaussian beliefs about both vectors, updated in turn.

    w_u = [1, own coordinates],      a_i = [own coordinates, some of them fixed],      e ~ N(0, noise_i)

What the events of one side say of the other adds up, so it is kept as sums; given those sums the belief is
Gaussian in closed form. With both sides taken as independent this is the mean-field bound of the
evidence (Bishop, 1999; Lim and Teh, 2007), whose every step is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Side(NamedTuple):
    """Gaussian beliefs about the vectors of users or of items; coordinates that are not `free` are known."""

    mean: Floats  # [n, d]
    cov: Floats  # [n, f, f] of the free coordinates
    free: Ints  # [f]


class Sums(NamedTuple):
    """What events say of n vectors, given the other side's: sum v v' / noise, sum y v / noise, sum y^2 / noise."""

    square: Floats  # [n, d, d]
    cross: Floats  # [n, d]
    energy: Floats  # [n]


class Events(NamedTuple):
    """Sparse matrices [rows, columns]; a pair that comes twice adds up in each."""

    ones: Any
    values: Any
    squares: Any

    @property
    def turned(self) -> Events:
        return Events(*(part.T.tocsr() for part in self))


def make_events(rows: Ints, columns: Ints, values: Floats, shape: tuple[int, int]) -> Events:
    order = np.argsort(rows, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    place, own = columns[order], values[order]
    return Events(*(csr_array((part, place, start), shape=shape) for part in (np.ones(len(own)), own, own**2)))


def gather(events: Events, other: Side, precision: Floats | None = None) -> Sums:
    """Sums over events of what the other side is believed to be; `precision` of its events, 1 / noise."""
    d, f = other.mean.shape[1], len(other.free)
    upper, own = np.triu_indices(d), np.triu_indices(f)
    place = np.zeros((d, d), dtype=np.int64)
    place[upper] = np.arange(len(upper[0]))
    moments = other.mean[:, upper[0]] * other.mean[:, upper[1]]
    moments[:, place[other.free[own[0]], other.free[own[1]]]] += other.cov[:, own[0], own[1]]
    mean, weight = other.mean, np.ones(len(other.mean))
    if precision is not None:
        moments, mean, weight = moments * precision[:, None], mean * precision[:, None], precision
    packed = events.ones @ moments
    square = np.empty((len(packed), d, d))
    square[:, upper[0], upper[1]] = packed
    square[:, upper[1], upper[0]] = packed
    return Sums(square, events.values @ mean, events.squares @ weight)


def condition(sums: Sums, given: Floats, free: Ints, prior: Floats, before: Floats) -> Side:
    """Beliefs after the events: coordinates `free`, ascending, ~ N(prior, before), the others as in `given`.

    The free part has precision before^-1 + Q_ff and is pulled by r_f - Q_fx x, with Q and r the sums.
    `before` is one covariance for all, or one for each.
    """
    fixed = np.setdiff1d(np.arange(given.shape[1]), free)
    own = sums.square[:, free[:, None], free]
    pull = sums.cross[:, free] - np.einsum("nfx,nx->nf", sums.square[:, free[:, None], fixed], given[:, fixed])
    precision = np.linalg.inv(before)
    covariance = np.linalg.inv(own + precision)
    mean = given.copy()
    mean[:, free] = np.einsum("nfg,ng->nf", covariance, pull + (precision @ prior[..., None])[..., 0])
    return Side(mean, covariance, free)


def expected_error(sums: Sums, side: Side) -> Floats:
    """[n] the sum of E (y - w . a)^2 over the events of each vector, in the units of the sums."""
    fitted = np.einsum("nd,nde,ne->n", side.mean, sums.square, side.mean, optimize=True)
    unsure = (side.cov * sums.square[:, side.free[:, None], side.free]).sum((1, 2))
    error: Floats = sums.energy - 2 * (side.mean * sums.cross).sum(1) + fitted + unsure
    return error


def moments(user: Side, item: Side, who: Ints, what: Ints) -> tuple[Floats, Floats]:
    """Mean and variance of w . a for pairs; the two sides are independent."""
    mean = (user.mean[who] * item.mean[what]).sum(1)
    variance = np.empty(len(mean))
    for one, rows in each_user(who):
        w, v, a = user.mean[one], user.cov[one], item.mean[what[rows]][:, user.free]
        second = np.outer(w, w)
        second[user.free[:, None], user.free] += v
        unsure = second[item.free[:, None], item.free].ravel()
        # a' V a + tr S (w w' + V)
        variance[rows] = ((a @ v) * a).sum(1) + item.cov[what[rows]].reshape(len(rows), -1) @ unsure
    return mean, variance


def each_user(who: Ints) -> Iterator[tuple[int, Ints]]:
    """Each user that is there, and the places of that user's pairs."""
    order = np.argsort(who, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(who[order])) + 1) if len(order) else []:
        yield int(who[rows[0]]), rows
