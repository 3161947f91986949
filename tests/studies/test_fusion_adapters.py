"""The study of fused adapters, made tiny: every row is there, users are as said, and adapters train apart."""

import math

import pytest
import torch
from torch.testing import assert_close

from warmstart.core import InputError
from warmstart.core.trees import take
from warmstart.fusion.adapters import attach
from warmstart.studies import fusion_adapters, session_zoo


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(fusion_adapters.PRESETS, "quick", fusion_adapters.Preset(12, 4, 5, 3, 4))
    monkeypatch.setattr(fusion_adapters, "FEW_STEPS", 2)
    monkeypatch.setattr(fusion_adapters, "INPUTS", 40)
    monkeypatch.setattr(fusion_adapters, "TESTS", 50)
    monkeypatch.setattr(session_zoo, "ROWS", 30)


def test_the_study_has_every_row_and_goes_on_from_a_kept_pool(tiny, tmp_path):
    outcome = fusion_adapters.run(seeds=[0, 1], folder=tmp_path)
    rows = {(row.method, row.metric): row for row in outcome.results.rows}
    own = rows[fusion_adapters.OWN, fusion_adapters.ERROR]
    others = [*fusion_adapters.ADAPTER_WAYS, fusion_adapters.FROZEN, fusion_adapters.FEW, fusion_adapters.AUTO]
    for method in others:
        error, ratio = (rows[method, metric] for metric in (fusion_adapters.ERROR, fusion_adapters.RATIO))
        assert ratio.values[1] == pytest.approx(error.values[1] / own.values[1])
        assert rows[method, fusion_adapters.PAIRED].mean == pytest.approx(error.mean - own.mean)
    assert 0 <= rows[fusion_adapters.AUTO, fusion_adapters.COVERED].mean <= 1
    assert "without a row of the user" in outcome.verdict and len(list(tmp_path.iterdir())) == 2
    again = fusion_adapters.run(seeds=[0], only=["nearest"], folder=tmp_path)
    found = {(row.method, row.metric): row.mean for row in again.results.rows}
    assert found["nearest", fusion_adapters.ERROR] == rows["nearest", fusion_adapters.ERROR].values[0]
    assert "not run" in again.verdict


def test_unknown_ways_are_refused():
    with pytest.raises(InputError, match="methods among nearest, average, adapter_gp"):
        fusion_adapters.run(only=["weight_gp"])


def test_a_rating_is_what_the_page_says():
    """One user and one session by the formula, with plain numbers."""
    world = session_zoo.make_world(3)
    users = session_zoo.draw_users(2, torch.Generator().manual_seed(0))
    x = torch.randn(2, 5, session_zoo.ITEMS, session_zoo.FEATURES)
    said = session_zoo.rating(world, users[:, :3], x)
    z, items = users[1, :3].double(), x[1, 4].double()
    waves = torch.cos(z @ world.frequency.double() + world.phase).tolist()
    own = [
        float(world.level[j]) + sum(w * float(world.size[k, j]) for k, w in enumerate(waves))
        for j in range(2 * session_zoo.FEATURES + 1)
    ]
    pull, taste, level = own[:4], own[4:8], own[8]
    scores = [math.exp(sum(p * float(v) for p, v in zip(pull, item, strict=True))) for item in items]
    likes = [math.tanh(sum(q * float(v) for q, v in zip(taste, item, strict=True)) + level) for item in items]
    wanted = sum(s * like for s, like in zip(scores, likes, strict=True)) / sum(scores)
    assert float(said[1, 4]) == pytest.approx(wanted, abs=1e-5)


def test_the_order_of_items_plays_no_part():
    network, x = session_zoo.Reader(), torch.randn(3, session_zoo.ITEMS, session_zoo.FEATURES)
    assert_close(network(x), network(x.flip(1)))


def test_adapters_begin_as_the_frozen_network_and_train_apart():
    network = session_zoo.Reader()
    begin = session_zoo.starts(network, 3, 0)
    adapted = attach(network, take(begin, 0))
    x, y = torch.randn(3, 20, session_zoo.ITEMS, session_zoo.FEATURES), torch.randn(3, 20)
    assert_close(adapted.apply(take(begin, 1), x[1]), network(x[1]))
    together = session_zoo.fit_adapters(adapted, begin, x, y, 4)
    alone = session_zoo.fit_adapters(adapted, take(begin, slice(1, 2)), x[1:2], y[1:2], 4)
    for name, value in alone.items():
        assert_close(together[name][1:2], value, rtol=1e-3, atol=1e-4)
        assert not torch.equal(value, begin[name][1:2])
