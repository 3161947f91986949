"""The model of a selection: what it says after a trip to the disk, and folders that are damaged."""

import json
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.core import InputError
from warmstart.estimators.selected_model import SelectedModel
from warmstart.estimators.source_methods import (
    ALL,
    BOTH,
    CHOSEN_TREES,
    OURS,
    TREES,
    TREES_ALONE,
    TREES_BLIND,
    Plan,
    Session,
    estimated,
    fit_method,
)
from warmstart.estimators.source_selection import NETWORKS, Selection, select_sources
from warmstart.selection import affinity, final, hoa, task_model, training
from warmstart.selection.collect import in_jobs
from warmstart.selection.measures import cross_entropy, named, zero_one
from warmstart.tasks.roles import Roles
from warmstart.tasks.transfer import read_transfer

SHORT = training.Config(hidden=(8,), steps=40, batch=64, own_heads=True)
MODEL = task_model.Config(size=2, subsets=4, held_out=2, starts=1, training=SHORT)
PLAN = Plan(final.Config(SHORT, tuning=5), MODEL, trials=2)


def people(classes=3, rows=120, seed=0):
    """Four tasks; one contradicts the others."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"task": np.repeat(list("tabcd"), rows), "x": draw.normal(size=5 * rows)})
    frame["job"] = draw.choice(list("uvw"), len(frame))
    score = frame["x"] + frame["job"].map({"u": -1.0, "v": 0.0, "w": 1.0}) + 0.3 * draw.normal(size=len(frame))
    code = np.digitize(score, np.linspace(-0.5, 0.7, classes - 1))
    frame["y"] = np.array(["low", "middle", "high"])[np.where(frame["task"] == "d", classes - 1 - code, code)]
    return frame


def chosen_by(method, frame):
    transfer = read_transfer(frame, Roles("task", "y"), "t")
    session = Session(transfer, cross_entropy, PLAN, 0, {}, {})
    fitted = fit_method(session, method)[0]
    return Selection(transfer, estimated(session), {method: fitted}, method)


@pytest.mark.parametrize("way", [OURS, ALL, TREES, BOTH])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_same_is_said_after_saving(tmp_path, way, classes):
    if way in (TREES, BOTH):
        pytest.importorskip("lightgbm")
    frame = people(classes)
    chosen = chosen_by(way, frame)
    SelectedModel.of(chosen, "cross-entropy").save(tmp_path / "m", "A verdict.")
    again = SelectedModel.load(tmp_path / "m")
    x = chosen.transfer.schema.transform_rows(frame)
    out = chosen.fitted[way].outputs(x).float()
    expected = torch.sigmoid(out.squeeze(-1)) if classes == 2 else torch.softmax(out, -1)
    torch.testing.assert_close(again.predict(frame), expected)
    said = again.frame(frame.drop(columns=["y", "task"]))
    names = sorted(frame["y"].unique())
    guess = expected.gt(0.5).long() if classes == 2 else expected.argmax(-1)
    assert said["prediction"].tolist() == [names[i] for i in guess]
    used = [name for name, member in zip("abcd", chosen.fitted[way].members, strict=True) if member]
    assert again.about["sources"] == used and again.about["target"] == "t"
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "card.md",
        "config.json",
        "schema.json",
        "weights.safetensors",
    ]
    assert "A verdict." in (tmp_path / "m" / "card.md").read_text()


def test_network_and_trees_are_averaged_and_fitted_once():
    pytest.importorskip("lightgbm")
    transfer = read_transfer(people(), Roles("task", "y"), "t")
    session = Session(transfer, cross_entropy, PLAN, 0, {}, {})
    both = fit_method(session, BOTH)[0]
    first, second = (session.fits[name][0] for name in (OURS, CHOSEN_TREES))
    assert fit_method(session, OURS)[0] is first and both.trials == first.trials + second.trials
    x = transfer.test.x
    torch.testing.assert_close(both.outputs(x), (first.outputs(x) + second.outputs(x).float()) / 2)
    assert both.members.tolist() == (first.members | second.members).tolist()
    said = cross_entropy(both.outputs(transfer.validation.x)[None], transfer.validation)
    assert both.value == pytest.approx(float(said))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"form": {"model": "network", "hidden": [9], "own_heads": True}}, "of shape"),
        ({"form": {"model": "another"}}, "a complete config.json"),
        ({"of": 2}, "of shape"),
        ({"of": "many"}, "a complete config.json"),
        ({"kind": "adapted"}, "a model of kind selected"),
        ({"format": 99}, "format 1 or older"),
    ],
)
def test_damaged_folders_are_said(tmp_path, change, words):
    SelectedModel.of(chosen_by(ALL, people()), "cross-entropy").save(tmp_path / "m")
    place = tmp_path / "m" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | change))
    with pytest.raises(InputError, match=words):
        SelectedModel.load(tmp_path / "m")


def test_trees_that_are_cut_off_are_said(tmp_path):
    pytest.importorskip("lightgbm")
    model = SelectedModel.of(chosen_by(TREES, people()), "cross-entropy")
    model.tensors["trees"] = model.tensors["trees"][:40]
    model.save(tmp_path / "m")
    with pytest.raises(InputError, match=r"a complete config\.json"):
        SelectedModel.load(tmp_path / "m")


@pytest.mark.parametrize(
    "metric", ["zero-one", "margin", "cross-entropy", "worst-group", "demographic-parity", "equal-opportunity"]
)
def test_the_metric_is_what_f_is(metric, tmp_path):
    """With every measure, groups and smallest group off their defaults: f by jobs, and by hand."""
    transfer = read_transfer(people(2), Roles("task", "y", group="job"), "t")
    jobs = in_jobs(transfer, MODEL, metric, (2, 0), 5, store=tmp_path)
    found = estimated(Session(transfer, named(metric, (2, 0), 5), PLAN, 0, {}, {}, jobs))
    share = training.shares(transfer, found.indicators[:1])
    phi = training.train_models(transfer, share, SHORT)
    held = transfer.validation
    out, y, group = training.outputs(transfer, SHORT, phi, held.x)[0, :, 0].numpy(), held.y.numpy(), held.group.numpy()
    sign, said = 2 * y - 1, out > 0

    def gap(among):
        return abs(said[among & (group == 2)].mean() - said[among & (group == 0)].mean())

    by_hand = {
        "zero-one": (said != y).mean(),
        "margin": -(out * sign).mean(),
        "cross-entropy": np.log1p(np.exp(-out * sign)).mean(),
        "worst-group": max((said != y)[group == g].mean() for g in range(3) if (group == g).sum() >= 5),
        "demographic-parity": gap(y == y) + (said != y).mean(),
        "equal-opportunity": gap(y == 1) + (said != y).mean(),
    }
    assert float(found.f[0]) == pytest.approx(by_hand[metric], abs=1e-5)


def test_a_method_with_its_own_f_does_not_take_that_of_the_jobs():
    transfer = read_transfer(people(2), Roles("task", "y"), "t")

    def refuse(members, seed):
        raise AssertionError

    estimated(Session(transfer, zero_one, PLAN, 0, {}, {}, refuse), "margin")


@pytest.mark.parametrize("name", ["hoa", "gradient cosine", "tag"])
def test_rivals_rank_sources_by_the_training_of_the_plan(name, monkeypatch):
    module, asked, real = (hoa if name == "hoa" else affinity), [], training.train_models

    def spy(transfer, share, cfg, *args, **more):
        asked.append(cfg)
        return real(transfer, share, cfg, *args, **more)

    monkeypatch.setattr(module, "train_models", spy)
    own = replace(SHORT, hidden=(5,), steps=3, balance=0.5)
    plan = PLAN._replace(model=replace(MODEL, training=own), final=final.Config(replace(SHORT, steps=3), tuning=0))
    fit_method(Session(read_transfer(people(2), Roles("task", "y"), "t"), cross_entropy, plan, 0, {}, {}), name)
    assert asked == [own]


def test_trees_that_cannot_be_fitted_are_left_out_of_the_usual_methods():
    pytest.importorskip("lightgbm")
    transfer = read_transfer(people(2), Roles("task", "y"), "t")
    short = replace(SHORT, steps=2)
    plan = Plan(final.Config(short, tuning=1), replace(MODEL, training=short), trials=1)
    apart = select_sources(transfer._replace(apart=True), cross_entropy, plan)
    assert list(apart.fitted) == [*NETWORKS, TREES_ALONE]


@pytest.mark.parametrize(
    ("changed", "methods", "said"),
    [
        ({"apart": True}, ["hoa", TREES], "the same labels in all tasks"),
        ({"apart": True}, [BOTH], "the same labels in all tasks"),
        ({"ordered": True}, [TREES_ALONE], "make the texts TF-IDF"),
        ({}, [TREES_BLIND], r"warmstart\[boost\]"),
    ],
)
def test_named_trees_that_cannot_be_fitted_are_said_before_the_work(changed, methods, said, monkeypatch):
    if changed:
        pytest.importorskip("lightgbm")
    else:
        monkeypatch.setitem(sys.modules, "lightgbm", None)
    transfer = read_transfer(people(2), Roles("task", "y"), "t")._replace(**changed)

    def refuse(members, seed):
        raise AssertionError

    with pytest.raises(InputError, match=said):
        select_sources(transfer, cross_entropy, PLAN, methods=methods, evaluate=refuse)


def test_numbers_are_refused():
    frame = people()
    frame["y"] = frame["x"] * 3.1
    with pytest.raises(InputError, match="a target of classes"):
        select_sources(read_transfer(frame, Roles("task", "y"), "t"), cross_entropy, PLAN)
