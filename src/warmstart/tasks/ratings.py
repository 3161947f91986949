"""Ratings or clicks: who gave what to which item and when, with a table of users and one of items.

    a publisher's archive --its loader-->  \\
                                            Ratings
    anybody's tables ------read_ratings-->  /

What was put right on the way (repeated ratings, ids that a side table misses, times out of order) is
kept as sentences in `notes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from warmstart.core import Batch, InputError, make_batch
from warmstart.tasks.cells import Floats, Ints, cell_error, numbers, ranks, texts
from warmstart.tasks.roles import Roles, require
from warmstart.tasks.side_tables import keys
from warmstart.tasks.table import Source, read_table

EVENT = ("user", "item", "value", "time")


class Ratings(NamedTuple):
    """Events in the order of users, a user's own in that of time. Build it with `make_ratings`."""

    user: Ints  # [n] row of `users`
    item: Ints  # [n] row of `items`
    value: Floats  # [n] the rating, or 1 for a click and 0 for none
    time: Floats  # [n] 0 where no time is known
    context: pd.DataFrame  # [n, c] what else is known of an event before its value is
    users: pd.DataFrame  # profiles; the index holds the users' names
    items: pd.DataFrame  # the whole catalogue, also what nobody rated
    scale: tuple[float, float]  # least and greatest value there can be
    notes: tuple[str, ...] = ()


def make_ratings(
    events: pd.DataFrame,
    users: pd.DataFrame,
    items: pd.DataFrame,
    scale: tuple[float, float] | None = None,
    where: str = "ratings",
    keep_repeats: bool = False,
) -> Ratings:
    """From events with columns user, item, value and, where known, time; other columns are context.

    `users` and `items` are indexed by name; names are compared as texts. A user's second rating of an
    item replaces the first unless `keep_repeats`. Users without an event are left out.
    """
    require(EVENT[:3], events.columns, where)
    if not len(events):
        raise InputError(f"ratings in the {where}", "none", "pass at least one")
    value = numbers(events["value"], where)
    _check_values(events["value"], value, scale, where)
    raters, names = keys(events["user"], where)
    rated, titles = keys(events["item"], where)
    timed = "time" in events
    time = np.asarray(ranks(events["time"], where), dtype=np.float64) if timed else np.zeros(len(events))
    notes = []
    order = np.lexsort((time, raters))
    if timed and _falls(raters, time):
        notes.append(f"events of the {where} were not in the order of time within a user, and were sorted")
    if not keep_repeats:
        last = ~pd.DataFrame({"u": raters[order], "i": rated[order]}).duplicated(keep="last").to_numpy()
        if not last.all():
            notes.append(f"{int((~last).sum()):,} repeated ratings of an item by a user: the last one was kept")
        order = order[last]
    people, missing_users = _aligned(users, names, where, "users", keep=False)
    things, missing_items = _aligned(items, titles, where, "items", keep=True)
    notes += [note for note in (missing_users, missing_items) if note]
    place = things.index.get_indexer(pd.Index(titles, dtype=object)).astype(np.int64)
    context = events.drop(columns=[name for name in EVENT if name in events]).iloc[order].reset_index(drop=True)
    limits = (float(value.min()), float(value.max())) if scale is None else scale
    return Ratings(
        raters[order], place[rated[order]], value[order], time[order], context, people, things, limits, tuple(notes)
    )


def read_ratings(
    rows: Source,
    roles: Roles,
    task_table: Source | None = None,
    item_table: Source | None = None,
    scale: tuple[float, float] | None = None,
) -> Ratings:
    """The table door: `roles` names the columns of users (task), items, values (target) and times.

    Without a scale, the least and the greatest value of the table are its ends. Other columns of the
    rows are context, those of the side tables describe users and items.
    """
    frame = read_table(rows, "ratings")
    require([roles.task, roles.target, roles.item, roles.time], frame.columns, "ratings")
    if roles.item is None:
        raise InputError("an item column", "none", "name it in the roles")
    new = {roles.task: "user", roles.item: "item", roles.target: "value", roles.time: "time"}
    events = frame.drop(columns=list(roles.drop)).rename(columns={old: name for old, name in new.items() if old})
    users, items = (
        pd.DataFrame() if table is None else by_name(read_table(table, where), key, where, roles.drop)
        for table, key, where in ((task_table, roles.task, "task table"), (item_table, roles.item, "item table"))
    )
    return make_ratings(events, users, items, scale)


def by_name(table: pd.DataFrame, key: str, where: str, drop: Sequence[str] = ()) -> pd.DataFrame:
    """A side table indexed by its key column, as text; each name once."""
    require([key], table.columns, where)
    codes, names = keys(table[key], where)
    if len(names) < len(codes):
        again = int(pd.Series(codes).duplicated().argmax())
        raise cell_error("each name once", table[key], again, where, "keep one row for each")
    gone = [key, *(name for name in drop if name in table)]
    return table.drop(columns=gone).set_axis(pd.Index(names, dtype=object), axis=0)


def take_rows(ratings: Ratings, rows: NDArray[Any]) -> Ratings:
    """Some events, by mask or by place, of the same users and items."""
    kept = np.flatnonzero(rows) if rows.dtype == bool else rows
    return ratings._replace(
        user=ratings.user[kept],
        item=ratings.item[kept],
        value=ratings.value[kept],
        time=ratings.time[kept],
        context=ratings.context.iloc[kept].reset_index(drop=True),
    )


def take_users(ratings: Ratings, users: Ints) -> Ratings:
    """The events of some users alone, who are numbered anew in the order given; the items stay."""
    place = np.full(len(ratings.users), -1)
    place[users] = np.arange(len(users))
    kept = np.flatnonzero(place[ratings.user] >= 0)
    kept = kept[np.argsort(place[ratings.user[kept]], kind="stable")]
    part = take_rows(ratings, kept)
    return part._replace(user=place[part.user], users=ratings.users.iloc[users])


def _check_values(column: pd.Series[Any], value: Floats, scale: tuple[float, float] | None, where: str) -> None:
    if np.isnan(value).any():
        raise cell_error("a value", column, int(np.isnan(value).argmax()), where, "fill it in or remove the row")
    if scale is None:
        return
    out = (value < scale[0]) | (value > scale[1])
    if out.any():
        expected = f"a value on the scale {scale[0]:g} to {scale[1]:g}"
        raise cell_error(expected, column, int(out.argmax()), where, "correct it, or pass the scale it is on")


def _falls(user: Ints, time: Floats) -> bool:
    """Whether somewhere an event of a user comes before one that is earlier."""
    order = np.argsort(user, kind="stable")
    same = user[order][1:] == user[order][:-1]
    return bool((same & (np.diff(time[order]) < 0)).any())


def _aligned(table: pd.DataFrame, names: list[str], where: str, what: str, keep: bool) -> tuple[pd.DataFrame, str]:
    """The table with a row for each name, empty where it has none; `keep` leaves the other rows after them."""
    _, own = texts(pd.Series(table.index, name=what), what)
    index = pd.Index(own, dtype=object)
    if not index.is_unique or len(index) != len(table):
        raise InputError(f"each name once in the table of {what}", "a name twice or none", "keep one row for each")
    wanted = pd.Index(names, dtype=object)
    absent = int((~wanted.isin(index)).sum()) if len(table) else 0
    note = f"{absent:,} of {len(names):,} {what} of the {where} are not in the table of {what}" if absent else ""
    if keep:
        wanted = index.append(wanted.difference(index, sort=False))
    return table.set_axis(index, axis=0).reindex(wanted), note


def to_stack(ratings: Ratings, values: Tensor) -> Tensor:
    """One value per event as [users, most events of a user], zeros after the last."""
    return _stack(ratings, values)[0]


def to_batch(ratings: Ratings) -> Batch:
    """The events of each user as one padded row of a stack, for the metrics."""
    y, mask = _stack(ratings, torch.from_numpy(ratings.value))
    item, _ = _stack(ratings, torch.from_numpy(ratings.item))
    return make_batch({"item": item}, y, mask=mask)


def places(ratings: Ratings) -> Ints:
    """[n] which of its user's events each is, from 0: where `to_stack` puts it."""
    order = np.argsort(ratings.user, kind="stable")
    user = ratings.user[order]
    place = np.empty_like(order)
    place[order] = np.arange(len(user)) - np.searchsorted(user, user)
    return place


def _stack(ratings: Ratings, values: Tensor) -> tuple[Tensor, Tensor]:
    count = np.bincount(ratings.user, minlength=len(ratings.users))
    rows, columns = torch.from_numpy(ratings.user), torch.from_numpy(places(ratings))
    stacked = values.new_zeros(len(count), int(count.max(initial=0)))
    mask = torch.zeros(stacked.shape, dtype=torch.float64)
    stacked[rows, columns] = values
    mask[rows, columns] = 1.0
    return stacked, mask
