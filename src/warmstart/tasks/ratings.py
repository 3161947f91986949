"""Ratings or clicks: who gave what to which item and when, with a table of users and one of items.

    a publisher's archive --its loader-->  \\
                                            Ratings
    anybody's tables ------read_ratings-->  /

What was put right on the way (repeated ratings, ids that a side table misses, times out of order) is
kept as sentences in `notes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from warmstart.core import Batch, InputError, make_batch
from warmstart.tasks.cells import Floats, Ints, cell_error, is_list, numbers, ranks, texts
from warmstart.tasks.clicks import EVENTS, kind_of, read_clicks
from warmstart.tasks.clicks import SCALE as CLICKED
from warmstart.tasks.profiles import fit_table
from warmstart.tasks.roles import Roles, require
from warmstart.tasks.side_tables import keys
from warmstart.tasks.table import Source, read_table

EVENT = ("user", "item", "value", "time")
NAMES = {name: name for name in EVENT}


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
    kind: str = "squared"  # ratings, or "binary": clicks


def make_ratings(
    events: pd.DataFrame,
    users: pd.DataFrame,
    items: pd.DataFrame,
    scale: tuple[float, float] | None = None,
    where: str = "ratings",
    called: Mapping[str, str] = NAMES,
    kind: str = "squared",
) -> Ratings:
    """From events with columns user, item, value and, where known, time; other columns are context.

    `users` and `items` are indexed by name; names are compared as texts. A user's second rating of an
    item replaces the first; of clicks (kind binary) every impression counts. Users without an event are left out.
    Messages name the columns as they were `called`.
    """
    scale = CLICKED if kind == "binary" else scale
    kept = _kept(events, scale, where, called, kind)
    people, missing_users = _aligned(users, kept.users, where, "users", keep=False)
    things, missing_items = _aligned(items, kept.items, where, "items", keep=True)
    notes = (*kept.notes, *(note for note in (missing_users, missing_items) if note))
    place = things.index.get_indexer(pd.Index(kept.items, dtype=object)).astype(np.int64)
    context = events.drop(columns=[name for name in EVENT if name in events]).iloc[kept.row].reset_index(drop=True)
    limits = (float(kept.value.min()), float(kept.value.max())) if scale is None else scale
    return Ratings(kept.user, place[kept.item], kept.value, kept.time, context, people, things, limits, notes, kind)


def newcomers(
    events: pd.DataFrame | None,
    users: pd.DataFrame,
    items: pd.DataFrame,
    scale: tuple[float, float],
    called: Mapping[str, str] = NAMES,
    kind: str = "squared",
    context: Sequence[str] = (),
) -> Ratings:
    """Events of users whose profiles are given, some perhaps empty, with items of a catalogue that is known.

    Of other columns those of the context are kept, where they are there.

    Events of other users are passed over; those of other items are left out, which the notes say.
    """
    if events is None or not len(events):
        none = np.zeros(0, dtype=np.int64)
        return Ratings(none, none, np.zeros(0), np.zeros(0), pd.DataFrame(), users, items, scale, kind=kind)
    kept = _kept(events, scale, "support", called, kind)
    who = users.index.get_indexer(pd.Index(kept.users, dtype=object))[kept.user]
    what = items.index.get_indexer(pd.Index(kept.items, dtype=object))[kept.item]
    unknown = np.unique(kept.item[what < 0])
    notes = list(kept.notes)
    if len(unknown):
        first = repr(kept.items[unknown[0]])
        left = f"their {EVENTS[kind]} were left out"
        notes.append(f"{len(unknown):,} items that the model does not know, {first} first: {left}")
    rows = np.flatnonzero((who >= 0) & (what >= 0))
    rows = rows[np.argsort(who[rows], kind="stable")]
    value, time = kept.value[rows], kept.time[rows]
    around = events[[name for name in context if name in events]].iloc[kept.row[rows]].reset_index(drop=True)
    return Ratings(who[rows], what[rows], value, time, around, users, items, scale, tuple(notes), kind)


class _Kept(NamedTuple):
    """Events that count, by user and time."""

    row: Ints  # of the table
    user: Ints  # places in `users`
    item: Ints
    value: Floats
    time: Floats
    users: list[str]
    items: list[str]
    notes: tuple[str, ...]


def _kept(
    events: pd.DataFrame,
    scale: tuple[float, float] | None,
    where: str,
    called: Mapping[str, str],
    kind: str,
) -> _Kept:
    require(EVENT[:3], events.columns, where)
    if not len(events):
        raise InputError(f"{EVENTS[kind]} in the {where}", "none", "pass at least one")
    column = {name: events[name].rename(called[name]) for name in EVENT if name in events}
    value = (read_clicks if kind == "binary" else numbers)(column["value"], where)
    _check_values(column["value"], value, scale, where)
    raters, names = keys(column["user"], where)
    rated, titles = keys(column["item"], where)
    timed = "time" in events
    time = np.asarray(ranks(column["time"], where), dtype=np.float64) if timed else np.zeros(len(events))
    notes = []
    order = np.lexsort((time, raters))
    if timed and _falls(raters, time):
        notes.append(f"events of the {where} were not in the order of time within a user, and were sorted")
    if kind == "squared":
        last = last_of_each(raters[order], rated[order])
        if len(last) < len(order):
            notes.append(f"{len(order) - len(last):,} repeated ratings of an item by a user: the last one was kept")
        order = order[last]
    return _Kept(order, raters[order], rated[order], value[order], time[order], names, titles, tuple(notes))


def read_ratings(
    rows: Source,
    roles: Roles,
    task_table: Source | None = None,
    item_table: Source | None = None,
    scale: tuple[float, float] | None = None,
    kind: str | None = None,
) -> Ratings:
    """The table door: `roles` names the columns of users (task), items, values (target) and times.

    Without a scale, the least and the greatest value of the table are its ends. Without a kind (squared: ratings,
    binary: clicks), values of 0 and 1 alone are clicks, which the notes say. Other columns of the
    rows are context, those of the side tables describe users and items, as what the roles declare them.
    """
    frame = read_table(rows, "ratings")
    require([roles.task, roles.target, roles.item, roles.time, *roles.context], frame.columns, "ratings")
    if roles.item is None:
        raise InputError("an item column", "none", "name it in the roles")
    sides = [
        (None if table is None else read_table(table, where), key, where)
        for table, key, where in ((task_table, roles.task, "task table"), (item_table, roles.item, "item table"))
    ]
    have = [*frame.columns, *(name for side, _, _ in sides if side is not None for name in side.columns)]
    require([*(roles.numeric or ()), *(roles.categorical or ()), *(roles.multi or ()), *roles.drop], have, "tables")
    users, items = (
        pd.DataFrame() if side is None else by_name(_declared(side, roles, where), key, where, roles.drop)
        for side, key, where in sides
    )
    taken = [name for name in roles.context if name in EVENT]
    if taken:
        raise InputError(f"no context named {', '.join(EVENT)}", f"'{taken[0]}'", "rename the column")
    around = _declared(frame[list(roles.context)], roles, "ratings")
    fit_table(around, "ratings")  # so that an error tells the row of the file, before any is sorted
    frame = frame.assign(**{str(name): around[name] for name in around})
    events = as_events(frame.drop(columns=[name for name in roles.drop if name in frame]), roles)
    found = kind_of(events["value"].rename(roles.target), kind, scale, "ratings")
    made = make_ratings(events, users, items, scale, called=called_by(roles), kind=found)
    if found == kind or found == "squared":
        return made
    note = f"'{roles.target}' holds nothing but 0 and 1, or false and true: taken as clicks; kind squared makes ratings"
    return made._replace(notes=(note, *made.notes))


def _declared(table: pd.DataFrame, roles: Roles, where: str) -> pd.DataFrame:
    """A side table with its columns of the kinds that the roles declare, so that none is inferred."""
    kinds = {str(name): roles.kind(str(name)) for name in table.columns if roles.kind(str(name))}
    made: dict[str, Any] = {name: numbers(table[name], where) for name, kind in kinds.items() if kind == "numeric"}
    made |= {name: _as_texts(table[name], where) for name, kind in kinds.items() if kind == "categorical"}
    made |= {name: _as_lists(table[name]) for name, kind in kinds.items() if kind == "multi"}
    return table.assign(**made)


def _as_texts(column: pd.Series[Any], where: str) -> Any:
    codes, names = texts(column, where)
    return pd.Series(np.array([*names, None], dtype=object)[codes], index=column.index).astype("category")


def _as_lists(column: pd.Series[Any]) -> Any:
    return column.map(lambda cell: str(cell).split("|") if not is_list(cell) and not pd.isna(cell) else cell)


def called_by(roles: Roles) -> dict[str, str]:
    """What the roles call user, item, value and time."""
    return dict(zip(EVENT, (roles.task, str(roles.item), roles.target, str(roles.time)), strict=True))


def as_events(frame: pd.DataFrame, roles: Roles) -> pd.DataFrame:
    """Columns named user, item, value and time, whatever the roles call them; others of these names are not for use."""
    new = {roles.task: "user", roles.item: "item", roles.target: "value", roles.time: "time"}
    other = {name: f"{name} (context)" for name in EVENT if name not in new and name in frame}
    return frame.rename(columns=other | {old: name for old, name in new.items() if old})


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


def join_ratings(first: Ratings, later: Ratings) -> Ratings:
    """The events of both, of the same users and items, by user; those of `first` come first."""
    user = np.concatenate([first.user, later.user])
    order = np.argsort(user, kind="stable")
    parts = [part.context for part in (first, later) if len(part.user)] or [first.context]
    return first._replace(
        user=user[order],
        item=np.concatenate([first.item, later.item])[order],
        value=np.concatenate([first.value, later.value])[order],
        time=np.concatenate([first.time, later.time])[order],
        context=pd.concat(parts, ignore_index=True).iloc[order].reset_index(drop=True),
    )


def take_users(ratings: Ratings, users: Ints) -> Ratings:
    """The events of some users alone, who are numbered anew in the order given; the items stay."""
    place = np.full(len(ratings.users), -1)
    place[users] = np.arange(len(users))
    kept = np.flatnonzero(place[ratings.user] >= 0)
    kept = kept[np.argsort(place[ratings.user[kept]], kind="stable")]
    part = take_rows(ratings, kept)
    return part._replace(user=place[part.user], users=ratings.users.iloc[users])


def last_of_each(user: Ints, item: Ints) -> Ints:
    """The places, ascending, of the last event of each user with each item."""
    pair = user * (int(item.max(initial=0)) + 1) + item
    return np.sort(len(pair) - 1 - np.unique(pair[::-1], return_index=True)[1])


def _check_values(column: pd.Series[Any], value: Floats, scale: tuple[float, float] | None, where: str) -> None:
    if np.isnan(value).any():
        raise cell_error("a value", column, int(np.isnan(value).argmax()), where, "fill it in or remove the row")
    if scale is None:
        return
    out = (value < scale[0]) | (value > scale[1])
    if out.any():
        expected = f"a value on the scale {scale[0]:g} to {scale[1]:g}"
        raise cell_error(expected, column, int(out.argmax()), where, "correct it, or fit with the scale it is on")


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
