"""Two sides that multiply: y = w_u . a_i + e with Gaussian beliefs about both vectors, updated in turn.

    w_u = [1, own coordinates],      a_i = [own coordinates, some of them fixed],      e ~ N(0, noise_i)

What the events of one side say of the other adds up, so it is kept as sums; given those sums the belief is
Gaussian in closed form. With both sides taken as independent this is the mean-field bound of the
evidence (Bishop, 1999; Lim and Teh, 2007), whose every step is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Floats = NDArray[np.float64]


class Side(NamedTuple):
    """Gaussian beliefs about the vectors of users or of items; a fixed coordinate has no variance."""

    mean: Floats  # [n, d]
    cov: Floats  # [n, d, d]


class Sums(NamedTuple):
    """What events say of n vectors, given the other side's: sum v v' / noise, sum y v / noise, sum y^2 / noise."""

    square: Floats  # [n, d, d]
    cross: Floats  # [n, d]
    energy: Floats  # [n]


def events(rows: NDArray[Any], columns: NDArray[Any], values: Floats, shape: tuple[int, int]) -> tuple[Any, Any]:
    """Sparse matrices of ones and of values, [rows, columns]."""
    ones = csr_array((np.ones(len(values)), (rows, columns)), shape=shape)
    return ones, csr_array((values, (rows, columns)), shape=shape)


def gather(ones: Any, values: Any, other: Side, precision: Floats | None = None) -> Sums:
    """Sums over events of what the other side is believed to be; `precision` of its events, 1 / noise."""
    d = other.mean.shape[1]
    upper = np.triu_indices(d)
    moments = other.mean[:, upper[0]] * other.mean[:, upper[1]] + other.cov[:, upper[0], upper[1]]
    mean = other.mean
    if precision is not None:
        moments, mean = moments * precision[:, None], mean * precision[:, None]
    packed = ones @ moments
    square = np.empty((len(packed), d, d))
    square[:, upper[0], upper[1]] = packed
    square[:, upper[1], upper[0]] = packed
    weight = np.ones(len(mean)) if precision is None else precision
    return Sums(square, values @ mean, (values * values) @ weight)


def condition(sums: Sums, given: Floats, free: NDArray[Any], prior: Floats, before: Floats) -> Side:
    """Beliefs after the events: coordinates `free` ~ N(prior, before), the others as in `given`.

    The free part has precision before^-1 + Q_ff and is pulled by r_f - Q_fx x, with Q and r the sums.
    """
    fixed = np.setdiff1d(np.arange(given.shape[1]), free)
    own = sums.square[:, free[:, None], free]
    pull = sums.cross[:, free] - np.einsum("nfx,nx->nf", sums.square[:, free[:, None], fixed], given[:, fixed])
    precision = np.linalg.inv(before)
    covariance = np.linalg.inv(own + precision)
    mean, cov = given.copy(), np.zeros((*given.shape, given.shape[1]))
    mean[:, free] = np.einsum("nfg,ng->nf", covariance, pull + (precision @ prior[..., None])[..., 0])
    cov[:, free[:, None], free] = covariance
    return Side(mean, cov)


def expected_error(sums: Sums, side: Side) -> Floats:
    """[n] the sum of E (y - w . a)^2 over the events of each vector, in the units of the sums."""
    second = side.mean[:, :, None] * side.mean[:, None, :] + side.cov
    error: Floats = sums.energy - 2 * (side.mean * sums.cross).sum(1) + (second * sums.square).sum((1, 2))
    return error


def moments(user: Side, item: Side, who: NDArray[Any], what: NDArray[Any]) -> tuple[Floats, Floats]:
    """Mean and variance of w . a for pairs; the two sides are independent."""
    mean = (user.mean[who] * item.mean[what]).sum(1)
    variance = np.empty(len(mean))
    for start in range(0, len(mean), 20_000):  # pairs of matrices are large
        part = slice(start, start + 20_000)
        w, a, v, s = user.mean[who[part]], item.mean[what[part]], user.cov[who[part]], item.cov[what[part]]
        # a' V a + w' S w + tr V S
        variance[part] = np.einsum("nd,nde,ne->n", a, v, a, optimize=True)
        variance[part] += np.einsum("nde,nde->n", s, w[:, :, None] * w[:, None, :] + v)
    return mean, variance
