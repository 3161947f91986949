"""Every rival ends in the same thing, and does on planted data what its idea says."""

import pytest
import torch

from warmstart.core import functional, make_batch
from warmstart.engine.stage import PLAIN
from warmstart.maths.optim import adam, sgd
from warmstart.models.likelihoods import binary
from warmstart.models.mlp import MLP
from warmstart.selection import affinity, attittud, contrast, fixed_sets, hoa, reweighting, tawt
from warmstart.selection.final import Config
from warmstart.selection.measures import cross_entropy, zero_one
from warmstart.selection.rates import rates
from warmstart.selection.training import Config as Training
from warmstart.selection.training import Drawn, Inner, shares, train_models

SHORT = Training(hidden=(8,), steps=60, batch=128, balance=0.0)
CFG = Config(Training(hidden=(8,), steps=100, batch=128), tuning=0)
RIVALS = {
    "all sources": fixed_sets.all_sources,
    "target only": fixed_sets.target_only,
    "random order": fixed_sets.random_order,
    "hoa": lambda *args: hoa.fit(*args, training=SHORT),
    "cosine": lambda *args: affinity.fit_cosine(*args, training=SHORT),
    "tag": lambda *args: affinity.fit_tag(*args, training=SHORT),
    "tawt": tawt.fit,
    "attittud": attittud.fit,
    "importance": reweighting.fit_importance,
    "group dro": reweighting.fit_dro,
    "correct-n-contrast": contrast.fit,
}


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_fits_and_predicts(make_planted, name):
    transfer = make_planted()
    fitted = RIVALS[name](transfer, cross_entropy, CFG, 3, 0)
    assert fitted.trials == 3 and fitted.members.shape == (6,)
    said = fitted.outputs(transfer.validation.x)
    torch.testing.assert_close(float(cross_entropy(said[None], transfer.validation)), fitted.value, atol=1e-5, rtol=0)
    assert zero_one(fitted.outputs(transfer.test.x)[None], transfer.test) < 0.35  # 0.5 is chance


def test_rankings_put_the_opposite_rule_last(make_planted):
    transfer = make_planted()
    cosine, ahead = affinity.looks(transfer, SHORT, 0, 0.1)
    alone = hoa.scores(transfer, cross_entropy, SHORT, 0)
    for scores in (cosine, ahead, alone):
        assert scores[:4].max() < scores[4:].min()


def stacked(step, transfer, share, extra, lr=0.02):
    return train_models(transfer, share, Training(hidden=(8,), steps=80, batch=256, lr=lr), 0, step=step, extra=extra)


def test_weights_of_tasks_follow_the_target(make_planted):
    """By one step of TAWT: a task whose loss falls along the target's gradient gains, one whose loss rises loses."""
    torch.manual_seed(0)
    model, x = functional(MLP(2, (4,), 1)), torch.randn(90, 2)
    rule = (x[:, 0] > 0).float()
    task = torch.arange(90) // 30
    y = torch.where(task == 1, 1 - rule, rule)
    drawn = Drawn(make_batch(x, y), task, task)
    optimiser = adam()
    inner = Inner(model.params, optimiser.init(model.params), {"logs": torch.zeros(3), "eta": torch.tensor(5.0)})
    step = tawt.weighted_step(model, binary, optimiser)
    for _ in range(30):
        inner, _ = step(torch.tensor(0.05), inner, drawn)
    weight = inner.extra["logs"].exp()
    assert weight.sum() == pytest.approx(1.0)
    assert weight[1] < 0.5 * weight[0] and weight[0] < weight[2]


def test_decomposition_is_plain_descent_when_everything_counts_fully():
    """helps = hurts = rest = 1: the target's gradient plus the sources', however the basis lies."""
    torch.manual_seed(0)
    model, x, y = functional(MLP(2, (4,), 1)), torch.randn(40, 2), (torch.rand(40) > 0.4).float()
    task = (torch.arange(40) % 2 == 0).long()
    drawn = Drawn(make_batch(x, y), task, task)
    one = {name: torch.tensor(1.0) for name in ("helps", "hurts", "rest")} | {"target": torch.tensor(1)}
    inner = Inner(model.params, (), one)
    moved, _ = attittud.decomposed_step(model, binary, sgd())(torch.tensor(0.3), inner, drawn)

    def both(phi):
        rows = binary.loss(model.apply(phi, x), y)
        return rows[task == 1].mean() + rows[task == 0].mean()

    slope = torch.func.grad(both)(model.params)
    for name, value in model.params.items():
        torch.testing.assert_close(moved.phi[name], value - 0.3 * slope[name], atol=1e-5, rtol=1e-4)


def test_decomposition_can_leave_out_what_hurts():
    """With rest = hurts = 0 the sources' part never points against the target's gradient within the basis."""
    torch.manual_seed(1)
    model, x = functional(MLP(2, (4,), 1)), torch.randn(40, 2)
    task = (torch.arange(40) % 2 == 0).long()
    y = torch.where(task == 1, (x[:, 0] > 0).float(), (x[:, 0] < 0).float())
    drawn = Drawn(make_batch(x, y), task, task)

    def after(helps, hurts, rest):
        settings = {"helps": helps, "hurts": hurts, "rest": rest}
        extra = {name: torch.tensor(value) for name, value in settings.items()} | {"target": torch.tensor(1)}
        phi = attittud.decomposed_step(model, binary, sgd())(torch.tensor(0.1), Inner(model.params, (), extra), drawn)[
            0
        ]
        return binary.loss(model.apply(phi.phi, x[task == 1]), y[task == 1]).mean()

    assert after(1.0, 0.0, 0.0) < after(0.0, 0.0, 0.0) + 1e-4 < after(1.0, 1.0, 1.0)


def test_group_dro_moves_weight_to_the_group_with_the_larger_loss():
    torch.manual_seed(0)
    model, x = functional(MLP(2, (4,), 1)), torch.randn(60, 2)
    group = (torch.arange(60) < 10).long()
    y = torch.where(group == 1, (torch.rand(60) > 0.5).float(), torch.zeros(60))
    drawn = Drawn(make_batch(x, y), group, group)
    optimiser = adam()
    inner = Inner(
        model.params, optimiser.init(model.params), {"logs": torch.tensor([0.5, 0.5]).log(), "eta": torch.tensor(0.3)}
    )
    before = [binary.loss(model.apply(model.params, x[group == g]), y[group == g]).mean() for g in (0, 1)]
    step = reweighting.dro_step(model, binary, optimiser)
    first, _ = step(torch.tensor(0.01), inner, drawn)
    odds = first.extra["logs"][1] - first.extra["logs"][0]
    torch.testing.assert_close(odds, 0.3 * (before[1] - before[0]))
    for _ in range(30):
        first, _ = step(torch.tensor(0.01), first, drawn)
    assert first.extra["logs"].exp()[1] > 0.6


def test_group_dro_has_no_weight_for_a_group_that_training_rows_lack(make_planted):
    transfer = make_planted()
    more = transfer._replace(groups=(*transfer.groups, "nobody"))
    fitted = reweighting.fit_dro(more, cross_entropy, CFG, 2, 0)
    same = reweighting.fit_dro(transfer, cross_entropy, CFG, 2, 0)
    torch.testing.assert_close(fitted.value, same.value, atol=1e-5, rtol=0)


def test_importance_weighting_is_a_weighted_mean():
    torch.manual_seed(0)
    model, x, y = functional(MLP(2, (4,), 1)), torch.randn(30, 2), (torch.rand(30) > 0.5).float()
    group = torch.arange(30) % 3
    weight = torch.tensor([1.0, 2.0, 5.0])
    drawn = Drawn(make_batch(x, y), group, group)
    moved, value = reweighting.importance_step(model, binary, sgd())(
        torch.tensor(0.1), Inner(model.params, (), {"weight": weight}), drawn
    )
    rows = binary.loss(model.apply(model.params, x), y)
    torch.testing.assert_close(value, (rows * weight[group]).sum() / weight[group].sum())
    assert not torch.equal(moved.phi["head.bias"], model.params["head.bias"])


def test_contrast_by_hand():
    features = torch.tensor([[1.0, 0], [0, 1], [1, 1], [2, 0]])
    y, guesses = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0])
    unit = features / features.norm(dim=1, keepdim=True)
    s = (unit @ unit.T / 0.1).exp()
    # anchor 0 (label 1, guess 1): positive 1, negative 2; and so on round
    terms = [(0, 1, 2), (1, 0, 3), (2, 3, 0), (3, 2, 1)]
    expected = torch.stack([-torch.log(s[a, p] / (s[a, p] + s[a, n])) for a, p, n in terms]).mean()
    torch.testing.assert_close(contrast.contrast_loss(features, y, guesses), expected, rtol=1e-4, atol=1e-4)
    assert contrast.contrast_loss(features, y, y) == 0  # a right guess everywhere leaves no positives


def test_rates_scale_a_step(make_planted):
    transfer = make_planted()
    share = shares(transfer, torch.ones(2, 6))
    both = stacked(fixed_sets.scaled_step, transfer, share, {"rate": torch.tensor([1.0, 0.5])})
    half = train_models(transfer, share[:1], Training(hidden=(8,), steps=80, batch=256, lr=0.01), 0, stage=PLAIN)
    for name in half:
        torch.testing.assert_close(both[name][1], half[name][0], atol=1e-5, rtol=1e-4)
    assert rates(5)[0] == 1.0 and len(rates(5).unique()) == 5
