"""Task splits: fixed by seed and names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.core import InputError
from warmstart.tasks.split import digest, split_tasks


@given(st.sets(st.text(), min_size=3, max_size=40), st.randoms(), st.integers(0, 5))
def test_parts_are_disjoint_complete_and_do_not_depend_on_order(names, random, seed):
    split = split_tasks(names, seed=seed)
    assert sorted(name for part in split for name in part) == sorted(names)
    assert all(split)
    shuffled = list(names) * 2
    random.shuffle(shuffled)
    assert split_tasks(shuffled, seed=seed) == split


def test_sizes_seed_and_fixed_order():
    names = [str(i) for i in range(1000)]
    split = split_tasks(names, (0.6, 0.15, 0.25), seed=3)
    assert [len(part) for part in split] == [600, 150, 250]
    assert split != split_tasks(names, (0.6, 0.15, 0.25), seed=4)
    assert split_tasks(names, (1, 0, 0)).train == tuple(sorted(names))
    # a saved split must come out the same on every machine and in every later version
    assert split_tasks("abcdefghij", seed=1) == (tuple("abcdfij"), ("e",), ("g", "h"))
    assert digest("7") == 0xE75017CACE788F82 >> 1  # what b2sum -l 64 prints


@pytest.mark.parametrize("fractions", [(0.5, 0.5), (0.5, 0.4, 0.2), (1.2, -0.1, -0.1), (float("nan"), 0.5, 0.5)])
def test_bad_fractions(fractions):
    with pytest.raises(InputError, match="three fractions"):
        split_tasks("abc", fractions)


def test_too_few_tasks():
    with pytest.raises(InputError, match="at least one task in every part, got 2 tasks"):
        split_tasks("ab")
