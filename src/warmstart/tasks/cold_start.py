"""Cold-start users: who is trained on, who is new, and what each new user shows before being judged.

The protocol of Yu et al. (2021), appendix D.1, as one function:

    1. users by number of events; the `lightest` share of them is kept, ties broken by a hash of the name
    2. users with fewer than `least` events, or with an age outside `ages`, are left out
    3. 7 : 1 : 2 of users train, choose and test
    4. of each user's events a `support` share is shown and the rest is the query, at random or by time

Everything is drawn by hashes of the seed and of names, so it depends on no order of rows and no library.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from warmstart.core import InputError
from warmstart.engine.files import read_json, write_json
from warmstart.tasks.cells import Ints
from warmstart.tasks.ratings import Ratings, join_ratings, take_rows, take_users
from warmstart.tasks.roles import require
from warmstart.tasks.split import digest, split_tasks

SIZES = (0, 1, 2, 5, 10, 20)  # support events at which errors are reported, besides all of them


@dataclass(frozen=True)
class Protocol:
    lightest: float = 0.8  # share of users kept: those with the fewest events
    least: int = 2  # events that a user must have
    ages: tuple[float, float] | None = None  # a user whose age is missing or outside is left out
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)  # of users: training, validation, test
    support: float = 0.8  # share of a user's events that is shown
    by_time: bool = False  # shown are a user's first events, not random ones
    seed: int = 0


PAPER = Protocol()  # MovieLens-1M; its age 1 is a code for "under 18", so there is no rule for ages
PAPER_BOOKS = Protocol(ages=(10, 100))
BOOKS = Protocol(lightest=1.0, least=10)  # users who rated enough to tell methods apart
CLICKS = Protocol(lightest=1.0, least=10, by_time=True)


class Users(NamedTuple):
    """What some users show and what they are judged on: the same users in both."""

    shown: Ratings
    asked: Ratings
    rank: Ints  # [shown] place of each shown event in the order in which events are revealed, from 0


class Parts(NamedTuple):
    train: Users
    validation: Users
    test: Users


def split_users(ratings: Ratings, protocol: Protocol = PAPER) -> Parts:
    """Training, validation and test users by the protocol."""
    if not (0 < protocol.lightest <= 1 and 0 < protocol.support < 1 and protocol.least >= 2):
        got = f"{protocol.lightest}, {protocol.support} and {protocol.least}"
        raise InputError("shares between 0 and 1 and users of at least 2 events", got, "correct the protocol")
    kept = eligible(ratings, protocol)
    if len(kept) < 3:
        expected = f"at least three users with {protocol.least} events or more"
        raise InputError(expected, f"{len(kept)}", "pass more events, or loosen the protocol's filters")
    place = dict(zip(ratings.users.index[kept], kept.tolist(), strict=True))
    split = split_tasks(place, protocol.fractions, protocol.seed)
    return Parts(*(reveal(take_users(ratings, np.array([place[name] for name in part])), protocol) for part in split))


def eligible(ratings: Ratings, protocol: Protocol) -> Ints:
    """The users that the protocol keeps, steps 1 and 2."""
    count = np.bincount(ratings.user, minlength=len(ratings.users))
    chance = _hashes(ratings.users.index, f"{protocol.seed}:lightest")
    order = np.lexsort((chance, count))[: round(protocol.lightest * len(count))]
    kept = order[count[order] >= protocol.least]
    if protocol.ages is not None:
        require(["age"], ratings.users.columns, "table of users")
        age = pd.to_numeric(ratings.users["age"]).to_numpy(dtype=float)[kept]
        with np.errstate(invalid="ignore"):
            kept = kept[(age >= protocol.ages[0]) & (age <= protocol.ages[1])]
    return np.sort(kept)


def reveal(ratings: Ratings, protocol: Protocol) -> Users:
    """Step 4; at least one event of each user is shown and one is asked."""
    place = _order(ratings, protocol)
    count = np.bincount(ratings.user, minlength=len(ratings.users))
    shown = place < np.clip(np.round(protocol.support * count), 1, count - 1)[ratings.user]
    return Users(take_rows(ratings, shown), take_rows(ratings, ~shown), place[shown])


def first(users: Users, size: int) -> Users:
    """With at most `size` shown events of each user; the query stays."""
    kept = users.rank < size
    return Users(take_rows(users.shown, kept), users.asked, users.rank[kept])


def everything(users: Users) -> Ratings:
    """All events of the users, shown and asked, by user: what training may use of training users."""
    return join_ratings(users.shown, users.asked)


def save_parts(path: str | Path, parts: Parts, protocol: Protocol) -> None:
    """The protocol with its seed and the names of the users it led to."""
    names = {name: part.shown.users.index.tolist() for name, part in parts._asdict().items()}
    write_json(Path(path), {"protocol": asdict(protocol), "users": names})


def load_protocol(path: str | Path, ratings: Ratings) -> Protocol:
    """The protocol that was saved; data in which it leads to other users is refused."""
    content = read_json(Path(path))
    try:
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in content["protocol"].items()
        }
        protocol = Protocol(**given)
        wanted = {name: list(content["users"][name]) for name in Parts._fields}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"a protocol and its users in {path}", "something else", "save the split again") from error
    found = split_users(ratings, protocol)
    if any(part.shown.users.index.tolist() != wanted[name] for name, part in found._asdict().items()):
        raise InputError(f"the data that the users of {path} were split from", "other data", "pass that data")
    return protocol


def _order(ratings: Ratings, protocol: Protocol) -> Ints:
    """Each event's place among its user's: by time (as they lie), or by a hash of seed, user and item."""
    if protocol.by_time:
        rows = np.arange(len(ratings.user))
    else:
        people, things = (
            _hashes(table.index, f"{protocol.seed}:{what}")
            for table, what in ((ratings.users, "user"), (ratings.items, "item"))
        )
        again = pd.DataFrame({"u": ratings.user, "i": ratings.item}).groupby(["u", "i"]).cumcount().to_numpy()
        mixed = _mix(people[ratings.user] ^ _mix(things[ratings.item] + again.astype(np.uint64)))
        rows = np.lexsort((mixed, ratings.user))
    starts = np.searchsorted(ratings.user[rows], np.arange(len(ratings.users)))
    place = np.empty(len(rows), dtype=np.int64)
    place[rows] = np.arange(len(rows)) - starts[ratings.user[rows]]
    return place


def _hashes(names: pd.Index[str], salt: str) -> NDArray[np.uint64]:
    return np.array([digest(f"{salt}:{name}") for name in names], dtype=np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
