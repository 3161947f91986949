"""A new user of a catalogue of 3,700 items, from table to ten recommendations: one by one against 1,000 at once.

The learner is `preference_bayes` on simulated films; a user shows 20 ratings and a profile. What is timed is
`PreferenceLearner.adapt` and `recommend`, tables, intervals and reasons among it, in seconds of one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd
import torch

from warmstart.benches.timing import Contender, Plan, describe, interleave, one_thread
from warmstart.core import check_names
from warmstart.engine.loop import Report, silent
from warmstart.estimators.preference_learner import PreferenceLearner
from warmstart.report import Column, Results, called, make_results, make_row, table
from warmstart.report.page import Section
from warmstart.tasks.films import simulate_films
from warmstart.tasks.roles import Roles

ONE, STACKED = "one by one", "stacked"
TIME, RATIO = "time per user", "ratio to one by one"


class Size(NamedTuple):
    users: int = 1000  # that are served
    items: int = 3700
    shown: int = 20  # ratings of each
    fitted: int = 600  # users that are learned from
    sweeps: int = 4  # of the learner: how well it predicts is not timed


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    only: Sequence[str] = (),
    plan: Plan = Plan(rounds=3, repeats=5, seconds=0.1, processor=True),
    size: Size = Size(),
) -> Results:
    """Milliseconds a user, and how many times more one by one takes. On the CPU, whatever the device."""
    check_names(only, (ONE, STACKED), "ways")
    report = (progress or (lambda label: silent))("recommend")
    model, support, profiles = prepare(size)
    first = support["user"].iloc[0]
    own, about = support[support["user"] == first], profiles[profiles["user"] == first]
    cpu = torch.device("cpu")
    ways = {
        ONE: Contender(ONE, cpu, lambda: lambda: model.adapt(own, about).recommend(10)),
        STACKED: Contender(STACKED, cpu, lambda: lambda: model.adapt(support, profiles).recommend(10)),
    }
    chosen = {name: way for name, way in ways.items() if not only or name in only}
    with one_thread():
        found = dict(zip(chosen, interleave(list(chosen.values()), plan, report), strict=True))
    served = {ONE: 1, STACKED: size.users}
    each = {name: [1e3 * seconds / served[name] for seconds in found[name]] for name in chosen}
    setting = {"items": size.items, "users": size.users, "shown": size.shown}
    rows = [make_row(name, setting, TIME, dict(enumerate(times)), "ms") for name, times in each.items()]
    if len(each) == len(ways):
        ratios = {i: alone / together for i, (alone, together) in enumerate(zip(each[ONE], each[STACKED], strict=True))}
        rows.append(make_row(STACKED, setting, RATIO, ratios, "x"))
    return make_results("recommend", "full", describe(cpu), called(), rows)


def prepare(size: Size) -> tuple[PreferenceLearner, pd.DataFrame, pd.DataFrame]:
    """A fitted model, and ratings and profiles of users that it does not know."""
    made = simulate_films(size.fitted + size.users, size.items, fewest=size.shown + 5)
    names = made.users["user"]
    old, new = names.iloc[: size.fitted], names.iloc[size.fitted :]
    model = PreferenceLearner("preference_bayes", {"sweeps": size.sweeps}).fit(
        made.ratings[made.ratings["user"].isin(old)], Roles("user", "rating", item="film"), made.users, made.films
    )
    support = made.ratings[made.ratings["user"].isin(new)].groupby("user").head(size.shown).reset_index(drop=True)
    return model, support.drop(columns="time"), made.users[made.users["user"].isin(new)].reset_index(drop=True)


def sections(results: Results) -> list[Section]:
    columns = [Column("ms a user", TIME, {}, 2, "lower"), Column("times less than one by one", RATIO, {}, 1)]
    return [Section("One new user, ten recommendations", table=table(results, columns=columns))]
