"""Sets of sources in closed form, against scikit-learn's ridge on the rows themselves."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from warmstart.core import InputError
from warmstart.selection import closed_form
from warmstart.selection.closed_form import Config, Moments


def case(rows=60, size=5, classes=3, functions=4, seed=0):
    """Votes of functions of unequal coverage; the last column of x is 1."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, size, generator=draw, dtype=torch.float64)
    x = torch.cat([x, torch.ones(rows, 1).double()], 1)
    votes = torch.randint(-1, classes, (rows, functions), generator=draw)
    own = torch.cat([torch.randn(23, size, generator=draw).double(), torch.ones(23, 1).double()], 1)
    labels = torch.arange(23) % classes
    return x, votes, closed_form.label(own, labels, classes, folds=4, seed=1)


def ridge(x, y, w, penalty, asked):
    """An independent route: rows with weights, an intercept that is not penalised."""
    model = Ridge(alpha=penalty).fit(x[:, :-1].numpy(), y.numpy(), sample_weight=np.asarray(w))
    return model.predict(asked[:, :-1].numpy())


def test_held_out_outputs_are_those_of_ridge_on_the_rows():
    x, votes, labelled = case()
    cfg, members = Config(weight=2.5, penalty=0.7), torch.tensor([[1.0, 0, 1, 1], [0, 1, 0, 0]])
    said = closed_form.outputs(closed_form.of_votes(x, votes, 3), members, labelled, cfg)
    for row, functions in enumerate(([0, 2, 3], [1])):
        parts = [(x[votes[:, j] >= 0], votes[:, j][votes[:, j] >= 0]) for j in functions]
        for fold in range(4):
            there = labelled.fold == fold
            rows = torch.cat([*(part for part, _ in parts), labelled.x[~there]])
            y = torch.cat([*(torch.eye(3)[vote] for _, vote in parts), labelled.y[~there]])
            w = [1.0] * (len(rows) - int((~there).sum())) + [2.5] * int((~there).sum())
            expected = ridge(rows, y, w, 0.7, labelled.x[there])
            np.testing.assert_allclose(said[row, there], expected, atol=2e-4)


def test_the_final_model_has_all_labelled_rows():
    x, votes, labelled = case()
    sets = closed_form.total(closed_form.of_votes(x, votes, 3), torch.zeros(1, 4))
    w = closed_form.fit(sets, labelled, Config(weight=3.0, penalty=1.5))[0]
    expected = ridge(labelled.x, labelled.y, [3.0] * 23, 1.5, x)
    np.testing.assert_allclose(x @ w, expected, atol=2e-4)


def test_folds_are_alike_in_classes():
    labelled = case()[2]
    counts = torch.stack([labelled.y[labelled.fold == fold].sum(0) for fold in range(4)])
    assert counts.sum() == 23 and int((counts.max(0).values - counts.min(0).values).max()) <= 1


def test_squared_error_by_hand():
    out, y = torch.tensor([[[0.5, 0.0], [0.0, 1.0]]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert closed_form.squared_error(out, y).tolist() == [0.125]


def test_too_few_labelled_rows_are_refused():
    with pytest.raises(InputError, match="2 to 3 folds"):
        closed_form.label(torch.ones(3, 2), torch.tensor([0, 1, 1]), 2, folds=5)


def test_moments_of_sets_add_up():
    x, votes, _ = case()
    each = closed_form.of_votes(x, votes, 3)
    both = closed_form.total(each, torch.tensor([[1.0, 0, 0, 1]]))
    assert isinstance(both, Moments)
    torch.testing.assert_close(both.gram[0], each.gram[0] + each.gram[3])
    torch.testing.assert_close(both.cross[0], each.cross[0] + each.cross[3])
