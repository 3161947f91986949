"""The memory finds who is nearest by any search, never the one who asks, and forgets the least recently used."""

import sys
from collections import OrderedDict

import pytest
import torch

from warmstart.core import InputError
from warmstart.maths.memory import (
    EMPTY,
    Moved,
    check_search,
    empty_memory,
    filled_memory,
    kernel_mean,
    nearest,
    remember,
)

pytestmark = pytest.mark.usefixtures("float64")


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
def test_fewer_entries_than_wanted(how):
    memory = empty_memory(6, 2, torch.zeros(()))
    assert float(nearest(memory, torch.zeros(1, 2), torch.tensor([3]), 2, how).real.sum()) == 0
    memory = remember(memory, 2, torch.tensor([3, 4]), torch.ones(2, 3), torch.ones(2).bool(), torch.ones(()))
    found = nearest(memory, torch.zeros(2, 2), torch.tensor([3, 9]), 4, how)
    assert found.real.sum(1).tolist() == [1, 2]


def test_the_kernel_mean_by_hand_and_nobody_near_gives_nothing():
    query, vector = torch.tensor([[0.2, -0.1]]), torch.tensor([[[0.0, 0.3], [1.0, 0.0], [0.2, 0.2]]])
    value, real = torch.tensor([[2.0, -1.0, 100.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    s = [torch.exp(torch.tensor(-0.7 * d)) for d in (0.04 + 0.16, 0.64 + 0.01)]
    expected = (2 * s[0] - s[1]) / (s[0] + s[1] + 0.3)
    torch.testing.assert_close(kernel_mean(query, vector, value, real, 0.7, 0.3), expected.reshape(1))
    assert float(kernel_mean(query + 100, vector, value, real, 2.0, 1e-5)) == 0


def test_the_derivative_of_the_kernel_mean_is_that_of_its_definition():
    torch.manual_seed(2)
    given = torch.randn(3, 2), torch.randn(3, 4, 2), torch.randn(3, 4)
    real, weight = (torch.rand(3, 4) < 0.7).double(), torch.randn(3)

    def plain(query, vector, value):
        s = torch.exp(-0.7 * ((query.unsqueeze(-2) - vector) ** 2).sum(-1)) * real
        return (s * value).sum(-1) / (s.sum(-1) + 0.3)

    def slopes(mean):
        return torch.func.grad(lambda known: (mean(*known) * weight).sum())(given)

    torch.testing.assert_close(slopes(lambda *known: kernel_mean(*known, real, 0.7, 0.3)), slopes(plain))
    known = tuple(part.clone().requires_grad_() for part in given)
    assert torch.autograd.gradgradcheck(lambda *known: kernel_mean(*known, real, 0.7, 0.3), known)
    stacked = torch.func.vmap(lambda *known: kernel_mean(*known, 0.7, 0.3))(*given, real)
    torch.testing.assert_close(stacked, plain(*given))


def test_the_least_recently_used_entry_of_a_set_leaves():
    torch.manual_seed(1)
    sets, ways = 3, 4
    memory, wanted = empty_memory(sets * ways, 1, torch.zeros(())), [OrderedDict() for _ in range(sets)]
    for now in range(1, 60):
        key = torch.randint(7, (sets,)) * sets + torch.arange(sets)
        real, value = torch.rand(sets) < 0.8, torch.randn(sets)
        memory = remember(memory, sets, key, torch.stack([value + 1, value], 1), real, torch.tensor(float(now)))
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


def test_entries_are_moved_then_written_and_searched_where_they_then_are():
    """Against a loop over the rows; of a place that comes twice both count, and a free one stays so."""
    torch.manual_seed(5)
    key = torch.tensor([3, 6, 4, EMPTY, 5, 8])
    old = filled_memory(key, torch.randn(6, 4), torch.tensor([1.0, 5.0, 4.0, -1.0, 3.0, 2.0]))
    place, by = torch.tensor([0, 2, 0, 3, 4]), torch.randn(5, 5)
    by[3] = 0
    moved = Moved(place, by, torch.tensor([True, False, True, False, True]))
    fresh = torch.randn(2, 4)
    new = remember(old, 3, torch.tensor([9, 11]), fresh, torch.tensor([True, True]), torch.tensor(7.0), moved)
    entry, used = old.entry[:, :-1].clone(), old.used.clone()
    for p, row, real in zip(place.tolist(), by, moved.real.tolist(), strict=True):
        entry[p] += row[:-1]
        used[p] = 7.0 if real else used[p]
    entry[1], entry[5], used[1], used[5] = fresh[0], fresh[1], 7.0, 7.0  # 3 was of use: 6 leaves; so 8, and not 5
    torch.testing.assert_close(new.entry[:, :-1], entry)
    assert new.key.tolist() == [3, 9, 4, EMPTY, 5, 11] and torch.equal(new.used, used)
    torch.testing.assert_close(new, filled_memory(new.key, entry, used))
    assert torch.equal(old.entry, filled_memory(key, old.entry[:, :-1], old.used).entry)


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
