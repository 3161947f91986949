"""The embedded datasets as tables, in the form a user would have them."""

from __future__ import annotations

import pandas as pd
import torch

from warmstart.tasks.films import simulate_films
from warmstart.tasks.population import frames, population
from warmstart.tasks.sine import DEFAULT, draw

SHOWN = 10  # support rows of the new task


def embedded(name: str, tasks: int, seed: int = 0) -> dict[str, pd.DataFrame]:
    """rows, tasks where something is known of them, and support and query of one task that is not among the rows.

    Of `films`: ratings, users, films, and ratings and films asked about of a user who is not among the ratings.
    """
    if name == "films":
        return _films(tasks + 1, seed)
    if name == "sine":
        rows, about = _sines(tasks + 1, seed), {}
    else:
        rows, known = frames(population(seed, train=tasks, validation=1, test=1))
        about = {"tasks": known.drop(columns="split")}
    own = rows["task"] == rows["task"].iloc[-1]
    new = rows[own]
    return {
        "rows": rows[~own],
        **about,
        "support": new.iloc[:SHOWN],
        "query": new.iloc[SHOWN:].drop(columns="target"),
    }


def _films(users: int, seed: int) -> dict[str, pd.DataFrame]:
    made = simulate_films(users, seed=seed)
    new = made.users["user"].iloc[-1]
    own = made.ratings["user"] == new
    given = made.ratings[own]
    return {
        "ratings": made.ratings[~own],
        "users": made.users,
        "films": made.films,
        "new_user": given.iloc[:SHOWN],
        "query": given.iloc[SHOWN:][["user", "film"]],
    }


def _sines(tasks: int, seed: int, rows: int = 30) -> pd.DataFrame:
    drawn = draw(DEFAULT, tasks, rows, 0, torch.Generator().manual_seed(seed)).support
    names = [f"sine-{i:04d}" for i in range(tasks) for _ in range(rows)]
    return pd.DataFrame({"task": names, "x": drawn.x.flatten().numpy(), "target": drawn.y.flatten().numpy()})
