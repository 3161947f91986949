"""Simulated film ratings: what a shop would have, made so that everything about preferences can be tried offline.

    value = 3.3 + quality_i + mildness_u + factor_i . taste_u + e, rounded to 1 ... 5

Genres tell half of a film's factors and a profile some of a user's taste; people watch what is popular and what
they like, so which films were watched tells of their taste too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

GENRES = ("action", "children", "comedy", "crime", "documentary", "drama", "horror", "musical", "romance", "war")
JOBS = ("artist", "clerk", "doctor", "driver", "student", "teacher")
FIRST, LAST = ("Silent", "Broken", "Golden", "Distant", "Last"), ("River", "Letter", "Harbour", "Winter", "Stranger")
FACTORS = 4


class Films(NamedTuple):
    ratings: pd.DataFrame  # user, film, rating, time
    users: pd.DataFrame  # user, age, job
    films: pd.DataFrame  # film, title, genres, year


def simulate_films(users: int, films: int = 300, seed: int = 0, fewest: int = 12, most: int = 60) -> Films:
    """Each user rates between `fewest` and `most` films, in the order of time."""
    draw = np.random.default_rng(seed)
    genre = draw.random((films, len(GENRES))) < 0.18
    genre[np.arange(films), draw.integers(len(GENRES), size=films)] = True
    factor = 0.5 * draw.normal(size=(films, FACTORS)) + genre @ draw.normal(size=(len(GENRES), FACTORS)) * 0.4
    job, age = draw.integers(len(JOBS), size=users), draw.integers(16, 75, size=users)
    old = ((age - 45) / 17)[:, None] * draw.normal(size=FACTORS)
    taste = 0.35 * (draw.normal(size=(len(JOBS), FACTORS))[job] + old + draw.normal(size=(users, FACTORS)))
    quality, mildness = 0.4 * draw.normal(size=films), 0.4 * draw.normal(size=users)
    popular = -0.6 * np.log(1 + draw.permutation(films))
    count = np.minimum(draw.integers(fewest, most + 1, size=users), films)
    like = factor @ taste.T
    chosen = [_choose(popular + like[:, user], int(count[user]), draw) for user in range(users)]
    who, what = np.repeat(np.arange(users), count), np.concatenate(chosen)
    value = 3.3 + quality[what] + mildness[who] + like[what, who] + 0.6 * draw.normal(size=len(who))
    names, titles = np.array([f"u{i:05d}" for i in range(users)]), np.array([f"f{i:05d}" for i in range(films)])
    ratings = pd.DataFrame(
        {
            "user": names[who],
            "film": titles[what],
            "rating": np.clip(np.round(value), 1, 5).astype(int),
            "time": 1_700_000_000 + 60 * np.arange(len(who)),
        }
    )
    listed = ["|".join(np.array(GENRES)[row]) for row in genre]
    return Films(
        ratings,
        pd.DataFrame({"user": names, "age": age, "job": np.array(JOBS)[job]}),
        pd.DataFrame(
            {"film": titles, "title": _titles(films), "genres": listed, "year": draw.integers(1950, 2024, films)}
        ),
    )


def _choose(weight: np.ndarray[tuple[int], np.dtype[np.float64]], count: int, draw: np.random.Generator) -> list[int]:
    """Without replacement, by log weights: the largest of weight + Gumbel noise."""
    return [int(i) for i in np.argsort(-(weight + draw.gumbel(size=len(weight))))[:count]]


def _titles(count: int) -> list[str]:
    pairs = [f"{a} {b}" for b in LAST for a in FIRST]
    return [
        f"The {pairs[i % len(pairs)]}" + (f" {i // len(pairs) + 1}" if i >= len(pairs) else "") for i in range(count)
    ]
