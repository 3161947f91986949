"""Trees of either library: the same call, and what was used is said."""

import numpy as np
import pytest

from warmstart.maths import trees

CONFIG = trees.Trees(trees=60, rate=0.2, leaves=4, smallest_leaf=5, l2=0.5)


@pytest.mark.parametrize("missing", [False, True])
def test_a_step_is_found_with_and_without_the_extra(monkeypatch, missing):
    if missing:
        monkeypatch.setattr(trees, "find_spec", lambda name: None)
        assert trees.booster().startswith("scikit-learn ")
    elif trees.find_spec("lightgbm") is None:
        pytest.skip("the extra boost is not installed")
    else:
        assert trees.booster().startswith("lightgbm ")
    x = np.random.default_rng(0).uniform(-1, 1, size=(400, 2))
    y = np.where(x[:, 0] > 0.3, 2.0, -1.0)
    model = trees.make_trees(CONFIG, 0).fit(x, y)
    assert type(model).__module__.startswith("sklearn" if missing else "lightgbm")
    assert np.allclose(model.predict(np.array([[0.9, 0.0], [-0.5, 0.0]])), [2, -1], atol=0.1)
    clicks = trees.make_trees(CONFIG, 0, clicks=True).fit(x, (y > 0).astype(float))
    assert np.allclose(clicks.predict_proba(np.array([[0.9, 0.0], [-0.5, 0.0]]))[:, 1], [1, 0], atol=0.1)
