"""Measures by hand, for one and several models, two and more classes."""

import pytest
import torch

from warmstart.core import InputError
from warmstart.metrics.groups import demographic_parity, equal_opportunity, group_accuracy, worst_group
from warmstart.selection.measures import cross_entropy, named, negative_margin, zero_one
from warmstart.tasks.transfer import Rows

Y = torch.tensor([1.0, 0, 1, 0, 1, 1])
GROUP = torch.tensor([0, 0, 0, 1, 1, 1])
OUT = torch.tensor([[2.0, -1, -1, 3, 1, -2], [1.0, 1, 1, 1, 1, 1]]).unsqueeze(-1)
ROWS = Rows((), Y, GROUP)


def test_binary_measures():
    torch.testing.assert_close(negative_margin(OUT, ROWS), -torch.tensor([(2 + 1 - 1 - 3 + 1 - 2) / 6, 2 / 6]))
    torch.testing.assert_close(zero_one(OUT, ROWS), torch.tensor([3 / 6, 2 / 6]))
    losses = torch.nn.functional.binary_cross_entropy_with_logits(OUT[0, :, 0], Y)
    torch.testing.assert_close(cross_entropy(OUT, ROWS)[0], losses)


def test_measures_of_three_classes():
    out = torch.tensor([[[3.0, 1, 0], [0, 2, 5], [1, 1.5, 0]]])
    rows = Rows((), torch.tensor([0, 1, 0]), torch.zeros(3, dtype=torch.long))
    torch.testing.assert_close(negative_margin(out, rows), -torch.tensor([(2 - 3 - 0.5) / 3]))
    torch.testing.assert_close(zero_one(out, rows), torch.tensor([2 / 3]))
    torch.testing.assert_close(cross_entropy(out, rows)[0], torch.nn.functional.cross_entropy(out[0], rows.y))


def test_groups():
    guess = (OUT.squeeze(-1) > 0).float()
    assert {g: a.tolist() for g, a in group_accuracy(guess, Y, GROUP, 3).items()} == {
        0: pytest.approx([2 / 3, 2 / 3]),
        1: pytest.approx([1 / 3, 2 / 3]),
    }
    torch.testing.assert_close(worst_group(guess, Y, GROUP, 3), torch.tensor([1 / 3, 2 / 3]))
    torch.testing.assert_close(demographic_parity(guess, GROUP, (0, 1)), torch.tensor([1 / 3, 0.0]))
    torch.testing.assert_close(equal_opportunity(guess, Y, GROUP, (0, 1)), torch.tensor([0.0, 0.0]))
    torch.testing.assert_close(named("worst-group", smallest=3)(OUT, ROWS), torch.tensor([2 / 3, 1 / 3]))
    # a gap counts with the error, of which the model that says the same of everybody has more
    torch.testing.assert_close(named("demographic-parity")(OUT, ROWS), torch.tensor([1 / 3 + 3 / 6, 0.0 + 2 / 6]))
    torch.testing.assert_close(named("equal-opportunity")(OUT, ROWS), torch.tensor([3 / 6, 2 / 6]))


def test_small_groups_are_left_out():
    group = torch.tensor([0, 0, 0, 0, 0, 1])
    torch.testing.assert_close(worst_group((OUT.squeeze(-1) > 0).float(), Y, group, 5), torch.tensor([3 / 5, 3 / 5]))


def test_what_is_undefined_is_refused():
    guess = (OUT.squeeze(-1) > 0).float()
    with pytest.raises(InputError, match="a group of at least 200 rows"):
        worst_group(guess, Y, GROUP)
    with pytest.raises(InputError, match="positives in group 1, got none"):
        equal_opportunity(guess, torch.tensor([1.0, 1, 1, 0, 0, 0]), GROUP, (0, 1))
    with pytest.raises(InputError, match="rows in group 2"):
        demographic_parity(guess, GROUP, (0, 2))
    with pytest.raises(InputError, match="a measure among"):
        named("auc")
