"""Pools and episodes against plain Python loops."""

from itertools import pairwise

import pytest
import torch

from warmstart.core import InputError
from warmstart.core.trees import leaves
from warmstart.tasks.pool import buckets, episodes, limit_support, make_pool, pad_safe

LENGTHS = [7, 1, 12, 2, 3]


def ragged(lengths=LENGTHS):
    """Row r holds r + 1 everywhere, so that a padded zero is never a row."""
    count = sum(lengths)
    row = torch.arange(1.0, count + 1)
    x = {"a": torch.stack([row, -row], 1), "i": torch.arange(1, count + 1)[:, None, None].expand(count, 2, 3)}
    descriptor = {"d": torch.arange(float(len(lengths)))[:, None]}
    key = torch.arange(len(lengths)) * 10
    return make_pool(x, row * 2, torch.tensor(lengths), descriptor, row * 3, key, torch.arange(len(lengths)) % 2)


def rows_of(lengths, task):
    start = sum(lengths[:task])
    return list(range(start + 1, start + lengths[task] + 1))


def shown(batch, t):
    """The rows of task t in a batch, after checking that every tensor tells the same story and padding is zero."""
    real = batch.mask[t].bool()
    assert set(batch.mask[t].tolist()) <= {0.0, 1.0}
    assert real.tolist() == sorted(real.tolist(), reverse=True)
    for leaf in (*leaves(batch.x), batch.y, batch.w):
        assert not leaf[t][~real].any()
    row = batch.x["a"][t, :, 0]
    assert torch.equal(batch.x["a"][t, :, 1], -row)
    assert torch.equal(batch.x["i"][t], row.long()[:, None, None].expand(-1, 2, 3))
    assert torch.equal(batch.y[t], 2 * row) and torch.equal(batch.w[t], 3 * row)
    return row[real].int().tolist()


def by_hand(rows, support, query):
    """The rule of `episodes` for one task, in words: at least one row is judged, at least a third if there are
    that many to spare, all that the support leaves, but never more than `query`; support is what remains."""
    n = len(rows)
    judged = min(query, n, max(1, n // 3, n - support))
    return rows[: min(support, n - judged)], rows[n - judged :]


@pytest.mark.parametrize(("support", "query"), [(3, 2), (5, 20), (1, 1), (40, 40), (0, 4), (4, 0), (2, 12)])
def test_first_rows_match_a_loop(support, query):
    pool, ids = ragged(), torch.tensor([2, 0, 4, 1, 3, 2])
    task = episodes(pool, ids, support, query)
    assert task.support.mask.shape == (6, support) and task.query.mask.shape == (6, query)
    for t, i in enumerate(ids.tolist()):
        expected = by_hand(rows_of(LENGTHS, i), support, query)
        assert (shown(task.support, t), shown(task.query, t)) == expected
    assert task.key.tolist() == [20, 0, 40, 10, 30, 20]
    assert task.descriptor["d"].squeeze(1).tolist() == ids.tolist()


@pytest.mark.parametrize(("support", "query"), [(3, 2), (5, 20), (40, 40), (0, 4)])
def test_random_rows_are_disjoint_and_as_many(support, query):
    pool, ids = ragged(), torch.arange(5)
    task = episodes(pool, ids, support, query, torch.Generator().manual_seed(1))
    again = episodes(pool, ids, support, query, torch.Generator().manual_seed(1))
    assert all(torch.equal(a, b) for a, b in zip(leaves(task), leaves(again), strict=True))
    for t in range(5):
        rows = rows_of(LENGTHS, t)
        left, right = by_hand(rows, support, query)
        got_left, got_right = shown(task.support, t), shown(task.query, t)
        assert (len(got_left), len(got_right)) == (len(left), len(right))
        drawn = got_left + got_right
        assert len(set(drawn)) == len(drawn) and set(drawn) <= set(rows)


def test_every_row_is_drawn_equally_often():
    pool = ragged([4, 9])
    ids = torch.tensor([0] * 4000 + [1])
    task = episodes(pool, ids, 2, 1, torch.Generator().manual_seed(0))
    first = torch.bincount(task.support.x["a"][:4000, :, 0].flatten().long(), minlength=5)[1:5]
    last = torch.bincount(task.query.x["a"][:4000, 0, 0].long(), minlength=5)[1:5]
    # 8000 and 4000 draws over four rows: five standard deviations
    assert (first - 2000).abs().max() < 5 * 40 and (last - 1000).abs().max() < 5 * 28


def test_support_rows_limit_the_support_and_leave_the_query():
    pool, ids = ragged(), torch.arange(5)
    full = episodes(pool, ids, 6, 3, torch.Generator().manual_seed(3))
    limit = torch.tensor([2, 5, 0, 1, 9])
    some = episodes(pool, ids, 6, 3, torch.Generator().manual_seed(3), support_rows=limit)
    for t in range(5):
        assert shown(some.support, t) == shown(full.support, t)[: int(limit[t])]
        assert shown(some.query, t) == shown(full.query, t)


@pytest.mark.parametrize("rows", [0, 2, 50])
def test_limit_support_keeps_the_first_rows(rows):
    task = episodes(ragged(), torch.arange(5), 4, 3)
    limited = limit_support(task, rows)
    assert limited.support.mask.shape == task.support.mask.shape
    for t in range(5):
        assert shown(limited.support, t) == shown(task.support, t)[:rows]
        assert shown(limited.query, t) == shown(task.query, t)


def test_empty_tasks_and_empty_selections():
    pool = ragged([3, 0, 2, 0])
    task = episodes(pool, torch.tensor([3, 1, 0]), 2, 2)
    assert shown(task.support, 0) == shown(task.query, 0) == shown(task.support, 1) == []
    assert shown(task.support, 2) == [1, 2] and shown(task.query, 2) == [3]
    nobody = episodes(pool, torch.tensor([1]), 2, 2, torch.Generator().manual_seed(0))
    assert not nobody.support.mask.any() and not nobody.query.mask.any()
    assert episodes(pool, torch.tensor([], dtype=torch.long), 2, 3).query.y.shape == (0, 3)


def test_select_matches_a_loop():
    lengths = [5, 0, 1, 9, 4]
    pool = ragged(lengths)
    ids = [3, 1, 0, 3]
    part = pool.select(torch.tensor(ids))
    expected = [row for i in ids for row in rows_of(lengths, i)]
    assert part.x["a"][:, 0].int().tolist() == expected
    assert part.y.tolist() == [2.0 * row for row in expected] and part.w.tolist() == [3.0 * row for row in expected]
    assert part.lengths.tolist() == [lengths[i] for i in ids] and part.count == 4
    assert part.key.tolist() == [i * 10 for i in ids] and part.group.tolist() == [i % 2 for i in ids]
    assert part.descriptor["d"].squeeze(1).tolist() == ids
    nobody = pool.select(torch.tensor([], dtype=torch.long))
    assert nobody.count == 0 and len(nobody.y) == 0


def test_lengths_must_add_up():
    with pytest.raises(InputError, match="expected 4 rows, the sum of the lengths, got 3"):
        make_pool(torch.zeros(3, 1), torch.zeros(3), torch.tensor([2, 2]))


def test_padding_never_leaks_even_when_it_is_not_a_number():
    task = episodes(ragged(), torch.arange(5), 4, 3)
    spoilt = task.support._replace(y=torch.where(task.support.mask.bool(), task.support.y, torch.nan))
    assert torch.equal(pad_safe(spoilt).y, task.support.y)


def test_buckets_hold_every_task_once_and_do_not_overlap():
    lengths = torch.randint(1, 100, (23,), generator=torch.Generator().manual_seed(0))
    parts = buckets(lengths, 4)
    assert sorted(i for part in parts for i in part.tolist()) == list(range(23))
    for short, long in pairwise(parts):
        assert lengths[short].max() <= lengths[long].min()
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [part.tolist() for part in buckets(torch.tensor([5, 4]), 4)] == [[1], [0]]


def test_ordered_tasks_show_what_came_before_what_is_judged():
    """Whatever is drawn is the split by hand of a task as it stood after some of its rows."""
    pool = ragged()._replace(ordered=True)
    found = set()
    for seed in range(200):
        task = episodes(pool, torch.arange(5), 3, 2, torch.Generator().manual_seed(seed))
        for t in range(5):
            rows = rows_of(LENGTHS, t)
            seen = shown(task.support, t), shown(task.query, t)
            ends = [n for n in range(min(2, len(rows)), len(rows) + 1) if seen == by_hand(rows[:n], 3, 2)]
            assert ends, (seen, rows)
            found.add((t, ends[0]))
    assert len(found) == sum(max(1, n - 1) for n in LENGTHS)  # every end but one after a single row
    for moved in (pool.to("cpu"), pool.select(torch.tensor([2, 0]))):
        assert moved.ordered
