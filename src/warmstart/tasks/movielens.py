"""MovieLens-100K and -1M, from the publisher's zip or the folder it unzips to.

Items carry a title, a year and genres; beside MovieLens-1M, where `ml-1m_melu_extra.zip` lies with it,
also the director, the actors and the age rating that Lee et al. (2019, MeLU) collected. Users carry
gender, age (1M: the lower end of a range, where 1 stands for under 18), occupation and zip code.
Harper and Konstan, 2015. Research use only, no redistribution: see grouplens.org/datasets/movielens.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from warmstart.tasks.archive import read_member
from warmstart.tasks.data_folder import find_files
from warmstart.tasks.lines import read_lines
from warmstart.tasks.ratings import Ratings, by_name, make_ratings

SCALE = (1.0, 5.0)
EXTRA = "ml-1m_melu_extra.zip"
GENRES = (
    *(
        "unknown",
        "Action",
        "Adventure",
        "Animation",
        "Children's",
        "Comedy",
        "Crime",
        "Documentary",
        "Drama",
        "Fantasy",
    ),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
EVENT: dict[str, type] = {"user": int, "item": int, "value": int, "time": int}
EXTRA_COLUMNS = ("item", "title", "year", "rate", "released", "genre", "director", "writer", "actors", "plot", "poster")


def read_movielens_1m(path: str | Path, extra: bool = True) -> Ratings:
    """1,000,209 ratings of 6,040 users; `extra` asks for MeLU's side file, where there is one."""
    place = _find(path, "ml-1m")

    def read(name: str, columns: dict[str, type]) -> pd.DataFrame:
        return read_lines(read_member(place, name), f"{name} of {place}", "::", columns)

    events = read("ratings.dat", EVENT)
    users = read("users.dat", {"user": int, "gender": str, "age": int, "occupation": int, "zip": str})
    movies = read("movies.dat", {"item": int, "title": str, "genre": str})
    movies["year"] = _year(movies["title"])
    items = by_name(movies, "item", f"file movies.dat of {place}")
    more = _extra(place) if extra else None
    if more is not None:
        items = items.join(more)
    people = by_name(_coded(users.astype({"age": str, "occupation": str})), "user", f"file users.dat of {place}")
    return make_ratings(events, people, items, SCALE, f"file ratings.dat of {place}")


def read_movielens_100k(path: str | Path) -> Ratings:
    """100,000 ratings of 943 users."""
    place = _find(path, "ml-100k")

    def read(name: str, separator: str, columns: dict[str, type]) -> pd.DataFrame:
        return read_lines(read_member(place, name), f"{name} of {place}", separator, columns)

    events = read("u.data", "\t", EVENT)
    users = read("u.user", "|", {"user": int, "age": int, "gender": str, "occupation": str, "zip": str})
    about: dict[str, type] = {"item": int, "title": str, "released": str, "video": str, "url": str}
    movies = read("u.item", "|", about | dict.fromkeys(GENRES, int))
    marks = movies[list(GENRES)].to_numpy(dtype=bool)
    movies["genre"] = ["|".join(genre for genre, mark in zip(GENRES, row, strict=True) if mark) for row in marks]
    movies["year"] = _year(movies["title"])
    items = by_name(movies[["item", "title", "year", "genre"]], "item", f"file u.item of {place}")
    people = by_name(_coded(users), "user", f"file u.user of {place}")
    return make_ratings(events, people, items, SCALE, f"file u.data of {place}")


def _coded(users: pd.DataFrame) -> pd.DataFrame:
    """Texts as categories, so that none is taken for a number: ages and occupations of 1M are codes."""
    return users.astype({name: "category" for name in users if users[name].dtype == object})


def _find(path: str | Path, name: str) -> Path:
    """The zip itself, a folder that holds it, or the unzipped folder."""
    root = Path(path)
    if root.is_file() or (root.is_dir() and root.name == name):
        return root
    return find_files(root, "movielens", [[f"{name}.zip"], [name]])[0]


def _year(title: pd.Series[str]) -> pd.Series[float]:
    """The year in brackets at the end of a title."""
    return pd.to_numeric(title.str.extract(r"\((\d{4})\)\s*$")[0])


def _extra(place: Path) -> pd.DataFrame | None:
    """Director, actors and age rating by movie, each several values separated by |."""
    beside = place.parent / EXTRA
    inside = place / "movies_extrainfos.dat"
    if not (beside.is_file() or inside.is_file()):
        return None
    source = place if inside.is_file() else beside
    told = f"movies_extrainfos.dat of {source}"
    columns = dict.fromkeys(EXTRA_COLUMNS, str) | {"item": int}
    found = read_lines(read_member(source, "movies_extrainfos.dat"), told, "::", columns, "utf-8")
    table = by_name(found, "item", f"file {told}")
    several = {name: table[name].str.replace(r"\s*,\s*", "|", regex=True) for name in ("director", "actors")}
    return pd.DataFrame({**several, "rate": table["rate"]}).replace({"N/A": None, "nan": None})
