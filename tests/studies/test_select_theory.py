"""The linear setting: f by an independent least-squares fit, and coefficients that separate as n grows."""

import pytest
import torch

from warmstart.studies import select_theory
from warmstart.studies.select_theory import FIRST, ORDER, OURS, SEPARATED, losses, make_problem, needed, separation


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


def test_more_subsets_order_more_pairs(monkeypatch):
    monkeypatch.setitem(select_theory.PRESETS, "quick", select_theory.Preset((10,), (1, 20), 6))
    outcome = select_theory.run()
    at = {(row.method, row.metric, row.setting["n"]): row.mean for row in outcome.results.rows}
    assert at[OURS, ORDER, 200] > at[OURS, ORDER, 10] and at[OURS, ORDER, 200] > 0.9
    assert at[FIRST, SEPARATED, 10] >= 0.8
    assert "10 sources" in outcome.verdict


def test_the_number_needed_is_the_first_that_is_enough():
    rows = [
        select_theory.make_row(OURS, {"sources": 10, "n": n}, SEPARATED, {0: value})
        for n, value in ((40, 1.0), (10, 0.2), (20, 0.95))
    ]
    assert needed(rows) == {10: 20}
    assert needed(rows[1:2]) == {10: None}
    assert pytest.approx(needed([])) == {}
