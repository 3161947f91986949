"""Trees as arrays say what the library that grew them says."""

import numpy as np
import pytest

from warmstart.maths import trees
from warmstart.maths.forest import make_forest, walk


@pytest.mark.parametrize("missing", [False, True])
def test_a_forest_is_the_model_it_was_made_of(monkeypatch, missing):
    if missing:
        monkeypatch.setattr(trees, "find_spec", lambda name: None)
    elif trees.find_spec("lightgbm") is None:
        pytest.skip("the extra boost is not installed")
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.normal(size=(1500, 4)), draw.integers(0, 2, (1500, 2))], 1)
    y = (x[:, 0] + x[:, 1] * x[:, 2] - x[:, 4] + draw.normal(size=1500) > 0.5).astype(float)
    config = trees.Trees(trees=70, rate=0.1, leaves=9, smallest_leaf=7, l2=0.3)
    new = np.concatenate([x, 3 * draw.normal(size=(700, 6))])
    chance = trees.make_trees(config, 0, clicks=True).fit(x, y)
    found = walk(make_forest(chance), new)
    assert np.allclose(1 / (1 + np.exp(-found)), chance.predict_proba(new)[:, 1], rtol=1e-12, atol=0)
    number = trees.make_trees(config, 0).fit(x, x[:, 0] ** 2 + 5)
    assert np.allclose(walk(make_forest(number), new), number.predict(new), rtol=1e-12, atol=0)
    assert len(walk(make_forest(number), new[:0])) == 0


@pytest.mark.parametrize("missing", [False, True])
def test_trees_that_never_split_say_one_number(monkeypatch, missing):
    if missing:
        monkeypatch.setattr(trees, "find_spec", lambda name: None)
    x, y = np.arange(8.0)[:, None], np.array([0, 1.0, 1, 1, 0, 1, 1, 1])
    forest = make_forest(trees.make_trees(trees.Trees(trees=3), 0, clicks=True).fit(x, y))
    assert np.allclose(walk(forest, x), np.log(3), atol=1e-6) and forest.depth.max() == 0
