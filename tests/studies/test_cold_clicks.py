"""The study of cold-start clicks on simulated users, and what real ones must show."""

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.core import InputError, Prediction
from warmstart.studies import cold_clicks
from warmstart.studies.cold_clicks import ALL, AUC, ENTROPY, LOSS, POOLED, TREES, Entry, judge
from warmstart.tasks.cold_start import CLICKS, SIZES, split_users
from warmstart.training.preferences import Schedule


def clicks(simulated_ratings, users=80):
    ratings = simulated_ratings(users=users)
    context = pd.DataFrame({"tab": pd.Categorical(np.where(ratings.item % 2, "a", "b"))})
    return ratings._replace(value=(ratings.value > 3.2).astype(float), context=context, scale=(0.0, 1.0))


@pytest.fixture
def simulated(monkeypatch, simulated_ratings, tmp_path):
    ratings = clicks(simulated_ratings)
    monkeypatch.setattr(cold_clicks, "read_kuairand", lambda path: ratings)
    return lambda **more: cold_clicks.run(seeds=(0, 1), data=tmp_path, **more)


def test_every_method_is_judged_paired_and_kept(simulated, monkeypatch, tmp_path):
    outcome = simulated(folder=tmp_path / "kept")
    rows = {(row.method, row.metric, row.setting["support"]): row for row in outcome.results.rows}
    for name in cold_clicks.PRESETS["quick"].methods:
        for size in (*SIZES, ALL):
            assert rows[name, LOSS, size].counts == (14, 14) and rows[name, POOLED, size].counts == (1, 1)
            if name != TREES:
                paired = rows[name, f"{LOSS} minus {TREES}", size].mean
                assert paired == pytest.approx(rows[name, LOSS, size].mean - rows[TREES, LOSS, size].mean)
    assert "AUC" in outcome.verdict and outcome.sections[0].svg.startswith("<svg")
    assert "boosted trees" in outcome.results.versions

    def never(train, config, seed):
        raise AssertionError("fitted again")

    monkeypatch.setattr(cold_clicks, "ENTRIES", {n: Entry(never, None) for n in cold_clicks.ENTRIES})
    again = simulated(folder=tmp_path / "kept")
    assert [row.values for row in again.results.rows] == [row.values for row in outcome.results.rows]


@pytest.mark.usefixtures("plain_preferences")
def test_learners_see_validation_users_and_are_trained_once_for_a_configuration(simulated, monkeypatch):
    entry, made = cold_clicks.ENTRIES["reg_paml, content only"], []

    def counted(train, config, seed, validation, device):
        made.append((config, seed, len(validation.shown.users), device.type))
        return entry.fit(train, config, seed, validation, device, schedule=Schedule(epochs=4))

    monkeypatch.setitem(cold_clicks.ENTRIES, "reg_paml, content only", entry._replace(fit=counted))
    outcome = simulated(preset="full", only=["click rate", "reg_paml, content only"], device="cpu")
    assert len(made) == len(set(made)) == 4 and {one[2:] for one in made} == {(7, "cpu")}
    at = {(r.method, r.metric): r.mean for r in outcome.results.rows if r.setting["support"] == ALL}
    assert at["reg_paml, content only", LOSS] < at["click rate", LOSS]
    assert entry.fit.keywords["network"].weights == (0.1, 0.9) and not entry.fit.keywords["network"].identity


def test_scores_are_by_hand(simulated_ratings):
    users = split_users(clicks(simulated_ratings, 40), CLICKS).test
    asked = users.asked
    said = torch.linspace(0.1, 0.9, len(asked.value)).double()
    scores = judge(lambda shown: Prediction(said), users)
    y, p = asked.value, said.numpy()
    own = asked.user == 3
    came = np.where(y > 0.5, p, 1 - p)
    assert float(scores[f"{LOSS}, 5"][3]) == pytest.approx(-np.log(came[own]).mean())
    weight = np.where(y > 0.5, 0.9, 0.1)
    assert float(scores[f"{ENTROPY}, {ALL}"][3]) == pytest.approx(-(weight * np.log(came))[own].mean())
    assert float(scores[f"log loss, pooled, {ALL}"]) == pytest.approx(-np.log(came).mean())
    apart = p[y > 0.5][:, None] - p[y < 0.5][None]
    assert float(scores[f"{POOLED}, {ALL}"]) == pytest.approx((apart > 0).mean())
    one = y[own]
    if 0 < one.sum() < len(one):
        apart = p[own][one > 0.5][:, None] - p[own][one < 0.5][None]
        assert float(scores[f"{AUC}, {ALL}"][3]) == pytest.approx((apart > 0).mean())


def test_unknown_methods_and_missing_data_are_said(tmp_path):
    with pytest.raises(InputError, match="methods among click rate"):
        cold_clicks.run(only=["clicks"], data=tmp_path)
    with pytest.raises(InputError, match="--data"):
        cold_clicks.run()
