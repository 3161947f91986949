"""Simulated films: tables as a shop would have them, with something to find in each."""

import numpy as np
import pandas as pd

from warmstart.tasks.embedded import embedded
from warmstart.tasks.films import GENRES, simulate_films


def test_tables_fit_together_and_depend_on_the_seed_alone():
    made = simulate_films(50, 30, seed=3, fewest=5, most=9)
    count = made.ratings.groupby("user").size()
    assert count.between(5, 9).all() and len(count) == 50 and not made.ratings[["user", "film"]].duplicated().any()
    assert set(made.ratings["film"]) <= set(made.films["film"]) and made.ratings["rating"].isin([1, 2, 3, 4, 5]).all()
    assert made.films["title"].is_unique and set("|".join(made.films["genres"]).split("|")) <= set(GENRES)
    assert made.ratings["time"].is_monotonic_increasing
    again = simulate_films(50, 30, seed=3, fewest=5, most=9)
    assert all(one.equals(other) for one, other in zip(made, again, strict=True))
    assert not simulate_films(50, 30, seed=4, fewest=5, most=9).ratings.equals(made.ratings)


def test_users_films_and_taste_explain_part_of_the_ratings():
    made = simulate_films(600, 60, seed=0)
    rows = made.ratings.merge(made.films).merge(made.users)
    total = rows["rating"].var()
    for column in ("user", "film"):
        assert (rows["rating"] - rows.groupby(column)["rating"].transform("mean")).var() < 0.95 * total
    left = rows["rating"] - rows.groupby("film")["rating"].transform("mean")
    left -= left.groupby(rows["user"]).transform("mean")
    by_taste = left.groupby([rows["job"], rows["film"]]).transform("mean")
    shuffled = left.groupby([rows["job"].sample(frac=1, random_state=0).to_numpy(), rows["film"]]).transform("mean")
    assert by_taste.var() > 1.5 * shuffled.var()
    assert np.corrcoef(rows.groupby("film").size(), rows.groupby("film")["rating"].mean())[0, 1] > 0  # chosen as liked


def test_as_an_embedded_dataset_one_user_is_new():
    files = embedded("films", 30, 0)
    assert list(files) == ["ratings", "users", "films", "new_user", "query"]
    (new,) = set(files["new_user"]["user"])
    assert new not in set(files["ratings"]["user"]) and new in set(files["users"]["user"])
    assert files["ratings"]["user"].nunique() == 30 and len(files["new_user"]) == 10
    both = pd.concat([files["new_user"], files["query"]])
    assert not both["film"].duplicated().any() and "rating" not in files["query"]
