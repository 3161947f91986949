"""Subsets: one size, no two alike, every source about as often."""

from math import comb

import pytest
import torch

from warmstart.core import InputError
from warmstart.selection.subsets import how_many, indicators, sample_subsets


@pytest.mark.parametrize(("sources", "size", "count"), [(50, 5, 400), (10, 3, 50), (164, 15, 100)])
def test_subsets_are_distinct_sorted_and_balanced(sources, size, count):
    found = sample_subsets(sources, size, count, seed=3)
    assert found.shape == (count, size)
    assert len({tuple(row) for row in found.tolist()}) == count
    assert (found.diff(dim=1) > 0).all()
    used = torch.bincount(found.flatten(), minlength=sources)
    assert used.max() - used.min() <= 2


def test_another_seed_draws_others_and_the_same_seed_the_same():
    one, same, other = (sample_subsets(20, 4, 30, seed) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize(("sources", "size", "count"), [(6, 3, comb(6, 3) - 1), (30, 2, 250), (8, 2, 14)])
def test_most_of_all_subsets_are_still_distinct_and_balanced(sources, size, count):
    found = sample_subsets(sources, size, count, seed=0)
    assert len({tuple(row) for row in found.tolist()}) == len(found) == count
    used = torch.bincount(found.flatten(), minlength=sources)
    assert used.max() - used.min() <= 2


def test_how_many_are_asked_for_or_fit():
    assert how_many(50) == (5, 200, 50) and how_many(5) == (2, 8, 2) and how_many(4) == (2, 4, 2)
    assert how_many(50, 3, 10) == (3, 10, 2) and how_many(6, 1) == (1, 4, 2)
    for asked, words in (
        ((3,), "4 sources or more, got 3"),
        ((6, 7), "a subset size from 1 to the 6 sources, got 7"),
        ((6, 6), "4 different subsets or more, got 1 of 6"),
        ((6, 2, 14), "at most 13 subsets of 2 out of 6, two being held out, got 14"),
    ):
        with pytest.raises(InputError, match=words):
            how_many(*asked)


def test_pairs_of_sources_meet_as_often_as_chance_says():
    """Lemma A.3 needs it: balance must not keep two sources apart."""
    members = indicators(sample_subsets(12, 4, 400, seed=5), 12)
    together = members.T @ members
    apart = together[~torch.eye(12, dtype=torch.bool)]
    expected = 400 * 4 * 3 / (12 * 11)
    assert abs(apart.mean() - expected) < 0.5
    assert (apart - expected).abs().max() < 5 * expected**0.5


def test_indicators_hold_ones_where_the_subset_is():
    assert indicators(torch.tensor([[0, 2], [1, 2]]), 4).tolist() == [[1, 0, 1, 0], [0, 1, 1, 0]]


@pytest.mark.parametrize(("sources", "size", "count"), [(4, 5, 1), (4, 0, 1), (4, 2, 7), (4, 2, 0)])
def test_what_cannot_be_drawn_is_refused(sources, size, count):
    with pytest.raises(InputError, match=r"subset"):
        sample_subsets(sources, size, count)
