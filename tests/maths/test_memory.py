"""The memory finds who is nearest by any search, never the one who asks, and forgets the least recently used."""

import sys
from collections import OrderedDict

import pytest
import torch

from warmstart.core import InputError
from warmstart.core.trees import Rows, add, dense
from warmstart.engine.stage import TRACED
from warmstart.maths import memory as module
from warmstart.maths.memory import (
    EMPTY,
    check_search,
    empty_memory,
    entries,
    filled_memory,
    kernel_mean,
    look,
    nearest,
    posted,
    remember,
)

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(params=["in C++", "as operations"])
def way(request, monkeypatch):
    """Both ways to look and to write down."""
    if request.param == "as operations":
        monkeypatch.setattr(module, "_library", lambda real: None)
    elif module._library(torch.float64) is None:
        pytest.skip("no compiler of C++")
    return request.param


def still(memory):
    """Nothing is learned."""
    size, width = memory.entry.shape
    return Rows(torch.zeros(0, dtype=torch.long), torch.zeros(0, width), torch.empty(size, 0)), torch.zeros(())


def filled(size=30, width=4, holes=6):
    torch.manual_seed(0)
    key = torch.randperm(1000)[:size]
    key[torch.randperm(size)[:holes]] = EMPTY
    return filled_memory(key, torch.randn(size, width + 1), torch.zeros(size))


@pytest.mark.parametrize("how", ["exact", "tree", "faiss"])
def test_every_search_finds_the_nearest_others(how):
    if how == "faiss":
        pytest.importorskip("faiss", reason="extra faiss is not installed")
    memory = filled()
    held = memory.key[memory.key != EMPTY]
    query = torch.cat([memory.entry[memory.key != EMPTY, :-2][:3] + 0.01, torch.randn(4, 4)])
    own = torch.cat([held[:3], torch.tensor([EMPTY, 5000, 5001, 5002])])
    place, real = nearest(memory, query, own, 3, how)
    for i in range(len(query)):
        others = [j for j in range(30) if memory.key[j] not in (EMPTY, own[i])]
        wanted = sorted(others, key=lambda j: float((memory.entry[j, :-2] - query[i]).norm()))[:3]
        assert place[i][real[i] > 0].tolist() == wanted
    stacked = torch.func.vmap(lambda q, o: nearest(memory, q, o, 3, how))(query, own)
    assert torch.equal(stacked.place, place) and torch.equal(stacked.real, real)


@pytest.mark.parametrize("how", ["exact", "tree"])
def test_fewer_entries_than_wanted(how, way):
    memory = empty_memory(6, 2, torch.zeros(()))
    seen = look(memory, torch.zeros(1, 2), torch.tensor([3]), 2, 1.0, 1e-5, how)
    assert float(seen.near.real.sum()) == float(seen.mean) == 0
    come = posted(torch.tensor([3, 4]), torch.ones(2, 2), torch.ones(2), 2)
    memory = remember(memory, come, torch.ones(()), *still(memory))
    seen = look(memory, torch.zeros(2, 2), torch.tensor([3, 9]), 4, 1.0, 1e-5, how)
    assert seen.near.real.sum(1).tolist() == [1, 2]
    assert nearest(memory, torch.zeros(2, 2), torch.tensor([3, 9]), 4, how).real.sum(1).tolist() == [1, 2]


def test_the_kernel_mean_by_hand_and_nobody_near_gives_nothing():
    query, vector = torch.tensor([[0.2, -0.1]]), torch.tensor([[[0.0, 0.3], [1.0, 0.0], [0.2, 0.2]]])
    value, real = torch.tensor([[2.0, -1.0, 100.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    s = [torch.exp(torch.tensor(-0.7 * d)) for d in (0.04 + 0.16, 0.64 + 0.01)]
    expected = (2 * s[0] - s[1]) / (s[0] + s[1] + 0.3)
    torch.testing.assert_close(kernel_mean(query, vector, value, real, 0.7, 0.3), expected.reshape(1))
    assert float(kernel_mean(query + 100, vector, value, real, 2.0, 1e-5)) == 0


@pytest.mark.parametrize(("size", "queries"), [(30, 3), (1000, 70), (4, 9)])
def test_a_look_is_who_is_nearest_their_mean_and_its_slopes(size, queries, way):
    torch.manual_seed(2)
    memory = filled(size, 3, size // 5)
    query = torch.cat([memory.entry[memory.key != EMPTY, :3][:2] + 0.01, torch.randn(queries - 2, 3)])
    own = torch.cat([memory.key[memory.key != EMPTY][:2], torch.full((queries - 2,), EMPTY)])
    seen = look(memory, query, own, 5, 0.7, 0.3)
    near = nearest(memory, query, own, 5, "tree")
    for found, wanted in zip(seen.near.place, near.place, strict=True):
        assert found[memory.key[found] != EMPTY].tolist() == wanted[memory.key[wanted] != EMPTY].tolist()
    torch.testing.assert_close(seen.near.real, near.real)
    vector, value = entries(memory, seen.near.place)

    def plain(query, vector, value):
        s = torch.exp(-0.7 * ((query.unsqueeze(-2) - vector) ** 2).sum(-1)) * seen.near.real
        return (s * value).sum(-1) / (s.sum(-1) + 0.3)

    torch.testing.assert_close(seen.mean, plain(query, vector, value))
    by_query, by_vector, by_value = torch.func.grad(lambda *x: plain(*x).sum(), (0, 1, 2))(query, vector, value)
    torch.testing.assert_close(seen.by_query, by_query)
    torch.testing.assert_close(seen.by_entry, torch.cat([by_vector, by_value.unsqueeze(-1)], -1))
    torch.testing.assert_close(
        TRACED.run(lambda m, q, o: tuple(look(m, q, o, 5, 0.7, 0.3)))(memory, query, own), tuple(seen)
    )


def test_alike_entries_are_found_once_each(way):
    """More are as near as the last one than there is room for."""
    memory = filled_memory(torch.arange(40), torch.ones(40, 3), torch.zeros(40))
    memory = memory._replace(entry=memory.entry.index_fill(0, torch.tensor([39]), 0.5))
    place = look(memory, torch.zeros(1, 2), torch.tensor([EMPTY]), 4, 1.0, 0.1).near.place[0].tolist()
    assert 39 in place[:4] and len(set(place)) == 5


def test_numbers_that_are_none_do_no_harm(way):
    memory, query = filled(40, 2, 3), torch.randn(5, 2)
    nobody = torch.full((5,), EMPTY)
    spoilt = memory._replace(entry=memory.entry.masked_fill(memory.key.unsqueeze(1) % 2 == 0, torch.nan))
    for broken in (spoilt, memory._replace(entry=memory.entry * torch.nan)):
        place = look(broken, query, nobody, 4, 0.7, 0.3).near.place
        assert place.shape == (5, 5) and 0 <= int(place.min()) <= int(place.max()) < 40


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_large_and_negative_keys_in_either_precision(kind, way):
    memory = empty_memory(625 * 2, 1, torch.zeros((), dtype=kind))
    trained, rate = still(memory)

    def written(key):
        come = posted(key, torch.randn(len(key), 1, dtype=kind), torch.randn(len(key), dtype=kind), 625)
        now = torch.ones((), dtype=kind)
        found = remember(memory, come, now, trained._replace(row=trained.row.to(kind)), rate.to(kind)).key
        return sorted(found[found != EMPTY].tolist())

    key = torch.tensor([2_560_000, 2_560_626, 72_400_002, 2**40 + 3, -77_777])
    assert written(key) == sorted(key.tolist())
    assert written(torch.tensor([2_560_000, 2_560_625])) == []


def test_the_key_of_nobody_is_never_written(way):
    memory = filled_memory(torch.tensor([5, EMPTY, 6, 7]), torch.randn(4, 2), torch.tensor([1.0, -1.0, 1.0, 1.0]))
    come = posted(torch.tensor([EMPTY]), torch.zeros(1, 1), torch.ones(1), 1)
    torch.testing.assert_close(remember(memory, come, torch.tensor(2.0), *still(memory)), memory)


def test_what_does_not_fit_is_refused_or_done_by_operations(way):
    memory, query, own = filled(12, 2, 0), torch.randn(3, 2), torch.full((3,), EMPTY)
    for bad in (query[:, :1], query.float()):
        with pytest.raises(RuntimeError):
            look(memory, bad, own, 4, 0.7, 0.3)
    turned = memory._replace(entry=memory.entry.T.contiguous().T)
    torch.testing.assert_close(look(turned, query, own, 4, 0.7, 0.3), look(memory, query, own, 4, 0.7, 0.3))
    come = posted(torch.tensor([50, 51]), torch.randn(2, 2), torch.randn(2), 4)
    written = remember(memory, come, torch.ones(()), *still(memory))
    torch.testing.assert_close(remember(turned, come, torch.ones(()), *still(memory)), written)
    with pytest.raises(RuntimeError):
        remember(
            memory, posted(torch.tensor([50]), torch.randn(1, 2), torch.randn(1), 5), torch.ones(()), *still(memory)
        )


def test_the_least_recently_used_entry_of_a_set_leaves(way):
    torch.manual_seed(1)
    sets, ways = 3, 4
    memory, wanted = empty_memory(sets * ways, 1, torch.zeros(())), [OrderedDict() for _ in range(sets)]
    for now in range(1, 60):
        key = torch.randint(7, (sets,)) * sets + torch.arange(sets)
        real, value = torch.rand(sets) < 0.8, torch.randn(sets)
        come = posted(key[real], value[real, None] + 1, value[real], sets)
        memory = remember(memory, come, torch.tensor(float(now)), *still(memory))
        for held, k, v, r in zip(wanted, key.tolist(), value.tolist(), real.tolist(), strict=True):
            if r:
                if k not in held and len(held) == ways:
                    held.popitem(last=False)
                held[k] = v
                held.move_to_end(k)
        rows = memory.key.view(sets, -1), memory.entry[:, -2].view(sets, -1)
        for held, keys, values in zip(wanted, *rows, strict=True):
            assert held == {int(k): float(v) for k, v in zip(keys, values, strict=True) if k != EMPTY}
        torch.testing.assert_close(*(memory.entry[memory.key != EMPTY, :2] - torch.tensor([1.0, 0.0])).T)


def test_entries_descend_then_are_written_and_searched_where_they_then_are(way):
    """Against a loop over the rows; of a place that comes twice both count, and a free one stays so."""
    torch.manual_seed(5)
    key = torch.tensor([3, 6, 4, EMPTY, 5, 8])
    old = filled_memory(key, torch.randn(6, 4), torch.tensor([1.0, 5.0, 4.0, -1.0, 3.0, 2.0]))
    before = tuple(leaf.clone() for leaf in old)
    place, by = torch.tensor([0, 2, 0, 3, 4]), torch.randn(5, 5)
    by[3], by[:, -1] = 0, torch.tensor([2.0, 0.0, 1.0, 0.0, 1.0])
    fresh = torch.randn(2, 4)
    come = posted(torch.tensor([9, 11]), fresh[:, :-1], fresh[:, -1], 3)
    new = remember(old, come, torch.tensor(7.0), Rows(place, by, torch.empty(6, 0)), torch.tensor(0.3))
    entry, used = old.entry[:, :-1].clone(), old.used.clone()
    for p, row in zip(place.tolist(), by, strict=True):
        entry[p] -= 0.3 * row[:-1]
        used[p] = 7.0 if row[-1] > 0 else used[p]
    entry[1], entry[5], used[1], used[5] = fresh[0], fresh[1], 7.0, 7.0  # 3 was of use: 6 leaves; so 8, and not 5
    torch.testing.assert_close(new.entry[:, :-1], entry)
    assert new.key.tolist() == [3, 9, 4, EMPTY, 5, 11] and torch.equal(new.used, used)
    torch.testing.assert_close(new, filled_memory(new.key, entry, used))
    assert all(torch.equal(leaf, was) for leaf, was in zip(old, before, strict=True))


def test_users_add_up_over_parts_and_ranks(way):
    """All that came in one update: a user twice, who is written once, and two of one set, of whom neither is."""
    torch.manual_seed(6)
    key, vector, value = torch.tensor([3, 16, 8, 16, 15, 12]), torch.randn(6, 2), torch.randn(6)
    vector[3], value[3] = vector[1], value[1]
    whole = posted(key, vector, value, 7)
    parts = posted(key[:3], vector[:3], value[:3], 7), posted(key[3:], vector[3:], value[3:], 7)
    ranks = sum(dense(part) for part in parts)
    memory = empty_memory(14, 2, torch.zeros(()))
    found = remember(memory, whole, torch.ones(()), *still(memory))
    assert sorted(found.key[found.key != EMPTY].tolist()) == [3, 12, 16]
    for user in (0, 1, 5):
        row = found.entry[found.key == key[user]][0]
        torch.testing.assert_close(row[:-1], torch.cat([vector[user], value[user : user + 1]]))
    torch.testing.assert_close(remember(memory, add(*parts), torch.ones(()), *still(memory)), found)
    every = Rows(torch.arange(7), ranks, torch.empty(7, 0))
    torch.testing.assert_close(remember(memory, every, torch.ones(()), *still(memory)), found)


@pytest.mark.parametrize("size", [16 * 40, 3 * 127, 6 * 7])
def test_blocks_find_what_a_whole_look_finds(size):
    torch.manual_seed(4)
    memory = filled(size, 3, size // 6)
    query = torch.randn(9, 3)
    place, real = nearest(memory, query, torch.full((9,), EMPTY), 5)
    distance = torch.cdist(query, memory.entry[:, :-2])
    distance[:, memory.key == EMPTY] = torch.inf
    assert torch.equal(place[:, :5], distance.topk(5, largest=False).indices) and float(real[:, :5].min()) == 1


def test_what_cannot_be_searched_is_said(monkeypatch):
    with pytest.raises(InputError, match="exact, tree or faiss"):
        check_search("annoy")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"warmstart\[faiss\]"):
        check_search("faiss")
