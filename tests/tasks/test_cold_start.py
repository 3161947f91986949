"""Who is new and what is shown: the paper's filters, and draws that depend on names and the seed alone."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from warmstart.core import InputError
from warmstart.tasks.cold_start import (
    PAPER,
    Protocol,
    eligible,
    everything,
    first,
    load_protocol,
    save_parts,
    split_users,
)
from warmstart.tasks.ratings import make_ratings


def simulated(users=40, seed=0):
    """User k has k % 10 + 1 events; heavier users are older."""
    draw = np.random.default_rng(seed)
    rows = [
        {"user": f"u{k}", "item": f"i{item}", "value": float(draw.integers(1, 6)), "time": float(draw.integers(1000))}
        for k in range(users)
        for item in draw.permutation(30)[: k % 10 + 1]
    ]
    ages = pd.DataFrame({"age": [5.0 + k for k in range(users)]}, index=[f"u{k}" for k in range(users)])
    return make_ratings(pd.DataFrame(rows), ages, pd.DataFrame())


def names(part):
    return set(part.shown.users.index)


def pairs(ratings):
    return set(zip(ratings.users.index[ratings.user], ratings.items.index[ratings.item], strict=True))


def test_the_lightest_users_are_kept_then_those_with_enough():
    ratings = simulated()
    count = np.bincount(ratings.user)
    kept = eligible(ratings, Protocol(lightest=0.8))
    assert len(kept) == 32 - 4 and count[kept].min() == 2 and count[kept].max() == 8  # four users have one event
    assert count[eligible(ratings, Protocol(lightest=1.0, least=10))].tolist() == [10] * 4
    aged = ratings.users["age"].to_numpy()[eligible(ratings, Protocol(lightest=1.0, ages=(10, 20)))]
    assert sorted(aged) == [10, 11, 12, 13, 14, 16, 17, 18, 19, 20]  # the user aged 15 has one event


def test_parts_are_users_and_events_are_split_within_each():
    ratings = simulated(users=200)
    parts = split_users(ratings, replace(PAPER, seed=3))
    assert [len(names(part)) for part in parts] == [98, 14, 28]
    assert not names(parts.train) & names(parts.test) and not names(parts.validation) & names(parts.test)
    for part in parts:
        assert pairs(part.shown).isdisjoint(pairs(part.asked))
        total = np.bincount(part.shown.user) + np.bincount(part.asked.user)
        assert np.array_equal(np.bincount(part.asked.user), np.maximum(1, total - np.round(0.8 * total)).astype(int))
        whole = everything(part)
        assert pairs(whole) == pairs(part.shown) | pairs(part.asked) and (np.diff(whole.user) >= 0).all()
        assert whole.value.sum() == part.shown.value.sum() + part.asked.value.sum()


def test_splits_do_not_depend_on_the_order_of_rows_but_on_the_seed():
    ratings = simulated(users=60)
    events = pd.DataFrame(
        {
            "user": ratings.users.index[ratings.user],
            "item": ratings.items.index[ratings.item],
            "value": ratings.value,
            "time": ratings.time,
        }
    )
    turned = make_ratings(events.sample(frac=1, random_state=1), ratings.users, ratings.items)
    one, other, third = (
        split_users(data, p) for data, p in ((ratings, PAPER), (turned, PAPER), (ratings, Protocol(seed=1)))
    )
    for a, b in zip(one, other, strict=True):
        assert pairs(a.shown) == pairs(b.shown) and pairs(first(a, 2).shown) == pairs(first(b, 2).shown)
    assert names(one.test) != names(third.test)


@pytest.mark.parametrize("by_time", [False, True])
def test_first_events_are_nested_and_the_query_stays(by_time):
    parts = split_users(simulated(users=100), Protocol(lightest=1.0, by_time=by_time))
    previous = set()
    for size in (0, 1, 2, 5):
        few = first(parts.test, size)
        assert np.bincount(few.shown.user, minlength=20).max(initial=0) == size
        assert previous <= pairs(few.shown) <= pairs(parts.test.shown) and pairs(few.asked) == pairs(parts.test.asked)
        previous = pairs(few.shown)
    for user in range(len(parts.test.shown.users)):
        shown, asked = (part.time[part.user == user] for part in (parts.test.shown, parts.test.asked))
        early = first(parts.test, 1).shown
        if by_time:
            assert shown.max() <= asked.min() and early.time[early.user == user] == shown.min()
    if not by_time:
        assert parts.test.shown.time.max() > parts.test.asked.time.min()


def test_a_saved_protocol_finds_the_same_users_or_refuses(tmp_path):
    ratings, protocol = simulated(), Protocol(seed=7, ages=(1, 200), lightest=0.9)
    save_parts(tmp_path / "split.json", split_users(ratings, protocol), protocol)
    assert load_protocol(tmp_path / "split.json", ratings) == protocol
    with pytest.raises(InputError, match="other data"):
        load_protocol(tmp_path / "split.json", simulated(users=50))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match="a protocol and its users"):
        load_protocol(tmp_path / "bad.json", ratings)


def test_bad_protocols_are_refused():
    for bad in (Protocol(support=1.0), Protocol(lightest=0.0), Protocol(least=1)):
        with pytest.raises(InputError, match="shares between 0 and 1"):
            split_users(simulated(), bad)
    with pytest.raises(InputError, match="at least three users with 50 events or more"):
        split_users(simulated(), Protocol(least=50))
    found = simulated()
    with pytest.raises(InputError, match="'age'"):
        split_users(found._replace(users=found.users.drop(columns="age")), Protocol(ages=(10, 90)))
