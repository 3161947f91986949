"""Unseen classes: what a report says is what adapted models say, and the baselines see the same pictures."""

import pytest
import torch

from warmstart.core import InputError
from warmstart.estimators import PictureLearner
from warmstart.estimators.picture_comparison import each_alone, first_shots, judge, rows_of
from warmstart.estimators.picture_evaluation import evaluate
from warmstart.tasks.images import draw_episodes, make_images
from warmstart.training.train import Plan


@pytest.fixture(scope="module")
def images():
    """A class is a patch of grey at a place of its own."""
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 60, (14 * 5, 1, 16, 16), generator=draw)
    for row in range(len(pixels)):
        place = row // 5
        pixels[row, 0, 4 * (place // 4) : 4 * (place // 4) + 4, 4 * (place % 4) : 4 * (place % 4) + 4] += 90
    names = tuple(f"place{c:02d}" for c in range(14))
    return make_images(pixels.to(torch.uint8), torch.full((14,), 5), names)


@pytest.fixture(scope="module")
def fitted(images, few_looks):
    plan = Plan(steps=15, tasks=4, query=2, every=15)
    return {name: PictureLearner(3, 1, name, plan=plan, device="cpu").fit(images) for name in ("protonet", "fomaml")}


def test_what_is_judged_is_what_an_adapted_model_says(fitted, images):
    found = judge(fitted["protonet"], images, tasks=2)
    assert found.methods == ["protonet", "nearest_centroid"]
    assert set(found.names) <= set(fitted["protonet"].fitted.split.test)
    shown, asked = ((255 * part.x["pixels"]).round().byte() for part in (found.example.support, found.example.query))
    adapted = fitted["protonet"].adapt(make_images(shown, torch.ones(3, dtype=torch.long), found.names))
    torch.testing.assert_close(adapted.predict(asked), found.chances["protonet", 1][0], rtol=1e-4, atol=1e-4)
    for picture, label in zip(asked, found.example.query.y.tolist(), strict=True):
        first = images.names.index(found.names[int(label)]) * 5
        assert (images.pixels[first : first + 5] == picture).flatten(1).all(1).any()


def test_more_shots_are_more_pictures_of_the_same_tasks(images):
    tasks = draw_episodes(images, 2, 3, 3, 2, torch.Generator().manual_seed(1))
    fewer = first_shots(tasks, 3, 2)
    assert fewer.support.y.tolist() == [[0, 0, 1, 1, 2, 2]] * 2
    whole = tasks.support.x["pixels"].unflatten(1, (3, 3))
    assert torch.equal(fewer.support.x["pixels"].unflatten(1, (3, 2)), whole[:, :, :2])
    alone = each_alone(tasks)
    assert alone.query.y.flatten().tolist() == tasks.query.y.flatten().tolist() and len(alone.key) == 12
    assert torch.equal(alone.query.x["pixels"][7, 0], tasks.query.x["pixels"][1, 1])
    assert torch.equal(alone.support.x["pixels"][7], tasks.support.x["pixels"][1])


@pytest.mark.usefixtures("plain_pictures")
def test_a_page_has_every_baseline_at_every_number_of_shots(fitted, images):
    outcome = evaluate(fitted["fomaml"], images, tasks=4)
    assert {row.method for row in outcome.results.rows} == {"fomaml", "nearest_centroid", "linear_head", "protonet"}
    assert {row.setting["shot"] for row in outcome.results.rows} == {1, 2}  # of five pictures two are judged
    accuracy = {
        row.method: row.mean for row in outcome.results.rows if row.metric == "accuracy" and row.setting["shot"] == 1
    }
    assert accuracy["nearest_centroid"] == 100  # the patches do not overlap
    assert f"fomaml is right on {accuracy['fomaml']:.1f} %" in outcome.verdict
    assert [bool(section.table) for section in outcome.sections] == [True, True, False, False]
    assert all(section.svg.startswith("<svg") for section in outcome.sections[1:])
    sheet = outcome.sections[-1].svg
    assert sheet.count("<image") == 3 + 6 and "place" in sheet
    (ours,) = [row for row in rows_of(judge(fitted["fomaml"], images, tasks=4), 0) if row.method == "fomaml"][:1]
    assert ours.mean == accuracy["fomaml"]  # the same tasks, whichever numbers of shots are judged


@pytest.mark.usefixtures("plain_pictures")
def test_a_model_is_not_its_own_rival(fitted, images):
    outcome = evaluate(fitted["protonet"], images, tasks=2)
    assert [line.label for line in outcome.sections[0].table.lines] == ["protonet", "nearest_centroid", "linear_head"]
    assert [line.kind for line in outcome.sections[0].table.lines] == ["method", "baseline", "baseline"]


def test_other_pictures_are_refused(fitted, images):
    with pytest.raises(InputError, match="classes of a split in the data"):
        evaluate(fitted["protonet"], images.select(torch.arange(9)))


@pytest.mark.parametrize("name", ["protonet", "fomaml"])
def test_onnx_agrees_with_the_classifier_on_any_number_of_pictures(fitted, images, tmp_path, name):
    runtime = pytest.importorskip("onnxruntime", reason="extra onnx is not installed")
    part = images.select(torch.tensor([9, 2, 5]))
    support = make_images(part.pixels[[0, 1, 5, 10, 11, 12]], torch.tensor([2, 1, 3]), ("b", "ü", "a"))
    adapted = fitted[name].adapt(support)
    adapted.export(tmp_path / "m.onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(tmp_path / "m.onnx", options)
    assert session.get_modelmeta().custom_metadata_map["classes"] == '["b", "\\u00fc", "a"]'
    for rows in ([3], [13, 4, 2], list(range(15))):
        (found,) = session.run(None, {"pixels": part.pixels[rows].numpy()})
        torch.testing.assert_close(torch.from_numpy(found), adapted.predict(part.pixels[rows]), rtol=1e-4, atol=1e-5)
