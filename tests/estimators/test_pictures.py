"""Pictures: what is saved is what adapts, each picture is judged alone, and names of classes mean nothing."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from warmstart.core import InputError
from warmstart.estimators import PictureLearner
from warmstart.estimators.picture_fitting import blocks, split_for
from warmstart.estimators.picture_learner import card
from warmstart.estimators.picture_methods import Design, design_for
from warmstart.estimators.picture_model import convert
from warmstart.tasks import images as images_module
from warmstart.tasks.images import make_images
from warmstart.tasks.warps import SLIGHT
from warmstart.training.train import Plan

PLAN = Plan(steps=20, tasks=4, query=2, every=20)
FEW = Plan(steps=4, tasks=4, query=2, every=4)
SHORT = Plan(steps=2, tasks=2, query=2, every=2)
METHODS = ("protonet", "fomaml", "gem_head", "imaml_head")


def bars(classes=12, each=6, side=16, seed=0):
    """A class is the angle of a bar; place and noise differ."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    angle = np.repeat(np.pi * np.arange(classes) / classes, each)[:, None, None]
    away = x * np.sin(angle) - y * np.cos(angle) - draw.normal(0, 1, (classes * each, 1, 1))
    pixels = 220 * np.exp(-(away**2) / 4) + draw.normal(0, 10, away.shape)
    pixels = torch.from_numpy(pixels.clip(0, 255).astype(np.uint8))[:, None]
    return make_images(pixels, torch.full((classes,), each), tuple(f"angle{c:02d}" for c in range(classes)))


def write(images, folder):
    """The same as class folders."""
    for c, name in enumerate(images.names):
        (folder / name).mkdir(parents=True)
        for row in range(int(images.offsets[c]), int(images.offsets[c + 1])):
            Image.fromarray(images.pixels[row, 0].numpy()).save(folder / name / f"{row:03d}.png")
    return folder


def shown_and_asked(images, classes, shot=1):
    """Support of some classes, in this order, and the other pictures of these classes."""
    part = images.select(torch.tensor(classes))
    rows = [list(range(int(a), int(b))) for a, b in zip(part.offsets, part.offsets[1:], strict=False)]
    first, rest = [row for own in rows for row in own[:shot]], [row for own in rows for row in own[shot:]]
    return make_images(part.pixels[first], torch.full((len(classes),), shot), part.names), part.pixels[rest]


@pytest.fixture(scope="module")
def images(few_looks):
    return bars()


@pytest.fixture(scope="module")
def fitted(images):
    """Prototypes that were trained, and others hardly."""
    plans = {name: PLAN if name == "protonet" else FEW for name in METHODS}
    return {name: PictureLearner(3, 1, name, plan=plan, device="cpu").fit(images) for name, plan in plans.items()}


@pytest.mark.parametrize("name", METHODS)
def test_saved_and_loaded_it_adapts_to_the_same_bits(fitted, images, tmp_path, name):
    fitted[name].save(tmp_path / "model")
    again = PictureLearner.load(tmp_path / "model")
    support, asked = shown_and_asked(images, [1, 5, 9], 2)
    assert torch.equal(again.adapt(support).predict(asked), fitted[name].adapt(support).predict(asked))
    schema = json.loads((tmp_path / "model" / "schema.json").read_text())
    parts = [set(part) for part in schema["classes"].values()]
    assert [len(part) for part in parts] == [6, 3, 3] and set.union(*parts) == set(images.names)
    assert again.trained_.rotations is False and again.fitted.sharpness == fitted[name].fitted.sharpness


@pytest.mark.parametrize("name", METHODS)
def test_a_picture_is_judged_alone(fitted, images, name):
    support, asked = shown_and_asked(images, [0, 4, 8])
    adapted = fitted[name].adapt(support)
    together = adapted.predict(asked)
    assert torch.equal(adapted.predict(asked[7:8]), together[7:8])
    assert torch.equal(adapted.predict(torch.cat([255 - asked, asked[3:]]))[len(asked) :], together[3:])
    assert torch.allclose(together.sum(-1), torch.ones(len(asked)))


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_the_classes_only_permutes_the_columns(fitted, images, name):
    full, asked = shown_and_asked(images, [0, 4, 8], 3)
    support = make_images(full.pixels[:6], torch.tensor([3, 1, 2]), ("a", "b", "c"))  # unequal shots
    order = torch.tensor([2, 0, 1])
    turned = support.select(order)._replace(names=("z", "y", "x"))
    one, other = fitted[name].adapt(support), fitted[name].adapt(turned)
    assert other.names == ("z", "y", "x")
    assert torch.equal(other.predict(asked), one.predict(asked)[:, order])


def test_it_learns_to_tell_the_new_from_the_old(fitted, images):
    support, asked = shown_and_asked(images, [0, 4, 8], 3)
    guess = fitted["protonet"].adapt(support).predict(asked).argmax(-1)
    assert (guess == torch.arange(3).repeat_interleave(3)).float().mean() > 0.6


def test_fewer_classes_than_ways_share_all_the_probability(fitted, images):
    support, asked = shown_and_asked(images, [0, 6])
    said = fitted["fomaml"].adapt(support).predict(asked)
    assert said.shape == (10, 2) and torch.allclose(said.sum(-1), torch.ones(10))


def test_more_classes_than_a_head_has_outputs_are_refused_but_some_methods_take_any(fitted, images):
    support, asked = shown_and_asked(images, [0, 2, 4, 6])
    with pytest.raises(InputError, match="at most 3 classes in the support of this fomaml model, got 4"):
        fitted["fomaml"].adapt(support)
    for name in ("protonet", "gem_head"):
        assert fitted[name].adapt(support).predict(asked).shape == (20, 4)
    with pytest.raises(InputError, match="two classes"):
        fitted["protonet"].adapt(shown_and_asked(images, [0])[0])


def test_other_sizes_and_modes_are_converted_and_said(fitted, images):
    support, asked = shown_and_asked(images, [0, 4, 8], 2)
    large = support._replace(
        pixels=support.pixels.repeat_interleave(2, 2).repeat_interleave(2, 3).expand(-1, 3, -1, -1)
    )
    adapted = fitted["protonet"].adapt(large)
    assert adapted.notes == ("pictures converted to grey", "pictures resized from 32 x 32 to 16 x 16")
    same = fitted["protonet"].adapt(support)
    assert same.notes == ()
    assert (adapted.predict(asked).argmax(-1) == same.predict(asked).argmax(-1)).float().mean() > 0.8
    with pytest.raises(InputError, match="pictures of 1 channels, as the model was fitted for, got 2"):
        same.predict(asked.expand(-1, 2, -1, -1))
    with pytest.raises(InputError, match="uint8"):
        same.predict(asked.float())


def test_grey_of_a_colour_is_its_brightness():
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    assert convert(red, (1, 4, 4))[0].unique().tolist() == [76]
    assert convert(red[:, :1], (3, 4, 4))[0].unique().tolist() == [255]


def test_a_folder_is_read_as_its_pictures(fitted, images, tmp_path):
    write(images, tmp_path / "data")
    learner = PictureLearner(3, 1, plan=PLAN, device="cpu")
    read, notes = learner.read(tmp_path / "data")
    assert torch.equal(read.pixels, images.pixels) and read.names == images.names and notes == []
    support, asked = shown_and_asked(images, [0, 4, 8])
    adapted = fitted["protonet"].adapt(write(support, tmp_path / "support"))
    assert torch.equal(adapted.predict(asked), fitted["protonet"].adapt(support).predict(asked))


def test_large_pictures_are_shrunk_unless_told_otherwise(tmp_path):
    for shade, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        Image.new("RGB", (200, 100), (shade, 0, 0)).save(tmp_path / name / "1.png")
    read, notes = PictureLearner().read(tmp_path)
    assert read.shape == (3, 42, 84) and notes == ["2 pictures resized to 42 x 84"]
    assert PictureLearner(size=(90, 90)).read(tmp_path)[0].shape == (3, 90, 90)
    pixels = torch.tensor([0, 1], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 100, 200)
    assert PictureLearner().read(make_images(pixels, torch.tensor([1, 1]), ("a", "b")))[0].shape == (3, 42, 84)


def test_a_picture_that_comes_twice_is_not_shown_and_judged(images):
    pixels = images.pixels.clone()
    pixels[[1, 2]] = images.pixels[0]  # within class 0
    pixels[[13, 19]] = images.pixels[12]  # twice in class 2, once in class 3
    read, notes = PictureLearner().read(images._replace(pixels=pixels))
    assert read.lengths.tolist() == [4, 6, 4, 5, *[6] * 8] and read.names == images.names
    assert notes == [
        "2 pictures left out as the same as another of its class",
        "3 pictures left out as the same in two classes, for instance in angle02 and angle03",
    ]
    pixels[6:12] = images.pixels[30]
    read, notes = PictureLearner().read(images._replace(pixels=pixels))
    assert len(read.names) == 11 and notes[-1] == "class angle01 left out: no picture is its own"


def test_a_support_picture_counts_once_and_has_one_class(fitted, images):
    support, asked = shown_and_asked(images, [0, 4, 8], 2)
    twice = make_images(support.pixels[[0, 1, 1, 2, 3, 4, 5]], torch.tensor([3, 2, 2]), support.names)
    adapted, same = fitted["protonet"].adapt(twice), fitted["protonet"].adapt(support)
    assert adapted.notes == ("1 picture left out as the same as another of its class",)
    assert torch.equal(adapted.predict(asked), same.predict(asked))
    torn = make_images(support.pixels[[0, 1, 1, 3, 4, 5]], torch.tensor([2, 2, 2]), support.names)
    with pytest.raises(InputError, match="in one class, got one in angle00 and in angle04"):
        fitted["protonet"].adapt(torn)


def test_the_network_fits_the_pictures():
    assert design_for((1, 20, 28)) == Design(64, True) and design_for((1, 20, 29)) == Design(32, False)
    assert design_for((3, 28, 28)) == Design(32, False) and design_for((3, 12, 28)) == Design(64, True)


def test_classes_are_split_by_name_and_every_part_has_enough(images):
    assert [len(part) for part in split_for(images, 4, 0)] == [4, 4, 4]
    assert [len(part) for part in split_for(images, 5, 0)] == [6, 3, 3]
    assert [len(part) for part in split_for(images, 8, 0)] == [8, 2, 2]
    turned = images.select(torch.arange(11, -1, -1))
    assert set(split_for(turned, 3, 1).test) == set(split_for(images, 3, 1).test)
    with pytest.raises(InputError, match=r"at least 13 classes: 9 to train on.* got 12"):
        split_for(images, 9, 0)


def test_episodes_drawn_ahead_fit_in_memory():
    assert blocks(PLAN, 5 * 6 * 28 * 28) == 100
    assert blocks(PLAN, 5 * 20 * 3 * 84 * 84) == 1


@pytest.mark.usefixtures("plain_pictures")
def test_a_run_resumes_only_itself(images, tmp_path):
    PictureLearner(3, 1, "protonet", plan=SHORT, device="cpu").fit(images, folder=tmp_path)
    PictureLearner(3, 1, "protonet", plan=SHORT, seed=1, device="cpu").fit(images, folder=tmp_path)
    assert len(list(tmp_path.rglob("checkpoint.safetensors"))) == 2


@pytest.mark.usefixtures("plain_pictures")
def test_auto_takes_the_method_and_the_trial_with_the_least_validation_loss(images, tmp_path):
    learner = PictureLearner(3, 1, plan=SHORT, trials=2, device="cpu").fit(images, folder=tmp_path)
    assert {name: len(trials) for name, trials in learner.trials_.items()} == {"protonet": 2, "gem_head": 2}
    values = {name: [trial.value for trial in trials] for name, trials in learner.trials_.items()}
    least = min(value for own in values.values() for value in own)
    assert learner.fitted.value == least == values[learner.fitted.name][0]
    assert learner.fitted.config == learner.trials_[learner.fitted.name][0].config
    assert len(list(tmp_path.rglob("checkpoint.safetensors"))) == 4


@pytest.mark.usefixtures("plain_pictures")
def test_turned_classes_are_trained_on_and_only_that(images, monkeypatch, tmp_path):
    seen = []

    def sampler(part, *rest, **more):
        seen.append(part)
        return images_module.sampler(part, *rest, **more)

    monkeypatch.setattr("warmstart.estimators.picture_fitting.sampler", sampler)
    learner = PictureLearner(3, 1, "protonet", plan=SHORT, rotations=True, device="cpu").fit(images)
    (drawn,) = seen
    upright = learner.fitted.split.train
    assert len(drawn.names) == 4 * len(upright) and set(upright) < set(drawn.names)
    turned = drawn.names.index(f"{upright[0]} turned left")
    first = int(drawn.offsets[turned])
    assert torch.equal(drawn.pixels[first], torch.rot90(drawn.pixels[0], 1, (1, 2)))
    assert not any("turned" in name for part in learner.fitted.split for name in part)
    learner.save(tmp_path / "model")
    assert PictureLearner.load(tmp_path / "model").rotations
    assert "turns by 90 degrees" in (tmp_path / "model" / "card.md").read_text()
    with pytest.raises(InputError, match="square pictures to turn, got 16 x 12"):
        PictureLearner(3, 1, plan=SHORT, rotations=True, size=(16, 12), device="cpu").fit(images)


@pytest.mark.usefixtures("plain_pictures")
def test_pictures_to_train_on_are_bent_and_others_are_not(images, monkeypatch, tmp_path):
    warps = []

    def sampler(part, *rest, warp=None):
        warps.append(warp)
        return images_module.sampler(part, *rest, warp=warp)

    for module in ("picture_fitting", "picture_judging", "picture_comparison"):
        monkeypatch.setattr(f"warmstart.estimators.{module}.sampler", sampler, raising=False)
    bent = PictureLearner(3, 1, "protonet", plan=SHORT, device="cpu").fit(images)
    assert warps.count(SLIGHT) == 1  # episodes to train on; those to stop by are as they came
    plain = PictureLearner(3, 1, "protonet", plan=SHORT, warp=False, device="cpu").fit(images)
    assert warps.count(SLIGHT) == 1 and plain.fitted.value != bent.fitted.value
    bent.save(tmp_path / "model")
    assert PictureLearner.load(tmp_path / "model").warp
    assert "slightly warped" in (tmp_path / "model" / "card.md").read_text()
    assert "warped" not in card(plain.fitted)


def test_models_of_before_had_no_warp(fitted, tmp_path):
    fitted["protonet"].save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    del config["warp"]
    path.write_text(json.dumps(config))
    assert PictureLearner.load(tmp_path / "model").warp is False


@pytest.mark.usefixtures("plain_pictures")
def test_a_second_fit_is_a_new_model(images):
    learner = PictureLearner(3, 1, "protonet", plan=SHORT, device="cpu")
    assert learner.fit(images).fitted.shape == (1, 16, 16)
    assert learner.fit(bars(side=12)).fitted.shape == (1, 12, 12) and learner.notes_ == ()


@pytest.mark.usefixtures("plain_pictures")
def test_colour_is_learned_with_pooling(images, tmp_path):
    colour = images._replace(pixels=images.pixels.expand(-1, 3, -1, -1).contiguous())
    few = {"inner_steps": 1, "test_steps": 1}
    learner = PictureLearner(3, 1, "fomaml", few, SHORT, device="cpu").fit(colour)
    assert learner.fitted.design == Design(32, False)
    learner.save(tmp_path / "model")
    support, asked = shown_and_asked(images, [0, 4, 8])
    adapted = PictureLearner.load(tmp_path / "model").adapt(support)
    assert adapted.notes == ("pictures converted to colour",)
    whole = learner.adapt(shown_and_asked(colour, [0, 4, 8])[0])
    assert torch.equal(adapted.predict(asked[:2]), whole.predict(asked[:2]))


def test_settings_reach_the_method(images):
    with pytest.raises(InputError, match="did you mean outer_lr"):
        PictureLearner(3, 1, "protonet", {"outer_rl": 1}, PLAN).fit(images)
    with pytest.raises(InputError, match="did you mean maml"):
        PictureLearner(3, 1, "mamal", plan=PLAN).fit(images)
    with pytest.raises(InputError, match="a method to apply the settings to"):
        PictureLearner(3, 1, settings={"outer_lr": 1}, plan=PLAN).fit(images)
    with pytest.raises(InputError, match="8 pictures in every class"):
        PictureLearner(3, 6, plan=PLAN).fit(images)
    with pytest.raises(InputError, match="a fitted model"):
        PictureLearner().adapt(images)


def spoil(folder, name, change):
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("config.json", lambda c: c.update(format=99), "update warmstart"),
        ("config.json", lambda c: c.update(kind="meta"), "kind pictures"),
        ("config.json", lambda c: c.update(way="many"), "damaged"),
        ("config.json", lambda c: c.update(way=0), "damaged"),
        ("config.json", lambda c: c.update(shot=0), "damaged"),
        ("config.json", lambda c: c.update(way=4), "shape"),
        ("config.json", lambda c: c.update(sharpness=-1), "damaged"),
        ("config.json", lambda c: c.pop("plan"), "damaged"),
        ("config.json", lambda c: c["network"].update(filters=32), "shape"),
        ("config.json", lambda c: c.update(method="empirical_bayes"), "a method for pictures"),
        ("schema.json", lambda c: c.update(version=99), "update warmstart"),
        ("schema.json", lambda c: c.update(shape=[1, 16]), "damaged"),
        ("schema.json", lambda c: c.update(shape=[1, 0, 16]), "damaged"),
        ("schema.json", lambda c: c.pop("classes"), "damaged"),
        ("schema.json", lambda c: c["classes"].pop("test"), "damaged"),
    ],
)
def test_a_damaged_or_newer_folder_is_refused(fitted, tmp_path, name, change, words):
    fitted["protonet"].save(tmp_path / "model")
    spoil(tmp_path / "model", name, change)
    with pytest.raises(InputError, match=words):
        PictureLearner.load(tmp_path / "model")


def test_weights_that_are_cut_off_are_refused(fitted, tmp_path):
    fitted["protonet"].save(tmp_path / "model")
    file = tmp_path / "model" / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="readable tensors"):
        PictureLearner.load(tmp_path / "model")
