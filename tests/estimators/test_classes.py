"""Tables whose target is a class, tasks of one class among them."""

import numpy as np
import pandas as pd
import pytest

from warmstart.estimators.adapted import AdaptedModel
from warmstart.estimators.meta_learner import MetaLearner
from warmstart.tasks.roles import Roles


def choices(tables, classes):
    """The target cut into classes; task u003 shows one of them only, task u004 is of one row."""
    rows, about = tables
    cut = pd.qcut(rows["y"], len(classes), labels=classes).astype(str)
    rows = rows.assign(y=cut.where(rows["user"] != "u003", classes[0]))
    return rows[(rows["user"] != "u004") | ~rows["user"].duplicated()], about


@pytest.mark.parametrize("name", ["empirical_bayes", "maml"])
@pytest.mark.parametrize("classes", [("no", "yes"), ("bad", "fair", "good")], ids=len)
def test_classes_go_in_and_come_out_by_name(tables, plan, tmp_path, name, classes):
    rows, about = choices(tables, classes)
    model = MetaLearner(name, plan=plan, trials=1).fit(rows, Roles("user", "y"), about)
    assert model.fitted.likelihood.name == ("binary" if len(classes) == 2 else "multiclass")
    own = rows[rows["user"] == "u003"]
    adapted = model.adapt(own.head(5))
    told = adapted.frame(own.tail(3))
    chances = told.filter(like="p(")
    assert list(chances) == ([f"p({classes[1]})"] if len(classes) == 2 else [f"p({one})" for one in classes])
    assert chances.stack().between(0, 1).all()
    if len(classes) > 2:
        np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
        assert (told["prediction"] == chances.idxmax(axis=1).str[2:-1]).all()
    else:
        assert (told["prediction"] == np.where(chances.iloc[:, 0] > 0.5, "yes", "no")).all()
    before = model.adapt(None).predict(own.tail(3)).mean
    after = adapted.predict(own.tail(3)).mean
    rarer = after < before if len(classes) == 2 else after[:, 0] > before[:, 0]
    assert rarer.all(), "five rows of one class make it likelier"
    adapted.save(tmp_path / "adapted")
    pd.testing.assert_frame_equal(AdaptedModel.load(tmp_path / "adapted").frame(own.tail(3)), told, check_exact=True)
