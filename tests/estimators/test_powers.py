"""Probabilities of classes that are put right: when, by how much, and wherever they are told."""

import dataclasses
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.core import InputError, Prediction, make_batch, make_task
from warmstart.engine.files import read_tensors, write_tensors
from warmstart.estimators.adapted import AdaptedModel
from warmstart.estimators.meta_learner import MetaLearner
from warmstart.estimators.powers import Powers, fit_powers, raised
from warmstart.tasks.roles import Roles
from warmstart.training.train import Plan

TASKS, ROWS = 60, 30


def world(classes):
    """Rows that say the logarithms of their true probabilities, and classes drawn from these; half show two rows."""
    scores = 1.5 * torch.randn(TASKS, ROWS, classes)
    y = torch.distributions.Categorical(logits=scores).sample().float()
    shown = make_batch(torch.zeros(TASKS, 2, 1), torch.zeros(TASKS, 2))
    shown = shown._replace(mask=torch.ones(TASKS, 2) * (torch.arange(TASKS) % 2 == 0)[:, None])
    return make_task(shown, make_batch(scores, y))


def say(task, factor):
    """The truth, to a power of one's own that depends on what was shown."""
    power = torch.where(task.support.mask.sum(-1) > 0, factor, 1.0)[:, None, None]
    chances = (power * task.query.x).softmax(-1)
    return Prediction(chances[..., 1] if chances.shape[-1] == 2 else chances)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("classes", [2, 3])
def test_what_is_too_sure_is_put_right_and_what_is_honest_stays(classes):
    task = world(classes)
    found = fit_powers(partial(say, factor=3.0), task, (0, 2, 5))
    assert found.sizes.tolist() == [0, 2] and found.powers[0] == 1
    assert found.powers[1] == pytest.approx(1 / 3, abs=0.06)
    shown = task.support.mask.sum(-1)
    right = raised(say(task, 3.0), Powers(found.sizes, torch.tensor([1.0, 1 / 3])), shown)
    torch.testing.assert_close(right.mean, say(task, 1.0).mean, atol=1e-5, rtol=1e-4)
    before = say(task, 3.0)
    assert torch.equal(raised(before, found, torch.zeros(TASKS)).mean, before.mean)  # to the bit


def test_powers_are_of_the_largest_size_that_was_reached():
    powers, chances = Powers(torch.tensor([0, 2, 5]), torch.tensor([1.0, 2.0, 0.5])), torch.tensor([[0.2, 0.8]])
    for shown, power in ((0, 1.0), (1, 1.0), (2, 2.0), (4, 2.0), (5, 0.5), (90, 0.5)):
        expected = chances**power / (chances**power + (1 - chances) ** power)
        torch.testing.assert_close(raised(Prediction(chances), powers, torch.tensor([shown])).mean, expected)
        torch.testing.assert_close(raised(Prediction(chances[0]), powers, torch.tensor(shown)).mean, expected[0])


def test_few_tasks_settle_on_none():
    task = world(2)
    few = make_task(*(part._replace(x=part.x[:1], y=part.y[:1], w=part.w[:1], mask=part.mask[:1]) for part in task[:2]))
    assert fit_powers(partial(say, factor=3.0), few, (0, 2)).powers.tolist() == [1.0, 1.0]


def people(classes):
    draw = np.random.default_rng(0)
    user = np.repeat([f"u{i:02d}" for i in range(40)], 12)
    x, own = draw.normal(size=len(user)), np.repeat(draw.normal(size=40), 12)
    y = pd.qcut(own + x, len(classes), labels=classes).astype(str)
    return pd.DataFrame({"user": user, "x": x, "y": y})


@pytest.mark.parametrize("classes", [("no", "yes"), ("bad", "fair", "good")], ids=len)
def test_they_are_told_wherever_probabilities_are(classes, tmp_path, monkeypatch):
    settled = Powers(torch.tensor([0, 3]), torch.tensor([1.0, 0.4], dtype=torch.double))
    monkeypatch.setattr("warmstart.estimators.meta_learner.fit_powers", lambda *_: settled)
    rows, plan = people(classes), Plan(steps=6, every=3, tasks=8, query=4)
    model = MetaLearner("maml", plan=plan, trials=1, device="cpu").fit(rows, Roles("user", "y"))
    own = rows[rows["user"] == "u01"]
    plain = dataclasses.replace(model.fitted, calibration=None)
    for shown in (0, 2, 3, 5):
        adapted = model.adapt(own.head(shown))
        raw = dataclasses.replace(adapted, trained=plain).predict(own.tail(6))
        expected = raised(raw, settled, torch.tensor(shown)).mean
        assert torch.equal(expected, raw.mean) == (shown < 3)
        torch.testing.assert_close(adapted.predict(own.tail(6)).mean, expected)
    table = adapted.frame(own.tail(6))
    np.testing.assert_allclose(table.filter(like="p(").iloc[:, -1], expected if len(classes) == 2 else expected[:, -1])
    adapted.save(tmp_path / "adapted")
    pd.testing.assert_frame_equal(AdaptedModel.load(tmp_path / "adapted").frame(own.tail(6)), table)
    model.save(tmp_path / "model")
    again = MetaLearner.load(tmp_path / "model")
    torch.testing.assert_close(again.fitted.calibration, settled)
    runtime = pytest.importorskip("onnxruntime", reason="extra onnx is not installed")
    adapted.export(tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    x = model.fitted.schema.transform_rows(own.tail(6))
    told = session.run(None, {entry.name: x[entry.name].numpy() for entry in session.get_inputs()})[0]
    np.testing.assert_allclose(told, expected, rtol=1e-4, atol=1e-5)
    # models of before have none, and half of them is damage
    weights = tmp_path / "model" / "weights.safetensors"
    tensors, metadata = read_tensors(weights)
    write_tensors(weights, {name: leaf for name, leaf in tensors.items() if "calibration" not in name}, metadata)
    assert MetaLearner.load(tmp_path / "model").fitted.calibration is None
    write_tensors(weights, {name: leaf for name, leaf in tensors.items() if "powers" not in name}, metadata)
    with pytest.raises(InputError, match="damaged"):
        MetaLearner.load(tmp_path / "model")
