"""What a selection is told to have gained, and which of level methods is kept."""

import torch

from warmstart.estimators.source_methods import ALL, ALONE, OURS, TREES, TREES_ALONE, TUNED
from warmstart.estimators.source_selection import Gain, Selection, preferred, rivals, verdict
from warmstart.selection.final import Fitted, Kept
from warmstart.tasks.transfer import Rows


def fit(value, right=0.0, used=2):
    """Says `right` more of the labels than of their opposites."""
    said = lambda x: right * (2 * torch.tensor([1.0, 0.0, 1.0]) - 1)[:, None]  # noqa: E731
    return Fitted(said, torch.arange(3) < used, value, 1, Kept({}, {}))


class Planted:
    sources = 3
    validation = Rows((), torch.tensor([1.0, 0.0, 1.0]), torch.zeros(3, dtype=torch.long))


def test_level_methods_are_told_apart_by_their_cross_entropy():
    fitted = {ALONE: fit(0.25, 0.5), OURS: fit(0.25, 2.0), TUNED: fit(0.25, 1.0), ALL: fit(0.5, 5.0)}
    assert preferred(Planted(), fitted) == (OURS, (ALONE, OURS, TUNED))
    assert preferred(Planted(), {**fitted, ALL: fit(0.2)}) == (ALL, ())


def test_gains_are_over_the_best_with_all_sources_and_the_best_with_none():
    fitted = {ALONE: fit(0.4), ALL: fit(0.3), TREES: fit(0.2), TREES_ALONE: fit(0.35), OURS: fit(0.1), TUNED: fit(0.25)}

    def over(best):
        return rivals(Selection(Planted(), None, fitted, best))

    assert over(OURS) == [TREES, TREES_ALONE]
    assert over(TREES) == over(ALL) == [TREES_ALONE]
    assert over(ALONE) == [TREES]


def test_the_verdict_names_what_was_beaten_and_says_when_it_was_not():
    fitted = {ALONE: fit(0.4, used=0), TREES: fit(0.2, used=3), OURS: fit(0.1), "hoa": fit(0.1, used=0)}

    def said(best, gains=None, level=()):
        return verdict(Selection(Planted(), None, fitted, best, level), gains or {}, "loss")

    sure, not_sure = Gain(0.03, 0.01, 0.05), Gain(0.01, -0.01, 0.03)
    assert said(OURS, {TREES: sure, ALONE: sure}) == (
        "Task_model with 2 of 3 sources is kept; it lowers loss by 0.0300 against boosted trees, pooled."
    )
    assert "not surely better than boosted trees, pooled in loss" in said(OURS, {TREES: not_sure, ALONE: sure})
    assert said("hoa") == "No set of sources helps: hoa with 0 of 3 sources is kept."
    assert "(2 methods are level on validation rows" in said(OURS, {TREES: sure}, (ALONE, OURS))
    assert said(TREES).startswith("Choosing among the sources is not worth it here: boosted trees, pooled with 3 of 3")
