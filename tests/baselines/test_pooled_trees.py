"""Boosted trees on a transfer: categories, the task as a feature, and what members leave out."""

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.baselines import pooled_trees
from warmstart.core import InputError
from warmstart.tasks.roles import Roles
from warmstart.tasks.transfer import read_transfer

pytest.importorskip("lightgbm", reason="extra boost is not installed")
CFG = pooled_trees.Config(trees=60, smallest_leaf=5, l2=1.0, smooth=1.0)  # ten rows of each category


def transfer(flipped=False, classes=2):
    """The label is a permutation of a code's values; in source A it may be the opposite."""
    draw = np.random.default_rng(0)
    code = draw.integers(0, 300, 3000)
    y = (code * 7919 % 13) % classes
    state = np.repeat(["A", "B", "T"], 1000)
    y = np.where((state == "A") & flipped, classes - 1 - y, y)
    table = pd.DataFrame({"state": state, "code": code, "noise": draw.normal(size=3000), "y": y.astype(str)})
    return read_transfer(table, Roles(task="state", target="y", categorical=("code",)), "T")


def accuracy(found, members, cfg=CFG):
    outputs = pooled_trees.fit(found, torch.tensor(members), cfg)
    said = outputs(found.test.x)
    guess = (said[:, 0] > 0).float() if found.outputs == 1 else said.argmax(-1)
    return float((guess == found.test.y).float().mean())


def test_more_than_255_categories_are_learned_from_sources():
    found = transfer()
    assert accuracy(found, [1.0, 1.0]) > accuracy(found, [0.0, 0.0]) + 0.05
    assert accuracy(transfer(classes=3), [1.0, 1.0]) > 0.7


def test_a_source_that_is_left_out_does_not_hurt():
    found = transfer(flipped=True)
    assert accuracy(found, [0.0, 1.0]) > accuracy(found, [1.0, 1.0], pooled_trees.Config(with_task=False))


def test_rows_can_be_bounded_and_seeds_repeat():
    found = transfer()
    cfg = pooled_trees.Config(trees=10, rows=200)
    one, same = (pooled_trees.fit(found, torch.ones(2), cfg, seed=4)(found.test.x) for _ in range(2))
    assert torch.equal(one, same) and one.shape == (len(found.test.y), 1)


def test_trees_see_a_share_of_columns_and_rows():
    found = transfer()
    text = pooled_trees.fit(found, torch.ones(2), pooled_trees.Config(trees=5, columns=0.3, share=0.9)).text()
    assert "[feature_fraction: 0.3]" in text and "[bagging_fraction: 0.9]" in text and "[bagging_freq: 1]" in text


def test_lightgbm_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lightgbm", None)
    with pytest.raises(InputError, match=r"warmstart\[boost\]"):
        pooled_trees.fit(transfer(), torch.ones(2))


def test_words_in_their_order_are_refused():
    with pytest.raises(InputError, match="for boosted trees, got words in their order; make the texts TF-IDF"):
        pooled_trees.fit(transfer()._replace(ordered=True), torch.zeros(2), CFG)


def test_tasks_with_labels_of_their_own_are_not_pooled():
    apart = transfer()._replace(apart=True)
    with pytest.raises(InputError, match="the same labels in all tasks"):
        pooled_trees.fit(apart, torch.tensor([1.0, 0.0]), CFG)
    assert pooled_trees.fit(apart, torch.zeros(2), CFG)(apart.test.x).shape == (200, 1)
