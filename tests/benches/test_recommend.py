"""The bench of recommendations: what it times is what a user calls, and stacked users cost a fraction."""

import pytest

from warmstart.benches import recommend
from warmstart.benches.recommend import ONE, RATIO, STACKED, TIME, Size, prepare, run, sections
from warmstart.benches.timing import Plan
from warmstart.core import InputError

SMALL = Size(users=60, items=150, shown=5, fitted=60, sweeps=1)


@pytest.fixture(scope="module")
def prepared():
    return prepare(SMALL)


def test_users_to_serve_are_new_and_have_shown_what_they_should(prepared):
    model, support, profiles = prepared
    assert (support.groupby("user").size() == 5).all() and support["user"].nunique() == len(profiles) == 60
    assert not set(support["user"]) & set().union(*model.fitted.split)
    assert len(model.fitted.items) == 150


def test_stacked_users_take_a_fraction_of_the_time(prepared, monkeypatch):
    monkeypatch.setattr(recommend, "prepare", lambda size: prepared)
    results = run("cpu", plan=Plan(1, 3, 0.0, True), size=SMALL)
    found = {(row.method, row.metric): row for row in results.rows}
    ratio = found[STACKED, RATIO]
    assert ratio.mean == pytest.approx(found[ONE, TIME].mean / found[STACKED, TIME].mean)
    assert ratio.mean > 4  # 30 at full size, where this is measured
    assert found[ONE, TIME].unit == "ms" and "times less" in sections(results)[0].table.head[-1]
    alone = run("cpu", only=[ONE], plan=Plan(1, 1, 0.0), size=SMALL)
    assert [row.metric for row in alone.rows] == [TIME]
    with pytest.raises(InputError, match="nonsense"):
        run("cpu", only=["nonsense"])
