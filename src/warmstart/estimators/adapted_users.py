"""New users of a trained model of preferences: their events and profiles, predictions, recommendations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from warmstart.core import InputError, Prediction
from warmstart.estimators.preference_context import readable, told_context, untold
from warmstart.estimators.preference_model import Known, TrainedPreferences
from warmstart.tasks.cells import Ints, texts
from warmstart.tasks.ratings import (
    Ratings,
    as_events,
    by_name,
    called_by,
    join_ratings,
    last_of_each,
    newcomers,
    take_rows,
)
from warmstart.tasks.roles import require
from warmstart.tasks.side_tables import keys
from warmstart.tasks.table import Source, read_support, read_table

PROFILE, BIAS, ADAPTED = "profile", "bias", "adapted"
NEAREST = 3  # known users that a recommendation names
SPARE = 5  # further ones that rounding might have put before them
NAMELESS = "the user"  # of tables without the task column


class Recommended(NamedTuple):
    items: pd.DataFrame  # user, rank, item, prediction, low, high (where the method has them), the item's own columns
    reasons: pd.DataFrame  # user, level, events, rate where the method has one, nearest, distance
    notes: tuple[str, ...]


@dataclass(frozen=True)
class AdaptedUsers:
    """What is believed of some users. Nothing here changes: `observe` gives another one."""

    trained: TrainedPreferences
    shown: Ratings  # all they have shown
    inner: Any
    adapted: Any
    notes: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return [str(name) for name in self.shown.users.index]

    @property
    def events(self) -> Ints:
        """[users] how many events each has shown."""
        return np.bincount(self.shown.user, minlength=len(self.shown.users))

    def observe(self, events: Source) -> AdaptedUsers:
        """The same users after further events: what these add to sums is added, so it equals adapting to all at once.

        A rating of an item that a user has rated replaces the earlier one; a click is one more.
        """
        trained, method = self.trained, self.trained.method
        frame = read_table(events, "support")
        require([trained.roles.item, trained.roles.target], frame.columns, "support")
        frame = _named(trained, frame, self.shown.users.index, "support")
        self._places(keys(frame[trained.roles.task], "support")[1], "support")
        new = _shown(trained, as_events(frame, trained.roles), self.shown.users)
        said = (*self.notes, *(note for note in new.notes if note not in self.notes))
        both = join_ratings(self.shown, new)
        kept = last_of_each(both.user, both.item)
        if len(kept) < len(both.user) and trained.kind == "squared":
            note = f"{len(both.user) - len(kept):,} repeated ratings of an item by a user: the last one was kept"
            return _from(trained, take_rows(both, kept), (*said, note))
        inner = method.observe(trained.state, new, self.inner)
        done = method.finish(trained.state, both, inner)
        return replace(self, shown=both, inner=inner, adapted=done, notes=said)

    def predict(self, rows: Source) -> Prediction:
        """Mean and, where the method has one, variance of each row: a user (unless there is one only) and an item.

        Of clicks the chance, and how unsure that is.
        """
        return self._said(*self._asked(rows))

    def frame(self, rows: Source, level: float = 0.9) -> pd.DataFrame:
        """Rows with their predictions and intervals; infinite where validation users are too few for the level."""
        who, what, frame = self._asked(rows)
        said = self._said(who, what, frame)
        variance = said.variance.numpy() if isinstance(said.variance, torch.Tensor) else None
        ends = self.trained.interval(said.mean.numpy(), variance, self.events[who], level)
        task, item = self.trained.roles.task, str(self.trained.roles.item)
        names = np.array(self.names, dtype=object)[who]
        return pd.DataFrame({task: names, item: frame[item].to_numpy(), "prediction": said.mean.numpy(), **ends})

    def unknown(self, rows: Source) -> tuple[str, ...]:
        """What `predict` and `frame` have to say of rows whose item or context the model does not know."""
        _, what, frame = self._asked(rows)
        around = self.trained.around.strange(frame, "query", "impressions")
        around += untold(self.trained.usual, frame, "query")
        if not (what < 0).any():
            return tuple(around)
        item = frame[self.trained.roles.item].iloc[int((what < 0).argmax())]
        return (
            f"{int((what < 0).sum()):,} rows of items that the model does not know, {str(item)!r} first: "
            "answered as for an item taken at random",
            *around,
        )

    def recommend(
        self, k: int = 10, level: float = 0.9, nearest: int = NEAREST, context: Mapping[str, Any] | None = None
    ) -> Recommended:
        """The k items with the highest predictions that each user has not shown yet, with intervals and reasons.

        The context is where and when they would be shown, for a model of clicks that was fitted with one.

        Predictions are kept on the scale, the order is that of what lies beyond it too. An interval holds for an item
        taken beforehand.
        """
        trained = self.trained
        things = len(trained.items)
        if k < 1:
            raise InputError("at least one item to recommend", f"{k}", "pass a larger number")
        seen = last_of_each(self.shown.user, self.shown.item)
        left = things - np.bincount(self.shown.user[seen], minlength=len(self.names))
        if (left == 0).any():
            name = self.names[int(left.argmin())]
            done = "rated" if trained.kind == "squared" else "been shown"
            raise InputError(f"an item that user '{name}' has not {done}", f"all {things:,}", "leave the user out")
        around = told_context(trained.usual, trained.around, context or {})
        mean, variance = trained.catalogue(self.adapted, self.shown, None, context)
        known = trained.known.items
        panel = trained.catalogue(self.adapted, self.shown, known)[0] if context else mean[:, known]
        order = _best(mean, self.shown, min(k, int(left.max())))
        kept = np.arange(order.shape[1])[None, :] < left[:, None]
        who, rank = np.nonzero(kept)
        what = order[who, rank]
        shown = self.events[who]
        said, unsure = trained.put_right(mean[who, what], None if variance is None else variance[who, what], shown)
        told = {trained.roles.task: np.array(self.names, dtype=object)[who], "rank": rank + 1}
        told |= {str(trained.roles.item): trained.titles[what], "prediction": said}
        told |= trained.interval(said, unsure, shown, level)
        about = {name: cells[what] for name, cells in trained.cells.items() if name not in told}
        few = [f"user '{self.names[i]}' has {left[i]} items left to recommend" for i in np.flatnonzero(left < k)]
        return Recommended(
            pd.DataFrame({**told, **about}),
            self._reasons(panel, nearest),
            (*self.notes, *few[:NEAREST], *around),
        )

    def _reasons(self, panel: NDArray[np.float32], nearest: int) -> pd.DataFrame:
        """Which level answered, the learning rate, and of whom the most alike is predicted.

        `bias`: the events moved all predictions up or down alike, more than they told items apart.
        """
        trained, known = self.trained, self.trained.known
        panel = np.clip(panel, *trained.scale)
        level = np.full(len(panel), PROFILE, dtype=object)
        if self.events.any():
            empty = _from(trained, take_rows(self.shown, np.zeros(0, dtype=np.int64)))
            before = trained.catalogue(empty.adapted, empty.shown, known.items)[0]
            moved = panel - np.clip(before, *trained.scale)
            alike = moved.mean(1) ** 2 >= 0.5 * (moved**2).mean(1)
            level[self.events > 0] = np.where(alike, BIAS, ADAPTED)[self.events > 0]
        names, distances = _alike(panel, known, self.names, nearest)
        reasons = {trained.roles.task: self.names, "level": level, "events": self.events}
        if trained.method.rates is not None:
            reasons["rate"] = trained.method.rates(trained.state, self.adapted)
        return pd.DataFrame({**reasons, "nearest": names, "distance": distances})

    def _asked(self, rows: Source) -> tuple[Ints, Ints, pd.DataFrame]:
        """User and item of each row; -1 for an item that the model does not know."""
        trained = self.trained
        frame = read_table(rows, "query")
        require([trained.roles.item], frame.columns, "query")
        frame = _named(trained, frame, self.shown.users.index, "query")
        codes, names = keys(frame[trained.roles.task], "query")
        who = self._places(names, "query")
        rated, titles = keys(frame[trained.roles.item], "query")
        what = trained.items.index.get_indexer(pd.Index(titles, dtype=object))
        readable(trained.around, frame, "query")
        return who[codes], what[rated].astype(np.int64), frame

    def _places(self, names: list[str], where: str) -> Ints:
        """Which of the users these are; another one is an error."""
        who = self.shown.users.index.get_indexer(pd.Index(names, dtype=object)).astype(np.int64)
        if (who < 0).any():
            got = f"{names[int((who < 0).argmax())]!r} in the {where}"
            raise InputError("users that were adapted", got, "adapt to them too")
        return who

    def _said(self, who: Ints, what: Ints, frame: pd.DataFrame) -> Prediction:
        trained, known = self.trained, np.flatnonzero(what >= 0)
        nothing = np.zeros(len(known))
        asked = self.shown._replace(
            user=who[known],
            item=what[known],
            value=nothing,
            time=nothing,
            context=trained.in_context(frame.iloc[known]),
        )
        said = trained.method.score(trained.state, self.adapted, asked)
        mean, variance = np.empty(len(who)), np.ones(len(who))
        mean[known], told = said.mean.numpy(), getattr(said.variance, "numpy", None)
        if told is not None:
            variance[known] = told()
        if len(known) < len(who):
            strange = np.flatnonzero(what < 0)
            some = who[strange], frame.iloc[strange]
            mean[strange], variance[strange] = trained.any_item(self.adapted, self.shown, *some)
        mean, unsure = trained.put_right(mean, None if told is None else variance, self.events[who])
        return Prediction(torch.from_numpy(mean), () if unsure is None else torch.from_numpy(unsure))


def adapt_users(
    trained: TrainedPreferences,
    events: Source | None = None,
    profiles: Source | Mapping[str, Any] | None = None,
    users: Sequence[str] | None = None,
) -> AdaptedUsers:
    """New users from their events (none: profiles alone) and what is known of them.

    Those named, else those of the events, else those of the profiles. Without the task column a table is of
    one user; a mapping is the profile of one user.
    """
    task = trained.roles.task
    frame = read_support(events)
    if frame is not None:
        require([trained.roles.item, trained.roles.target], frame.columns, "support")
    told = [] if frame is None or task not in frame else keys(frame[task], "support")[1]
    wanted = texts(pd.Series(list(users), dtype=object), "users")[1] if users else told
    about = _profiles(trained, profiles, wanted)
    wanted = wanted or [str(name) for name in about.index]
    index = pd.Index(wanted, dtype=object)
    known = index.isin(about.index)
    about = about.reindex(index)
    if frame is not None:
        frame = as_events(_named(trained, frame, index, "support"), trained.roles)
    shown = _shown(trained, frame, about)
    new = trained.profile.strange(about, "profiles", "users")
    return _from(trained, shown, (*shown.notes, *new, *_empty(shown, known, profiles is not None)))


def _shown(trained: TrainedPreferences, frame: pd.DataFrame | None, users: pd.DataFrame) -> Ratings:
    """What users have shown, in its context; the notes say what of that is supposed or strange."""
    if frame is not None:
        codes, names = keys(frame["user"], "support")
        readable(trained.around, frame[np.isin(names, users.index)[codes]], "support")
    roles = trained.roles
    new = newcomers(frame, users, trained.items, trained.scale, called_by(roles), trained.kind, roles.context)
    notes = trained.around.strange(new.context, "support", "impressions")
    if len(new.user):
        notes += untold(trained.usual, new.context, "support")
    return new._replace(context=trained.in_context(new.context), notes=(*new.notes, *notes))


def _from(trained: TrainedPreferences, shown: Ratings, notes: tuple[str, ...] = ()) -> AdaptedUsers:
    method = trained.method
    inner = method.observe(trained.state, shown, None)
    return AdaptedUsers(trained, shown, inner, method.finish(trained.state, shown, inner), notes)


def _named(trained: TrainedPreferences, frame: pd.DataFrame, names: pd.Index[str], where: str) -> pd.DataFrame:
    """With a task column, which may be left out where there is one user."""
    task = trained.roles.task
    if task in frame:
        return frame
    if len(names) > 1:
        raise InputError(f"a column '{task}' in the {where}", f"none, but {len(names)} users", "add the column")
    return frame.assign(**{task: names[0]})


def _profiles(trained: TrainedPreferences, given: Source | Mapping[str, Any] | None, wanted: list[str]) -> pd.DataFrame:
    """What is known of users, by name."""
    task, columns = trained.roles.task, trained.profile.names
    if given is None:
        return pd.DataFrame(index=pd.Index(wanted or [NAMELESS], dtype=object))
    if isinstance(given, Mapping):
        require([name for name in given if name != task], columns, "profiles that the model was fitted with")
        if len(wanted) > 1:
            raise InputError("one user for one profile", f"{len(wanted)}", "pass a table of profiles")
        name = str(given.get(task, wanted[0] if wanted else NAMELESS))
        cells = {key: [value] for key, value in given.items() if key != task}
        return pd.DataFrame(cells, index=pd.Index([name], dtype=object))
    table = read_table(given, "descriptor table")
    if task in table:
        table = by_name(table, task, "descriptor table")
    elif len(table) == 1 and len(wanted) < 2:
        table = table.set_axis(pd.Index(wanted or [NAMELESS], dtype=object), axis=0)
    else:
        raise InputError(f"a column '{task}' in the descriptor table", "none", "add the column")
    known = [name for name in columns if name in table]
    if columns and not known:
        expected = f"a column among {', '.join(columns)} in the descriptor table"
        raise InputError(expected, ", ".join(map(str, table.columns)) or "none", "name the columns as for fit")
    return table[known]


def _empty(shown: Ratings, known: NDArray[np.bool_], described: bool) -> list[str]:
    """Of whom nothing was shown, and of whom nothing is known at all."""
    silent = np.bincount(shown.user, minlength=len(shown.users)) == 0
    told = len(shown.users.columns) > 0
    notes = []
    for who, words in (
        (silent & known & told, "no events: answered from the profile alone"),
        (silent & ~(known & told), "neither events nor a profile: answered as for an average user"),
        (~silent & ~known & described, "no row in the table of profiles: only the events count"),
    ):
        names = [repr(str(name)) for name in shown.users.index[who]]
        if names:
            few = ", ".join(names[:NEAREST]) + (f" and {len(names) - NEAREST:,} more" if len(names) > NEAREST else "")
            notes.append(f"{few}: {words}")
    return notes


def _best(mean: NDArray[np.float32], shown: Ratings, k: int) -> Ints:
    """[users, k] the items of the highest means; what was shown comes last."""
    score = -mean
    score[shown.user, shown.item] = np.inf
    part = np.argpartition(score, k - 1, axis=1)[:, :k]
    order = np.argsort(np.take_along_axis(score, part, 1), axis=1, kind="stable")
    return np.take_along_axis(part, order, 1)


def _alike(
    panel: NDArray[np.float32], known: Known, names: Sequence[str], count: int
) -> tuple[list[list[str]], list[list[float]]]:
    """Names of the known users whose predictions on the panel differ least, and by how much (root mean square)."""
    if not len(known.names) or count < 1:
        return [[] for _ in names], [[] for _ in names]
    centre = known.said.mean(0)
    new, old = panel - centre, known.said - centre  # so that the squares below do not cancel
    square = (new**2).sum(1)[:, None] + (old**2).sum(1) - 2 * new @ old.T
    own = {name: i for i, name in enumerate(known.names)}
    itself = np.array([own.get(name, -1) for name in names])
    square[np.flatnonzero(itself >= 0), itself[itself >= 0]] = np.inf
    some = np.argpartition(square, min(count + SPARE, len(known.names)) - 1, axis=1)[:, : count + SPARE]
    far = np.sqrt(((panel[:, None, :] - known.said[some]) ** 2).mean(2)).round(4)
    far[some == itself[:, None]] = np.inf
    order = np.lexsort((some, far), axis=1)[:, :count]
    near, place = np.take_along_axis(far, order, 1), np.take_along_axis(some, order, 1)
    kept = np.isfinite(near)
    return (
        [[known.names[i] for i in row[fine]] for row, fine in zip(place, kept, strict=True)],
        [[round(float(d), 4) for d in row[fine]] for row, fine in zip(near, kept, strict=True)],
    )
