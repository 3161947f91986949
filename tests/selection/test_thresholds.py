"""Group thresholds against a search over all pairs of thresholds, against fairlearn and by hand."""

import pytest
import torch

from warmstart.core import InputError
from warmstart.metrics.groups import equal_opportunity
from warmstart.selection import thresholds
from warmstart.tasks.transfer import Rows

FIRST, SECOND, OTHER = 2, 0, 1


def sample(count, seed):
    """Scores that are true log-odds; the first group is a fifth of the rows and poorer, a third group differs too."""
    draw = torch.Generator().manual_seed(seed)
    group = torch.tensor([SECOND, SECOND, SECOND, OTHER, FIRST])[torch.randint(5, (count,), generator=draw)]
    out = 2 * torch.randn(count, generator=draw) - 1.5 * (group == FIRST) - 0.5 * (group == OTHER)
    y = (torch.rand(count, generator=draw) < out.sigmoid()).float()
    return out[:, None], Rows((), y, group)


def wrong(said, rows):
    return float((said != rows.y).double().mean())


@pytest.mark.parametrize("most", [0.0, 0.1])
@pytest.mark.parametrize("pair", [(FIRST, SECOND), (SECOND, FIRST)])
def test_no_pair_of_thresholds_closes_the_gap_for_less(pair, most):
    out, rows = sample(4000, 0)
    fitted = thresholds.fit(out, rows, pair, most)
    said = thresholds.guess(out, rows.group, fitted)
    gap = float(equal_opportunity(said, rows.y, rows.group, pair))
    assert most - 0.01 < gap < most + 0.01 and fitted[OTHER] == 0
    grid = torch.linspace(-2.5, 1.5, 81)
    least = 1.0
    for low in grid:
        for high in grid:
            each = torch.zeros(3)
            each[FIRST], each[SECOND] = low, high
            found = (out.squeeze(-1) > each[rows.group]).float()
            if equal_opportunity(found, rows.y, rows.group, pair) <= gap:
                least = min(least, wrong(found, rows))
    assert wrong(said, rows) < least + 0.003  # the search knows these rows' labels, the front knows chances


def test_on_other_rows_it_costs_less_than_rates_that_are_equal_for_everybody():
    postprocessing = pytest.importorskip("fairlearn.postprocessing", reason="extra fairness is not installed")
    from warmstart.studies.select_census import Scorer

    (out, rows), (asked, others) = sample(4000, 1), sample(20000, 2)
    said = thresholds.guess(asked, others.group, thresholds.fit(out, rows, (FIRST, SECOND)))
    rival = postprocessing.ThresholdOptimizer(
        estimator=Scorer(),
        constraints="true_positive_rate_parity",
        objective="accuracy_score",
        prefit=True,
        predict_method="predict",
    )
    rival.fit(out.double().sigmoid().numpy(), rows.y.numpy(), sensitive_features=rows.group.numpy())
    theirs = rival.predict(asked.double().sigmoid().numpy(), sensitive_features=others.group.numpy(), random_state=0)
    before = equal_opportunity((asked.squeeze(-1) > 0).float(), others.y, others.group, (FIRST, SECOND))
    assert before > 0.15 and equal_opportunity(said, others.y, others.group, (FIRST, SECOND)) < 0.05
    assert wrong(said, others) < wrong(torch.from_numpy(theirs).float(), others)


def test_one_row_by_hand():
    """Four of six rows are positive, two in each group; the first group's second one turns at p = .4, for a price of
    (1/.4 - 2) / 3 = 1/6; the next to turn is the second group's .8, for (2 - 1/.8) / 3 = 1/4."""
    p = torch.tensor([0.7, 0.4, 0.8, 0.9, 0.2, 0.3])
    rows = Rows((), torch.tensor([1.0, 1, 1, 1, 0, 0]), torch.tensor([0, 0, 1, 1, 0, 1]))
    fitted = thresholds.fit(torch.logit(p)[:, None], rows, (0, 1))
    price = (1 / 6 + 1 / 4) / 2
    assert fitted.sigmoid().tolist() == pytest.approx([1 / (2 + 3 * price), 1 / (2 - 3 * price)])
    assert thresholds.guess(torch.logit(p)[:, None], rows.group, fitted).tolist() == [1, 1, 1, 1, 0, 0]
    assert thresholds.guess(torch.tensor([[0.1]]), torch.tensor([5]), fitted).tolist() == [1]


def test_a_gap_that_may_stay_changes_nothing_and_bad_input_is_refused():
    out, rows = sample(500, 3)
    assert thresholds.fit(out, rows, (FIRST, SECOND), most=1.0).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="two classes"):
        thresholds.fit(torch.zeros(500, 3), rows, (FIRST, SECOND))
    with pytest.raises(InputError, match="positives"):
        thresholds.fit(out, rows._replace(y=torch.zeros(500)), (FIRST, SECOND))


@pytest.mark.parametrize(("levels", "small"), [(9, 0.3), (0, 0.04)], ids=["few scores", "a small group"])
def test_ties_and_leaps_never_widen_the_gap(levels, small):
    draw, tried = torch.Generator().manual_seed(4), 0
    for _ in range(60):
        group = (torch.rand(300, generator=draw) < small).long()
        out = 1.5 * torch.randn(300, generator=draw).double() - 0.3 * group
        out = torch.logit(((levels + 1) * out.sigmoid()).round().clamp(1, levels) / (levels + 1)) if levels else out
        y = (torch.rand(300, generator=draw) < out.sigmoid()).double()
        if not ((y == 1) & (group == 1)).any():
            continue
        rows, tried = Rows((), y, group), tried + 1
        said = thresholds.guess(out[:, None], group, thresholds.fit(out[:, None], rows, (0, 1)))
        before = float(equal_opportunity((out > 0).double(), y, group, (0, 1)))
        assert float(equal_opportunity(said, y, group, (0, 1))) <= before + 1e-9
    assert tried > 40


def test_no_rows_are_no_guesses():
    assert thresholds.guess(torch.zeros(0, 1), torch.zeros(0, dtype=torch.long), torch.zeros(2)).tolist() == []
