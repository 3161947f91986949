"""A user's folder of pictures, in small: classes are noisy copies of a picture of their own."""

import pytest
import torch

from warmstart.core import InputError
from warmstart.engine.loop import Diverged
from warmstart.estimators.picture_learner import PictureLearner
from warmstart.estimators.picture_methods import AUTO
from warmstart.studies import own_pictures
from warmstart.studies.own_pictures import ACCURACY, NLL, Preset
from warmstart.tasks.images import make_images
from warmstart.training.train import Plan

CLASSES, EACH = 40, 12


@pytest.fixture
def small(few_looks, plain_pictures, monkeypatch, tmp_path):
    draw = torch.Generator().manual_seed(0)
    own = torch.rand(CLASSES, 1, 1, 12, 12, generator=draw)
    noisy = 0.6 * own + 0.4 * torch.rand(CLASSES, EACH, 1, 12, 12, generator=draw)
    pixels = (255 * noisy).to(torch.uint8).flatten(0, 1)
    images = make_images(pixels, torch.full((CLASSES,), EACH), tuple(f"class {k}" for k in range(CLASSES)))
    monkeypatch.setattr(own_pictures, "read_omniglot", lambda data: images)
    monkeypatch.setattr(own_pictures, "OTHERS", 10)
    plan = Plan(steps=3, tasks=2, query=5, every=3)
    monkeypatch.setitem(own_pictures.PRESETS, "quick", Preset(("nearest_centroid", "protonet"), 24, plan, 8))
    return tmp_path


def test_every_method_is_run_as_pictures_are_and_warped(small):
    names = ["nearest_centroid", "linear_head", "gem_head"]
    outcome = own_pictures.run(only=names, data=small, device="cpu")
    found = {(row.method, row.setting["warped"], row.metric): row for row in outcome.results.rows}
    assert set(found) == {(name, warped, metric) for name in names for warped in (0, 1) for metric in (ACCURACY, NLL)}
    for name in names:
        plain, bent = (found[name, warped, NLL] for warped in (False, True))
        assert plain.counts == (8,) and plain.seeds == (0,)
        assert (plain.mean == bent.mean) == (name == "nearest_centroid")  # which learns nothing of pictures
    assert found["nearest_centroid", False, ACCURACY].mean > 60  # of five classes
    assert len(outcome.sections[0].table.lines) == len(names) and "of unseen characters, " in outcome.verdict


def test_a_training_that_diverged_is_shown_as_such(small, monkeypatch):
    def fitted(name, own, warped, *rest):
        if warped:
            raise Diverged("nan before step 3", "lower the learning rates", ())
        return lambda test: torch.nn.functional.one_hot(test.query.y.long(), 5).float()

    monkeypatch.setattr(own_pictures, "fitted", fitted)
    outcome = own_pictures.run(only=["protonet"], data=small, device="cpu")
    found = {row.setting["warped"]: row.mean for row in outcome.results.rows if row.metric == ACCURACY}
    assert found[False] == 100 and found[True] != found[True]
    assert outcome.verdict == "protonet is right on 100.0 % of unseen characters."


def test_nothing_that_is_asked_was_seen(small, monkeypatch):
    """The characters of the folder and those of the tasks have no name in common."""
    seen = []

    def sampler(part, *rest):
        seen.append(set(part.names))
        return made(part, *rest)

    def fitted(name, own, *rest):
        seen.append(set(own.names))
        return lambda test: torch.full((*test.query.y.shape, 5), 0.2)

    made = own_pictures.sampler
    monkeypatch.setattr(own_pictures, "sampler", sampler)
    monkeypatch.setattr(own_pictures, "fitted", fitted)
    own_pictures.run(only=["protonet"], data=small, device="cpu")
    others, own = seen[0], seen[1]
    assert len(others) == 10 and len(own) == 24 and not others & own


def test_an_interrupted_study_goes_on(small):
    told = []

    def progress(label):
        return lambda done, of, words: told.append(done)

    first = own_pictures.run(only=["protonet"], data=small, device="cpu", progress=progress, folder=small / "kept")
    trained = len(told)
    again = own_pictures.run(only=["protonet"], data=small, device="cpu", progress=progress, folder=small / "kept")
    assert trained > 0 and len(told) == trained  # nothing is trained twice
    assert [row.values for row in again.results.rows] == [row.values for row in first.results.rows]


def test_unknown_methods_and_missing_data_are_said(monkeypatch):
    with pytest.raises(InputError, match="mamba"):
        own_pictures.run(only=["mamba"])
    monkeypatch.delenv("WARMSTART_DATA", raising=False)
    with pytest.raises(InputError, match="Omniglot"):
        own_pictures.run()


def test_what_is_measured_is_what_fit_does():
    """The door's own plan, its default warp, and the methods that it compares among those run."""
    assert own_pictures.PRESETS["full"].plan == PictureLearner().plan and PictureLearner().warp
    assert set(AUTO) <= set(own_pictures.LEARNERS)
