"""Votes as features and own labels, against normal equations written out and rows that must not be seen."""

import pytest
import torch

from warmstart.selection import closed_form, self_training
from warmstart.selection.self_training import Config, beside, cast, fit, held_out

CFG = Config(votes=0.7, penalty=0.4, rounds=2, share=0.2, heat=2.5)


@pytest.fixture
def rows():
    draw = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(70, 4, generator=draw), torch.ones(70, 1)], 1).double()
    label = (x[:, 0] + 0.3 * x[:, 1] > 0).long() + (x[:, 2] > 0.5).long()
    votes = torch.stack([torch.where(x[:, 0] > 0.4, 1, -1), torch.where(x[:, 2] > 0.2, 2, 0)], 1)
    labelled = closed_form.label(x[:40], label[:40], 3, folds=4, seed=1)
    return labelled, x[40:], votes[:40], votes[40:]


def test_votes_that_the_first_part_never_casts_are_left_out():
    first, second = cast([torch.tensor([[1, -1], [-1, 0]]), torch.tensor([[0, 0], [1, 1]])], 2)
    assert first.tolist() == [[1, 0], [0, 1]] and second.tolist() == [[0, 1], [1, 0]]


def test_own_labels_are_those_of_normal_equations(rows):
    labelled, x, shown, others = rows
    seen, unseen = cast([shown, others], 3)
    z, u = beside(seen, labelled.x, CFG), beside(unseen, x, CFG)
    ridge = torch.diag(torch.tensor([CFG.penalty] * (z.shape[1] - 1) + [1e-6]).double())
    w = torch.linalg.inv(z.T @ z + ridge) @ z.T @ labelled.y
    torch.testing.assert_close(fit(z, labelled.y, u, Config(votes=0.7, penalty=0.4, rounds=0)), w)
    for _ in range(2):
        said = torch.exp(2.5 * u @ w)
        said = said / said.sum(1, keepdim=True)
        every = torch.cat([z, u])
        weight = torch.diag(torch.cat([torch.ones(len(z)), torch.full((len(u),), 0.2)]).double())
        w = torch.linalg.inv(every.T @ weight @ every + ridge) @ every.T @ weight @ torch.cat([labelled.y, said])
    torch.testing.assert_close(fit(z, labelled.y, u, CFG), w)


def test_without_votes_and_rounds_it_is_the_closed_form_of_labels_alone(rows):
    labelled, x, shown, others = rows
    plain = Config(votes=0.0, penalty=0.4, rounds=0)
    seen, unseen = cast([shown, others], 3)
    z, u = beside(seen, labelled.x, plain), beside(unseen, x, plain)
    nothing = closed_form.Moments(torch.zeros(1, 5, 5).double(), torch.zeros(1, 5, 3).double())
    expected = closed_form.held_out(nothing, labelled, closed_form.Config(weight=1.0, penalty=0.4))[0]
    torch.testing.assert_close(held_out(z, labelled, u, plain), expected)


def test_labels_of_a_fold_change_nothing_that_is_said_of_it(rows):
    labelled, x, shown, others = rows
    seen, unseen = cast([shown, others], 3)
    z, u = beside(seen, labelled.x, CFG), beside(unseen, x, CFG)
    there = labelled.fold == 2
    marked = labelled._replace(y=torch.where(there[:, None], 9.0, labelled.y))
    before, after = (held_out(z, each, u, CFG) for each in (labelled, marked))
    torch.testing.assert_close(after[there], before[there])
    assert not torch.allclose(after[~there], before[~there])


def test_votes_help_where_texts_do_not_tell():
    """The label is what the only function says; the text is noise."""
    draw = torch.Generator().manual_seed(3)
    x = torch.cat([torch.randn(200, 6, generator=draw), torch.ones(200, 1)], 1)
    label = torch.randint(2, (200,), generator=draw)
    labelled = closed_form.label(x[:60], label[:60], 2, seed=0)
    seen, unseen = cast([label[:60, None], label[60:, None]], 2)
    right = []
    for cfg in (self_training.Config(votes=1.0), self_training.Config(votes=0.0)):
        out = held_out(beside(seen, labelled.x, cfg), labelled, beside(unseen, x[60:], cfg), cfg)
        right.append(float((out.argmax(-1) == label[:60]).double().mean()))
    assert right[0] == 1.0 and right[1] < 0.75
