"""The design matrix written out by hand."""

import pytest
import torch

from warmstart.baselines import design as d
from warmstart.core import Columns

COLUMNS = Columns(1, (5,), (4,))
X = {
    "numeric": torch.tensor([[1.0], [3.0], [5.0]]),
    "categorical": torch.tensor([[2], [4], [0]]),
    "bag": torch.tensor([[[2, 3, 0]], [[3, 0, 0]], [[0, 0, 0]]]),
}
NUMBERS = [-(1.5**0.5), 0, 1.5**0.5]


def test_dense_by_hand():
    # the category's columns: other, value 2, value 4 (3 never came); the bag's: other, 2, 3
    fitted = d.fit_design(X, COLUMNS)
    expected = torch.tensor(
        [
            [NUMBERS[0], 0, 1, 0, 0, 1, 1],
            [NUMBERS[1], 0, 0, 1, 0, 0, 1],
            [NUMBERS[2], 0, 0, 0, 0, 0, 0],
        ]
    )
    torch.testing.assert_close(d.dense(fitted, X), expected)
    rows = expected[:, None] - expected[None]
    assert fitted.spread**2 == pytest.approx((rows**2).sum(-1).mean().item(), rel=1e-5)


def test_unseen_values_share_the_other_column():
    fitted = d.fit_design(X, COLUMNS)
    new = {"numeric": torch.zeros(1, 1), "categorical": torch.tensor([[3]]), "bag": torch.tensor([[[1, 3, 0]]])}
    assert d.dense(fitted, new)[0, 1:].tolist() == [1, 0, 0, 1, 0, 1]


def test_coded_keeps_a_category_in_one_column():
    fitted = d.fit_design(X, COLUMNS)
    codes = d.coded(fitted, X)
    assert codes[:, 1].tolist() == [2, 3, 0]
    torch.testing.assert_close(codes[:, 2:], d.dense(fitted, X)[:, 4:])
    assert d.code_columns(fitted) == [False, True, False, False, False]


def test_stacks_are_rows():
    fitted = d.fit_design(X, COLUMNS)
    index = torch.tensor([[0, 1], [2, 0]])
    stacked = {name: leaf[index] for name, leaf in X.items()}
    for form in (d.dense, d.coded):
        torch.testing.assert_close(form(fitted, stacked), form(fitted, X)[index])


def test_a_long_column_keeps_its_most_frequent_values(monkeypatch):
    monkeypatch.setattr(d, "LEVELS", 2)
    index = torch.tensor([2, 3, 3, 4, 5, 5, 5, 6])
    x = {"numeric": torch.zeros(8, 0), "categorical": index[:, None], "bag": torch.zeros(8, 0, 1, dtype=torch.long)}
    made = d.dense(d.fit_design(x, Columns(0, (7,))), x)
    expected = torch.stack([~torch.isin(index, torch.tensor([3, 5])), index == 3, index == 5], -1).float()
    assert torch.equal(made, expected)


def test_a_plain_tensor_is_numbers():
    x = torch.tensor([[1.0, 7.0], [3.0, 7.0]])
    fitted = d.fit_design(x, Columns())
    assert d.dense(fitted, x).tolist() == [[-1, 0], [1, 0]]
    assert d.code_columns(fitted) == [False, False]
    assert d.dense(d.fit_design(x[:, :0], Columns()), x[:, :0]).shape == (2, 0)
