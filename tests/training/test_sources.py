"""Meta-batches of users: how many rows are judged and shown, by their own lengths."""

import torch

from warmstart.tasks.pool import make_pool
from warmstart.training import sources
from warmstart.training.sources import from_users

LENGTHS = torch.tensor([2, 4, 5, 9, 20, 21, 40, 43])


def drawn(fewer, steps=40):
    total = int(LENGTHS.sum())
    pool = make_pool({"item": torch.arange(total)}, torch.arange(total).float(), LENGTHS)
    source = from_users(pool, 6, 5, fewer, seed=3, groups=2)
    return pool, [source(step).tasks for step in range(steps)]


def test_one_in_five_rows_is_judged_and_the_others_are_shown():
    pool, batches = drawn(0.0)
    for tasks in batches:
        length = LENGTHS[tasks.key]
        assert torch.equal(tasks.query.mask.sum(1).long(), (length // 5).clamp(min=1))
        assert torch.equal((tasks.support.mask.sum(1) + tasks.query.mask.sum(1)).long(), length)
        for i, key in enumerate(tasks.key.tolist()):
            rows = torch.cat([part.x["item"][i][part.mask[i] > 0] for part in (tasks.support, tasks.query)])
            assert sorted(rows.tolist()) == list(range(int(pool.offsets[key]), int(pool.offsets[key + 1])))
    assert len({key for tasks in batches for key in tasks.key.tolist()}) == len(LENGTHS)
    assert {len(tasks.support.y[0]) + len(tasks.query.y[0]) for tasks in batches} <= {43, 22, 9, 5, 3, 2}


def test_a_meta_batch_is_padded_to_a_part_of_the_longest_user_where_all_of_it_fit(monkeypatch):
    """One user of 400 rows among users of 20: the rows are those of a source that pads all to 400."""
    lengths = torch.tensor([400, *[20] * 30])
    rows = torch.arange(int(lengths.sum()))
    pool = make_pool({"item": rows}, rows.float(), lengths)
    narrow = [from_users(pool, 6, 5, 0.5, seed=1, groups=1)(step).tasks for step in range(30)]
    monkeypatch.setattr(sources, "_halvings", lambda longest, shortest: [longest])
    wide = [from_users(pool, 6, 5, 0.5, seed=1, groups=1)(step).tasks for step in range(30)]
    for few, all_ in zip(narrow, wide, strict=True):
        width = len(few.support.y[0]) + len(few.query.y[0])
        assert width == (400 if 0 in few.key.tolist() else 25)
        for part, whole in ((few.support, all_.support), (few.query, all_.query)):
            for i in range(6):
                assert torch.equal(part.y[i][part.mask[i] > 0], whole.y[i][whole.mask[i] > 0])
    assert len({len(tasks.support.y[0]) for tasks in narrow}) == 2


def test_a_share_of_users_shows_fewer_and_often_none():
    _, batches = drawn(1.0)
    shown = torch.cat([tasks.support.mask.sum(1) for tasks in batches])
    full = torch.cat([LENGTHS[tasks.key] - (LENGTHS[tasks.key] // 5).clamp(min=1) for tasks in batches])
    assert 0.1 < float((shown == 0).double().mean()) < 0.6 and float((shown < full).double().mean()) > 0.5
    _, again = drawn(1.0)
    assert all(torch.equal(a.support.y, b.support.y) for a, b in zip(batches, again, strict=True))
