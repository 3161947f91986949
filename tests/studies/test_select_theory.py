"""The linear setting: f by an independent least-squares fit, and coefficients that separate as n grows."""

import pytest
import torch

from warmstart.selection import surrogate
from warmstart.selection.subsets import indicators, sample_subsets
from warmstart.studies import select_theory
from warmstart.studies.select_rows import EXCLUDED, KEPT
from warmstart.studies.select_theory import (
    FIRST,
    ORDER,
    OURS,
    SEPARATED,
    cut,
    losses,
    make_problem,
    needed,
    plant_harm,
    separation,
)


def test_f_is_the_validation_error_of_the_joint_fit():
    problem = make_problem(6, seed=1, place=2)
    members = torch.tensor([[1.0, 0, 1, 0, 0, 1]])
    gram = problem.gram[[0, 2, 5]].sum(0)
    fitted = torch.linalg.inv(gram) @ problem.moment[[0, 2, 5]].sum(0)
    expected = ((problem.y - problem.x @ fitted) ** 2).mean()
    torch.testing.assert_close(losses(problem, members)[0], expected)


def test_separation_by_hand():
    related = torch.tensor([True, True, False, False])
    assert separation(torch.tensor([1.0, 2, 3, 4]), related) == (1.0, 1.0)
    assert separation(torch.tensor([1.0, 3.5, 3, 4]), related) == (0.0, 0.75)


def test_cut_by_hand():
    clean = torch.tensor([True, True, False, False])
    assert cut(torch.tensor([-1.0, 2, -3, 4]), clean) == (50.0, 50.0)
    assert cut(torch.tensor([-1.0, -2, 3, 4]), clean) == (100.0, 100.0)


def test_planted_harm_is_a_third_and_hurts():
    problem = plant_harm(30, seed=0, place=1)
    assert int((~problem.related).sum()) == 10
    alone = losses(problem, torch.eye(30))
    assert float(alone[~problem.related].min()) > float(alone[problem.related].max())


@pytest.mark.parametrize("sources", [20, 50])
def test_corrupted_sources_are_excluded_and_clean_ones_kept(sources):
    """Of all runs with eight subsets a source: 95 % of the corrupted out, 90 % of the clean in."""
    found = []
    for place in range(5):
        problem = plant_harm(sources, seed=7, place=place)
        members = indicators(sample_subsets(sources, 5, 8 * sources, place), sources)
        theta = surrogate.fit(members, losses(problem, members), surrogate.Config(draws=2)).theta
        found.append(cut(theta, problem.related))
    excluded, kept = torch.tensor(found).mean(0).tolist()
    assert excluded >= 95 and kept >= 90


def test_more_subsets_order_more_pairs(monkeypatch):
    monkeypatch.setitem(select_theory.PRESETS, "quick", select_theory.Preset((10,), (1, 20), 6))
    outcome = select_theory.run()
    at = {(row.method, row.metric, row.setting["n"]): row.mean for row in outcome.results.rows}
    assert at[OURS, ORDER, 200] > at[OURS, ORDER, 10] and at[OURS, ORDER, 200] > 0.9
    assert at[FIRST, SEPARATED, 10] >= 0.8
    assert at[OURS, EXCLUDED, 200] >= 95 and at[OURS, KEPT, 200] >= 90
    assert at[OURS, EXCLUDED, 200] >= at[OURS, EXCLUDED, 10] and at[FIRST, KEPT, 10] >= 90
    assert "10 sources" in outcome.verdict and "corrupted sources" in outcome.verdict


def test_the_number_needed_is_the_first_that_is_enough():
    rows = [
        select_theory.make_row(OURS, {"sources": 10, "n": n}, SEPARATED, {0: value})
        for n, value in ((40, 1.0), (10, 0.2), (20, 0.95))
    ]
    assert needed(rows) == {10: 20}
    assert needed(rows[1:2]) == {10: None}
    assert pytest.approx(needed([])) == {}
