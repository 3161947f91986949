"""Task modelling finds planted sources, and says how sure it is."""

import math
from dataclasses import replace

import pytest
import torch

from warmstart.core import InputError
from warmstart.models.transformer import Shape
from warmstart.selection import final, task_model
from warmstart.selection.measures import cross_entropy, negative_margin, zero_one
from warmstart.selection.training import Config as Training
from warmstart.selection.training import form, parameters
from warmstart.tasks.transfer import Rows

TRAINING = Training(hidden=(8,), steps=60, batch=64, balance=0.0)
CFG = task_model.Config(size=2, subsets=12, held_out=3, training=TRAINING)
FINAL = final.Config(Training(hidden=(8,), steps=100, batch=64), tuning=20)
HARMFUL = torch.tensor([False] * 4 + [True] * 2)


@pytest.mark.parametrize("linear", [False, True])
def test_sources_with_the_opposite_rule_are_left_out(make_planted, linear):
    transfer = make_planted()
    cfg = replace(CFG, linear=linear, surrogate=replace(CFG.surrogate, draws=50))
    found = task_model.estimate(transfer, cfg)
    theta = found.surrogate.theta
    assert theta[~HARMFUL].max() < 0 < theta[HARMFUL].min()
    assert (found.surrogate.low[HARMFUL] > found.surrogate.high[~HARMFUL].max()).all()
    chosen = task_model.select(transfer, found, cfg=FINAL, trials=4)
    assert not chosen.members[HARMFUL].any() and chosen.members[~HARMFUL].sum() >= 3
    everything = final.choose(transfer, torch.ones(1, 6), cross_entropy, FINAL)
    error, worse = (zero_one(fit.outputs(transfer.test.x)[None], transfer.test) for fit in (chosen, everything))
    assert error < worse - 0.02
    assert (found.comparison is not None) == math.isnan(found.ceiling) == linear
    if linear:
        assert found.comparison.spearman > 0.7


@pytest.mark.parametrize("linear", [False, True])
def test_a_transformer_finds_sources_whose_texts_mean_the_same(written, linear):
    transfer = written()
    training = Training(text=Shape(width=16, layers=1, views=2), steps=80, batch=32, lr=0.01, balance=0.0)
    cfg = task_model.Config(size=2, subsets=4, held_out=2, starts=1, linear=linear, training=training)
    theta = task_model.estimate(transfer, cfg).surrogate.theta
    assert theta[:2].max() < theta[2:].min()
    if not linear:
        helped = final.choose(transfer, torch.tensor([[1.0, 1, 0, 0]]), cross_entropy, final.Config(training))
        assert zero_one(helped.outputs(transfer.test.x)[None], transfer.test) < 0.05  # a count of words says nothing


def test_what_is_kept_says_which_network_it_is(written):
    transfer, shape = written(apart=True), Shape(width=8, layers=1, views=2, wider=3)
    training = Training(text=shape, own_heads=True, steps=2, batch=8)
    kept = final.choose(transfer, torch.ones(1, 4), cross_entropy, final.Config(training, tuning=0)).kept
    again = replace(Training(), text=Shape(**kept.form["text"]), own_heads=kept.form["own_heads"])
    wanted = parameters(form(transfer, again))
    assert {name: value.shape for name, value in kept.tensors.items()} == {n: v.shape for n, v in wanted.items()}
    with pytest.raises(InputError, match="a transformer for words in their order"):
        final.choose(transfer, torch.ones(1, 4), cross_entropy, final.Config(replace(training, text=None)))


def test_f_may_come_from_elsewhere_and_is_averaged_over_starts(make_planted):
    transfer, seen = make_planted(), []

    def evaluate(members, seed):
        seen.append(seed)
        return members @ torch.arange(6.0) + 0.1 * seed

    found = task_model.estimate(transfer, replace(CFG, starts=3), seed=2, evaluate=evaluate)
    assert seen == [2000, 2001, 2002]
    torch.testing.assert_close(found.f, found.indicators @ torch.arange(6.0) + 200.1)
    assert found.quality.spearman == pytest.approx(1.0) and found.ceiling == pytest.approx(1.0)


def test_zero_stands_unless_validation_is_sure(make_planted):
    transfer = make_planted()
    sets = torch.tensor([[1.0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    close = final.choose(transfer, sets[:2], cross_entropy, FINAL, preferred=0)
    assert close.members.tolist() == [True, True, True, False, False, False]
    sure = final.choose(transfer, sets.flip(0), cross_entropy, FINAL, preferred=0)
    assert not sure.members[4:].any()


@pytest.mark.parametrize(("others", "chosen"), [(1, 1), (9, 0)])
def test_the_best_of_many_must_be_better_by_more_than_one_alone(make_planted, monkeypatch, others, chosen):
    transfer = make_planted()
    sets = torch.eye(others + 1)[:, [0]].expand(-1, 6)  # the first has all sources
    values = torch.tensor([2.5, 0.0] + [1.0] * (others - 1))
    monkeypatch.setattr(final, "outputs", lambda transfer, cfg, phi, x: torch.zeros(others + 1, 1, 1))
    monkeypatch.setattr(final, "standard_error", lambda *found: 1.0)
    phi = {"w": torch.arange(others + 1.0)}
    kept = final.keep_best(transfer, phi, sets, lambda out, rows: values, FINAL, preferred=0)
    assert bool(kept.members.all()) == (chosen == 0) and float(kept.kept.tensors["w"]) == chosen


def test_candidates_begin_with_the_sign_and_end_with_everything():
    theta = torch.tensor([0.5, -1.0, 0.2, -0.1])
    assert task_model.candidates(theta, 4).tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1]]
    assert task_model.candidates(theta, 1).tolist() == [[0, 1, 0, 1]]


def test_the_standard_error_is_that_of_a_paired_difference():
    draw = torch.Generator().manual_seed(0)
    out = torch.randn(2, 500, 1, generator=draw)
    rows = Rows((), torch.ones(500), torch.arange(500) % 3)
    difference = out[0, :, 0] - out[1, :, 0]
    expected = float(difference.std() / 500**0.5)
    assert final.standard_error(negative_margin, out, rows, draws=400) == pytest.approx(expected, rel=0.15)


def test_too_few_held_out_subsets_are_refused(make_planted):
    with pytest.raises(InputError, match="two held-out"):
        task_model.estimate(make_planted(), replace(CFG, held_out=1))
