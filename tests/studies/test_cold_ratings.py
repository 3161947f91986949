"""The study of cold-start ratings on simulated users: every row, paired, resumable; and the preset on real ones."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from warmstart.core import InputError, Prediction
from warmstart.studies import cold_learners, cold_ratings
from warmstart.studies.cold_ratings import ALL, COVERED, MINOR, MSE, OWN, PAIRED, STACK, Entry, Preset, judge
from warmstart.tasks.cold_start import PAPER, SIZES, split_users
from warmstart.training.preferences import Schedule

TINY = Preset(("global mean", "bias", "als", "preference_bayes"), 2, 1.0)


@pytest.fixture
def simulated(monkeypatch, simulated_ratings, tmp_path):
    ratings = simulated_ratings(users=120)
    monkeypatch.setattr(cold_ratings, "read_movielens_1m", lambda path: ratings)
    monkeypatch.setattr(cold_ratings, "read_book_crossing", lambda path: ratings)
    monkeypatch.setattr(
        cold_ratings, "major_users", lambda parts, columns: np.arange(len(parts.test.shown.users)) % 3 > 0
    )
    monkeypatch.setitem(cold_ratings.PRESETS, "quick", TINY)
    return lambda **more: cold_ratings.run(seeds=(0, 1), data=tmp_path, **more)


def test_every_method_is_judged_at_every_size_and_paired(simulated):
    outcome = simulated()
    rows = {(row.method, row.metric, row.setting.get("support")): row for row in outcome.results.rows}
    for name in TINY.methods:
        for size in (*SIZES, ALL):
            assert rows[name, MSE, size].counts == (24, 24)
            if name != "bias":
                paired = rows[name, PAIRED, size].mean
                assert paired == pytest.approx(rows[name, MSE, size].mean - rows["bias", MSE, size].mean)
    assert rows["preference_bayes", COVERED, ALL].mean > 0.8 and ("bias", COVERED, ALL) not in rows
    assert rows["preference_bayes", MINOR, ALL].counts == (8, 8)
    assert rows["preference_bayes", PAIRED, ALL].high < 0 and rows["protocol", "share of major users", None].n == 48
    assert "preference_bayes" in outcome.verdict and outcome.sections[0].svg.startswith("<svg")


@pytest.mark.usefixtures("plain_preferences")
def test_learners_have_rates_figures_and_differences(simulated, monkeypatch, tmp_path):
    names = ("bias", "reg_paml", "transfer", "reg_paml, content only", "melu, content only")
    monkeypatch.setitem(cold_ratings.PRESETS, "quick", Preset(names, 1, 1.0))
    for name in names[1:]:
        entry = cold_ratings.ENTRIES[name]
        short = partial(entry.fit, schedule=Schedule(epochs=2, users=32))
        brief = {"test_steps": 1} if name == "transfer" else {"inner_steps": 1}
        monkeypatch.setitem(
            cold_ratings.ENTRIES, name, entry._replace(fit=short, config=replace(entry.config, **brief))
        )
    outcome = cold_ratings.run(data=tmp_path, device="cpu", folder=tmp_path / "kept")
    rows = {(row.method, row.metric): row for row in outcome.results.rows if row.setting.get("support") == ALL}
    for name in names[1:]:
        assert 0 < rows[name, MSE].mean < 2 and (name, PAIRED) in rows
    difference = rows["transfer", cold_learners.AGAINST].mean
    assert difference == pytest.approx(rows["transfer", MSE].mean - rows["reg_paml", MSE].mean)
    assert ("melu, content only", cold_learners.AGAINST) in rows and ("reg_paml", cold_learners.AGAINST) not in rows
    for group in (cold_learners.MAJOR, cold_learners.MINOR):
        assert 0 < rows["reg_paml", f"rate, {group}"].mean < 0.1 and ("transfer", f"rate, {group}") not in rows
    assert rows["melu, content only", MSE].peer == "paper 1.451" and rows["reg_paml", MSE].peer == "paper 1.210"
    drawn = [section.heading for section in outcome.sections if section.svg]
    assert drawn[1:5] == [
        "Error of common and unusual users",
        "Error of single users",
        "Learning rates",
        "Users of reg_paml",
    ]
    again = cold_ratings.run(data=tmp_path, device="cpu", folder=tmp_path / "kept")
    assert [section.svg for section in again.sections] == [section.svg for section in outcome.sections]


def test_every_learner_has_its_rows():
    for name in ("melu", "paml", "at_paml", "reg_paml", "meta_sgd", "transfer"):
        rows = [cold_learners.ENTRIES[f"{name}{kind}"] for kind in ("", ", content only", ", paper's settings")]
        assert all(row.learns for row in rows) and rows[0].space == rows[1].space and not rows[2].space
        assert cold_learners.paper(f"{name}, content only", MSE).startswith("paper 1.")
    assert sum("gamma" in name for name in cold_learners.ENTRIES) == 4


def test_books_and_stacks_are_rows_that_may_be_asked_for(simulated, monkeypatch, tmp_path):
    stacks = {STACK: ("bias", "als"), "stack with learners": ("bias", "als", "preference_bayes")}
    monkeypatch.setattr(cold_ratings, "STACKS", stacks)
    wanted = ["books", "bias", "preference_bayes", *stacks]
    outcome = simulated(only=wanted, folder=tmp_path / "kept")
    assert {row.setting["data"] for row in outcome.results.rows} == {"books"}
    assert {row.method for row in outcome.results.rows} == {*wanted[1:], "protocol"}
    at = {(row.method, row.metric, row.setting.get("support")): row for row in outcome.results.rows}
    for metric in (MSE, "nDCG@3", "nDCG@5"):
        for size in (*SIZES, ALL):
            paired = at["preference_bayes", f"{metric} minus {STACK}", size].mean
            ours, theirs = (at[name, metric, size].mean for name in ("preference_bayes", STACK))
            assert paired == pytest.approx(ours - theirs)
    assert at[STACK, MSE, ALL].mean < 1.02 * at["bias", MSE, ALL].mean
    assert outcome.results.versions["boosted trees"] and STACK not in outcome.verdict.split(" has ")[0]
    # members that no row was asked for were tuned all the same
    assert (tmp_path / "kept" / "books, seed 1" / "als.trials.json").exists()


def test_an_interrupted_study_goes_on(simulated, monkeypatch, tmp_path):
    first = simulated(folder=tmp_path / "kept")
    assert (tmp_path / "kept" / "ml-1m, seed 0" / "split.json").exists()

    def never(train, config, seed):
        raise AssertionError("fitted again")

    monkeypatch.setattr(cold_ratings, "ENTRIES", {n: Entry(never, None) for n in TINY.methods})
    again = simulated(folder=tmp_path / "kept")
    assert [row.values for row in again.results.rows] == [row.values for row in first.results.rows]


def test_scores_are_per_user_and_by_hand(simulated_ratings):
    users = split_users(simulated_ratings(users=40), PAPER).test
    asked = users.asked
    scores = judge(lambda shown: Prediction(torch.full((len(asked.value),), 3.0)), users)
    own = asked.value[asked.user == 2]
    assert float(scores[f"{MSE}, 5"][2]) == pytest.approx(((own - 3) ** 2).mean())
    assert float(scores[f"MAE, {ALL}"][2]) == pytest.approx(np.abs(own - 3).mean())
    assert f"{COVERED}, 5" not in scores


def test_validation_users_put_intervals_right_by_the_number_of_ratings_shown(simulated_ratings):
    """A method that takes itself for too unsure at first and for too sure later."""
    parts = split_users(simulated_ratings(users=1500), PAPER)

    def predict(users):
        shown = np.bincount(users.shown.user, minlength=len(users.shown.users))[users.asked.user]
        mean = torch.full((len(users.asked.value),), float(parts.train.asked.value.mean()))
        return Prediction(mean, torch.from_numpy(np.where(shown < 2, 9.0, 0.04)))

    scores = judge(predict, parts.test, parts.validation)
    means = {name: {size: float(scores[f"{name}, {size}"].nanmean()) for size in (0, 5, 20)} for name in (COVERED, OWN)}
    assert means[OWN][0] > 0.99 and means[OWN][5] < 0.5
    assert all(0.8 < share < 0.97 for share in means[COVERED].values())
    everybody = judge(predict, parts.validation, parts.validation)
    assert float(everybody[f"{COVERED}, 5"].nanmean()) >= 0.9


def test_unknown_methods_and_missing_data_are_said(tmp_path):
    with pytest.raises(InputError, match="methods among global mean"):
        cold_ratings.run(only=["meluu"], data=tmp_path)
    with pytest.raises(InputError, match="--data"):
        cold_ratings.run()


def test_real_users_are_told_better_than_by_effects(shared_data, monkeypatch):
    if not (shared_data / "ml-1m.zip").exists():
        pytest.skip("no ml-1m.zip there")
    monkeypatch.setitem(cold_ratings.PRESETS, "quick", Preset(("bias", "preference_bayes"), 1, 0.15))
    outcome = cold_ratings.run(data=shared_data)
    at = {row.setting["support"]: row.mean for row in outcome.results.rows if row.metric == PAIRED}
    assert max(at.values()) < 0 and at[ALL] < -0.03
