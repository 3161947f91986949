"""Stacked training is separate training: against a plain loop with torch's own modules and optimiser."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from warmstart.core import Columns, InputError
from warmstart.core.trees import take
from warmstart.engine.noise import generator
from warmstart.engine.stage import PLAIN
from warmstart.models.mlp import seeded
from warmstart.models.one_hot import OneHotNet
from warmstart.models.transformer import Shape, TransformerNet
from warmstart.selection.training import Config, draw, mixture, outputs, shares, train_models
from warmstart.tasks.transfer import Rows, make_transfer

CFG = Config(hidden=(8,), steps=30, batch=16, lr=0.02, weight_decay=0.1, balance=0.5, chunk=2)


def by_hand(transfer, share, cfg, seed):
    """One model, the way a user of torch would write it, drawing rows by hand."""
    build, inside = (OneHotNet, cfg.hidden) if cfg.text is None else (TransformerNet, cfg.text)
    with seeded(seed):
        module = build(transfer.columns, inside, transfer.outputs, len(transfer.names) if cfg.own_heads else 1)
    optimiser = torch.optim.AdamW(module.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
    uniform = torch.rand(cfg.steps, 2, cfg.batch, generator=generator(seed, 7))
    edges = share.cumsum(0) / share.sum()
    for done in range(cfg.steps):
        optimiser.param_groups[0]["lr"] = cfg.lr * 0.5 * (1 + math.cos(math.pi * done / cfg.steps))
        task = [int((edges <= u).sum()) for u in uniform[done, 0]]
        length = [int(transfer.pool.lengths[t]) for t in task]
        rows = [
            int(transfer.pool.offsets[t]) + int(u * n) for t, n, u in zip(task, length, uniform[done, 1], strict=True)
        ]
        x = {**take(transfer.pool.x, rows), "head": torch.tensor(task)}
        y, out = transfer.pool.y[rows], module(x)
        if transfer.outputs == 1:
            loss = functional.binary_cross_entropy_with_logits(out.squeeze(-1), y)
        else:
            loss = functional.cross_entropy(out, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module


@pytest.mark.parametrize(("own_heads", "classes"), [(False, 2), (True, 2), (True, 3)])
def test_stacked_training_equals_separate_training(make_planted, own_heads, classes):
    members = torch.tensor([[1.0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1]])
    equals_separate_training(make_planted(classes=classes), replace(CFG, own_heads=own_heads), members)


@pytest.mark.parametrize("own_heads", [False, True])
def test_stacked_training_of_transformers_equals_separate_training(written, own_heads):
    cfg = replace(CFG, text=Shape(width=8, layers=2, views=2), own_heads=own_heads)
    equals_separate_training(written(apart=own_heads), cfg, torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 1]]))


def equals_separate_training(transfer, cfg, members):
    share = shares(transfer, members, cfg.balance)
    phi = train_models(transfer, share, cfg, seed=4)
    said = outputs(transfer, cfg, phi, transfer.validation.x)
    for i in range(len(members)):
        module = by_hand(transfer, share[i], cfg, 4)
        for name, value in module.named_parameters():
            if value.grad is None:  # torch decays only what has a gradient; there are no codes to look up here
                continue
            torch.testing.assert_close(phi[name][i], value.detach(), atol=1e-5, rtol=1e-5)
        home = torch.full((len(transfer.validation.y),), transfer.sources)
        torch.testing.assert_close(
            said[i], module({**transfer.validation.x, "head": home}).detach(), atol=1e-5, rtol=1e-5
        )


def test_neither_chunks_nor_the_stage_change_what_is_trained(make_planted):
    transfer = make_planted()
    share = shares(transfer, torch.eye(6), CFG.balance)
    whole = train_models(transfer, share, replace(CFG, chunk=6), seed=1, stage=PLAIN)
    parts = train_models(transfer, share, replace(CFG, chunk=4), seed=1)
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], atol=1e-6, rtol=1e-5)


def test_rows_come_from_chosen_tasks_in_proportion(make_planted):
    transfer = make_planted()
    share = shares(transfer, torch.tensor([[1.0, 0, 0, 1, 0, 0]]), balance=1.0)
    u = torch.rand(2, 40_000, generator=generator(0, 1))
    drawn = draw(transfer, mixture(share), u)
    counts = torch.bincount(drawn.task[0], minlength=7).float()
    wanted = torch.tensor([300.0, 0, 0, 330, 0, 0, 40])
    assert (counts[wanted == 0] == 0).all()
    torch.testing.assert_close(counts / counts.sum(), wanted / wanted.sum(), atol=0.01, rtol=0)
    assert torch.equal(drawn.rows.x["head"], drawn.task)
    first, last = transfer.pool.offsets[drawn.task], transfer.pool.offsets[drawn.task + 1]
    index = (transfer.pool.x["numeric"][:, 0] == drawn.rows.x["numeric"][0, :50, :1]).float().argmax(1)
    assert ((index >= first[0, :50]) & (index < last[0, :50])).all()


def test_the_largest_uniform_still_finds_a_chosen_task(make_planted):
    transfer = make_planted()
    share = shares(transfer, torch.tensor([[1.0, 0, 0, 0, 0, 0]]))
    share[:, -1] = 0.0
    one = torch.tensor([[1 - 2**-24], [1 - 2**-24]])
    drawn = draw(transfer, mixture(share / 3), one)
    assert drawn.task.tolist() == [[0]] and drawn.rows.y[0, 0] == transfer.pool.y[299]


def test_codes_are_looked_up_as_by_hand():
    """Three columns of codes, of which a row's lines are added up, and a bag with missing ones."""
    draw = torch.Generator().manual_seed(1)

    def rows(count):
        x = {
            "numeric": torch.randn(count, 1, generator=draw),
            "categorical": torch.randint(0, 4, (count, 3), generator=draw),
            "bag": torch.randint(0, 5, (count, 1, 2), generator=draw),
        }
        return Rows(x, (x["categorical"].sum(1) > 4).float(), torch.zeros(count, dtype=torch.long))

    columns = Columns(1, (4, 4, 4), (5,))
    transfer = make_transfer([rows(30), rows(50)], rows(40), rows(20), rows(20), columns=columns)
    share = shares(transfer, torch.eye(2), 1.0)
    phi = train_models(transfer, share, CFG, 3)
    for i in range(2):
        for name, weight in by_hand(transfer, share[i], CFG, 3).named_parameters():
            torch.testing.assert_close(phi[name][i], weight.detach(), atol=1e-5, rtol=1e-5)


def test_seeds_are_one_or_as_many_as_models(make_planted):
    transfer = make_planted()
    with pytest.raises(InputError, match="one seed, or one for each model, got 2 for 6"):
        train_models(transfer, shares(transfer, torch.eye(6), 0.5), CFG, (0, 1))


def test_models_may_have_seeds_of_their_own(make_planted):
    """Three, in chunks of two, against a loop by hand for each."""
    transfer, seeds = make_planted(), (4, 0, 9)
    share = shares(transfer, torch.tensor([[1.0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1]]), 0.5)
    found = train_models(transfer, share, CFG, seeds)
    for i, seed in enumerate(seeds):
        for name, weight in by_hand(transfer, share[i], CFG, seed).named_parameters():
            if weight.grad is not None:  # see above
                torch.testing.assert_close(found[name][i], weight.detach(), atol=1e-5, rtol=1e-5)


def test_models_may_start_elsewhere(make_planted):
    transfer = make_planted()
    share = shares(transfer, torch.ones(2, 6))
    once = train_models(transfer, share, CFG, seed=1)
    still = train_models(transfer, share, replace(CFG, steps=1, lr=0.0), seed=2, start=once)
    assert all(torch.equal(once[name], still[name]) for name in once)


def test_the_table_is_one_hot_and_a_dense_layer():
    columns = Columns(2, (4, 3), (5,))
    net = OneHotNet(columns, (6, 4), 2)
    x = {
        "numeric": torch.randn(7, 2),
        "categorical": torch.stack([torch.randint(4, (7,)), torch.randint(3, (7,))], 1),
        "bag": torch.randint(5, (7, 1, 3)),
    }
    one_hot = torch.zeros(7, 12)
    for row in range(7):
        one_hot[row, x["categorical"][row, 0]] += 1
        one_hot[row, 4 + x["categorical"][row, 1]] += 1
        for member in x["bag"][row, 0]:
            one_hot[row, 7 + member] += float(member > 0)
    first = one_hot @ net.table.weight + net.numbers(x["numeric"])
    dense = nn.Sequential(nn.ReLU(), net.body, net.head)
    torch.testing.assert_close(net(x), dense(first))


def test_a_head_for_all_is_refused_where_labels_differ(written):
    with pytest.raises(InputError, match="a head for each task"):
        train_models(written(apart=True), torch.ones(1, 5), replace(CFG, text=Shape(8, 1, 2)))


def test_words_in_their_order_need_a_transformer(written):
    with pytest.raises(InputError, match=r"a transformer for words in their order, got hidden layers; .*final\.Config"):
        train_models(written(), torch.ones(1, 5), CFG)


def test_a_transformer_of_a_table_is_refused(written):
    with pytest.raises(InputError, match="texts for a transformer"):
        train_models(written()._replace(schema="any"), torch.ones(1, 5), replace(CFG, text=Shape(8, 1, 2)))
