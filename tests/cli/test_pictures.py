"""fit --images and adapt of pictures: what is printed and written, and that bad input is one sentence."""

import csv
import html.parser
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

FAST = ("--steps", "20", "--every", "20", "--tasks", "4", "--query", "2", "--device", "cpu", "--method", "protonet")


def draw(folder, angle, count, seed, side=16, mode="L", first=0):
    """Pictures of a noisy bar at an angle."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    for i in range(first, first + count):
        away = (x * np.sin(angle) - y * np.cos(angle) - noise.normal(0, side / 16)) * 16 / side
        pixels = 220 * np.exp(-(away**2) / 4) + noise.normal(0, 10, away.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert(mode).save(folder / f"{i}.png")


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(done, *words):
    assert done.code == 2 and done.out == "" and "Traceback" not in done.err
    (line,) = done.err.splitlines()
    assert re.fullmatch(r"warmstart: expected .+, got .+; .+", line)
    for word in words:
        assert word in line, line


@pytest.fixture(scope="module")
def gallery(cli, few_looks, tmp_path_factory):
    """data, support and query folders, a model of prototypes and one with a head: not to be written to."""
    folder = tmp_path_factory.mktemp("gallery")
    for c in range(12):
        draw(folder / "data" / f"angle{c:02d}", np.pi * c / 12, 6, c)
    for c, name in enumerate(("up", "flat", "<b>slanted<|b>")):
        draw(folder / "support" / name, np.pi * (c / 3 + 0.1), 2, 20 + c)
        draw(folder / "query", np.pi * (c / 3 + 0.1), 2, 30 + c, first=2 * c)
    line = ("fit", folder / "data", "--images", "--way", "3", "--shot", "1", *FAST)
    done = cli(*line, "-o", folder / "model", "--json")
    assert done.code == 0 and done.err == "", done.err
    (folder / "fit.json").write_text(done.out)
    few = ("--set", "inner_steps=1", "--set", "test_steps=1")
    done = cli(*line, "--method", "fomaml", *few, "-o", folder / "head", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    return folder


@pytest.fixture
def here(gallery, tmp_path, monkeypatch):
    """A copy that a test may spoil, as the current folder."""
    for name in ("data", "support", "query", "model"):
        shutil.copytree(gallery / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fit_says_how_it_does_on_unseen_classes(cli, gallery, here):
    told = json.loads((gallery / "fit.json").read_text())
    assert told["method"] == "protonet" and told["classes"] == {"train": 6, "validation": 3, "test": 3}
    assert told["unseen"] == {"way": 3, "shot": 1, "query": 2, "tasks": 100}
    assert 33 < told["accuracy"]["protonet"]["mean"] <= 100 and "nearest_centroid" in told["accuracy"]
    assert len(told["trials"]["protonet"]) == 1 and told["rotations"] is False
    assert sorted(path.name for path in (gallery / "model").iterdir()) == [
        "card.md",
        "config.json",
        "schema.json",
        "weights.safetensors",
    ]
    done = cli("fit", "data", "--images", "--way", "3", *FAST, "-o", "again")
    assert done.code == 0 and done.err == ""
    score = told["accuracy"]["protonet"]
    assert f"{score['mean']:.1f} ±{score['high'] - score['mean']:.1f}" in done.out
    assert "nearest_centroid (baseline)" in done.out and "warmstart adapt again --support" in done.out
    assert "warmstart evaluate again data -o again-report" in done.out
    assert contents(here / "again") == contents(gallery / "model")


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.images, self.links = [], []

    def handle_starttag(self, tag, attrs):
        links = [value for key, value in attrs if key in ("href", "src")]
        (self.images if tag == "image" else self.links).extend(links)


def test_adapt_prints_and_writes_probabilities_and_a_contact_sheet(cli, here):
    line = ("adapt", "model", "--support", "support", "--query", "query")
    told = json.loads(cli(*line, "--json").out)
    assert told["classes"] == ["<b>slanted<|b>", "flat", "up"] and set(told["support"].values()) == {2}
    done = cli(*line, "-o", "out")
    assert done.code == 0 and done.err == ""
    lines = done.out.splitlines()
    with (here / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["picture"] for row in rows] == [f"{i}.png" for i in range(6)]
    for row, said, first in zip(rows, told["predictions"], lines, strict=False):
        chances = {name: float(row[f"p({name})"]) for name in told["classes"]}
        assert chances == said["probabilities"] and sum(chances.values()) == pytest.approx(1, abs=1e-5)
        ranked = sorted(chances.items(), key=lambda pair: -pair[1])
        assert row["prediction"] == said["prediction"] == ranked[0][0]
        assert first == f"{row['picture']}  " + "  ".join(f"{name} {chance:.1%}" for name, chance in ranked)
    text = (here / "out" / "contact_sheet.html").read_text()
    page = Page()
    page.feed(text)
    assert len(page.images) == 12 and all(link.startswith("data:") for link in page.images + page.links)
    assert "&lt;b&gt;slanted&lt;|b&gt;" in text and "<b>" not in text
    assert contents(here / "out") == contents(here / "model-predictions") | {
        "contact_sheet.html": text.encode()  # which tells its own command
    }
    assert cli(*line, "-o", "out").code == 0  # again
    refused(cli(*line, "-o", "query"), "one of an earlier run", "0.png", "another folder")
    refused(cli(*line, "-o", "model"), "one of an earlier run", "card.md")


def test_what_is_converted_is_said_once(cli, here):
    for seed, name in enumerate(("up", "flat")):
        draw(here / "support" / name, 0.5, 2, seed, side=32, mode="RGB", first=7)
    shutil.rmtree(here / "query")
    draw(here / "query", 0.5, 1, 60, side=24)
    done = cli("adapt", "model", "--support", "support", "--query", "query")
    assert done.code == 0 and [line for line in done.out.splitlines() if line.startswith("Note")] == [
        "Note: support: 4 pictures converted to grey",
        "Note: support: 4 pictures resized to 16 x 16",
        "Note: query: 1 picture resized to 16 x 16",
    ]
    draw(here / "data" / "angle03", 0.8, 1, 70, side=20, mode="RGB", first=9)
    done = cli("fit", "data", "--images", "--way", "3", *FAST, "-o", "new", "--json")
    assert json.loads(done.out)["notes"] == ["1 picture converted to grey", "1 picture resized to 16 x 16"]


def test_broken_pictures_are_refused_or_skipped_and_said(cli, here):
    whole = (here / "data" / "angle03" / "2.png").read_bytes()
    (here / "data" / "angle03" / "7.png").write_bytes(whole[: len(whole) // 2])
    (here / "query" / "x.png").write_bytes(b"no picture")
    before = contents(here)
    refused(cli("fit", "data", "--images", "--way", "3", *FAST, "-o", "new"), "angle03/7.png")
    refused(cli("adapt", "model", "--support", "support", "--query", "query"), "query/x.png")
    refused(cli("adapt", "model", "--support", "support", "--query", "query", "--broken", "keep"), "'keep'")
    assert contents(here) == before
    done = cli("fit", "data", "--images", "--way", "3", *FAST, "--broken", "skip", "-o", "new")
    assert done.code == 0 and "Note: 1 picture left out as unreadable: data/angle03/7.png" in done.out
    done = cli("adapt", "new", "--support", "support", "--query", "query", "--broken", "skip", "--json")
    told = json.loads(done.out)
    assert told["notes"] == ["query: 1 picture left out as unreadable: query/x.png"] and len(told["predictions"]) == 6


FIT = [
    ("a folder without --images", ["data"], ["the folder data", "add --images"]),
    ("a way without --images", ["rows.csv", "--way", "3"], ["--way", "add --images"]),
    ("options of tables", ["data", "--images", "--task", "user", "--support", "2"], ["--task, --support"]),
    ("small class", ["data", "--images", "--way", "3", "--query", "5", "--shot", "2"], ["7 pictures", "6 in angle00"]),
    ("few classes", ["data", "--images", "--way", "9"], ["at least 13 classes", "12"]),
    ("empty folder", ["empty", "--images"], ["no picture"]),
    ("no folder", ["nowhere", "--images"], ["nowhere"]),
    ("a file", ["rows.csv", "--images"], ["a folder", "a file"]),
    ("loose pictures", ["query", "--images"], ["0.png"]),
    ("method", ["data", "--images", "--way", "3", "--method", "protonets"], ["did you mean protonet"]),
    ("method of tables", ["data", "--images", "--way", "3", "--method", "empirical_bayes"], ["for pictures"]),
    ("setting", ["data", "--images", "--way", "3", "--set", "outer_rl=1"], ["did you mean outer_lr"]),
]


@pytest.mark.parametrize(("line", "words"), [case[1:] for case in FIT], ids=[case[0] for case in FIT])
def test_fit_refuses(cli, here, line, words):
    (here / "rows.csv").write_text("user,y\na,1\n")
    (here / "empty").mkdir()
    before = contents(here)
    refused(cli("fit", *(FAST if "--images" in line else ()), *line, "-o", "model"), *words)
    assert contents(here) == before and not list(here.glob(".model*"))


def test_adapt_refuses_what_was_shown_and_what_has_two_classes(cli, here):
    line = ("adapt", "model", "--support", "support", "--query", "query")
    shutil.copy(here / "support" / "up" / "0.png", here / "query" / "same.png")
    refused(cli(*line), "same.png", "one of up")
    (here / "query" / "same.png").unlink()
    shutil.copy(here / "support" / "up" / "0.png", here / "support" / "flat" / "same.png")
    refused(cli(*line), "each support picture in one class", "flat and in up")
    assert not (here / "model-predictions").exists()


def test_adapt_refuses_other_folders(cli, gallery, here):
    (here / "empty").mkdir()
    line = ("adapt", "model", "--support", "support", "--query")
    refused(cli(*line, "empty"), "pictures in empty", "no picture")
    refused(cli(*line, "nowhere"), "--query", "nowhere")
    (here / "rows.csv").write_text("a,b")
    refused(cli(*line, "rows.csv"), "a whole picture in rows.csv")
    assert cli(*line, "query/0.png", "--quiet").code == 0
    refused(cli("adapt", "model", "--query", "query"), "--support")
    refused(cli("adapt", "model", "--support", "empty", "--query", "query"), "no picture")
    refused(cli(*line, "query", "--level", "0.5", "-k", "1"), "-k, --level")
    refused(cli(*line, "query", "-o", "query/0.png/out"), "write the folder")
    draw(here / "support" / "fourth", 1.0, 1, 99)
    refused(cli("adapt", gallery / "head", *line[2:], "query"), "at most 3 classes", "4", "gem_head")
    assert cli(*line, "query", "--quiet").code == 0
    shutil.rmtree(here / "support" / "flat")
    shutil.rmtree(here / "support" / "up")
    told = json.loads(cli("adapt", gallery / "head", *line[2:], "query", "-o", "out", "--json").out)
    assert sum(told["predictions"][0]["probabilities"].values()) == pytest.approx(1)
    shutil.rmtree(here / "support" / "fourth")
    refused(cli(*line, "query"), "two classes")


def test_models_of_tables_and_of_pictures_are_not_mixed_up(cli, home, here):
    refused(
        cli("adapt", home / "model", "--support", "support", "--query", "query"), "a table for --support", "support"
    )
    refused(cli("adapt", home / "model", "--query", "query"), "a table for --query", "the folder query")
    refused(cli("adapt", home / "model", "--query", home / "query.csv", "--broken", "skip"), "--broken")
    tables = ("--support", home / "support.csv", "--query", home / "query.csv")
    refused(cli("adapt", "model", *tables), "a folder of pictures for --support", "support.csv")
    refused(cli("evaluate", "model", home / "rows.csv"), "a folder", "a file")
    refused(cli("evaluate", "model", "data", "--task-table", "x.csv"), "--task-table")
    refused(cli("evaluate", home / "model", home / "rows.csv", "--broken", "skip"), "--broken")
    refused(cli("evaluate", home / "model", "data"), "data")
    refused(cli("export", "model", "--support", home / "support.csv", "-o", "m.onnx"), "a folder of pictures")
    refused(cli("export", "model", "-o", "m.onnx"), "--support")
    refused(cli("export", "model", "--support", "support", "--descriptor", "a=1", "-o", "m.onnx"), "--descriptor")


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "schema.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "noise"])
def test_adapt_refuses_a_damaged_model(cli, here, name, damage):
    file = here / "model" / name
    whole = file.read_bytes()
    file.write_bytes({"missing": whole, "empty": b"", "half": whole[: len(whole) // 2], "noise": b"\xff\x00"}[damage])
    if damage == "missing":
        file.unlink()
    refused(cli("adapt", "model", "--support", "support", "--query", "query"), name)


def test_an_interrupted_fit_goes_on(cli, gallery, here, monkeypatch):
    line = ("fit", "data", "--images", "--way", "3", *FAST, "-o", "new")
    with monkeypatch.context() as patch:
        patch.setattr(
            "warmstart.estimators.picture_comparison.judge", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        done = cli(*line)
    assert done.code == 130 and not (here / "new").exists() and (here / ".new.run").exists()
    with monkeypatch.context() as patch:
        patch.setattr("warmstart.training.train.meta_update", lambda *_: None)  # no step is left to run
        assert cli(*line).code == 0
    assert not (here / ".new.run").exists() and contents(here / "new") == contents(gallery / "model")


def test_evaluate_writes_the_page_of_unseen_classes(cli, gallery, here):
    done = cli("evaluate", gallery / "head", "data", "-o", "report", "--device", "cpu", "--json")
    assert done.code == 0 and done.err == ""
    told = json.loads(done.out)
    means = {(row["method"], row["metric"]): row["mean"] for row in told["rows"] if row["setting"]["shot"] == 1}
    fit = json.loads((gallery / "fit.json").read_text())["accuracy"]
    assert means["nearest_centroid", "accuracy"] == pytest.approx(fit["nearest_centroid"]["mean"], rel=1e-8)
    assert {name for name, _ in means} == {"fomaml", "nearest_centroid", "linear_head", "protonet"}
    text = (here / "report" / "report.html").read_text()
    for heading in ("More pictures of each class", "How sure it is", "One task to look at", "How it was run"):
        assert heading in text
    shutil.rmtree(here / "data" / "angle00")
    refused(cli("evaluate", "model", "data"), "classes of a split")


def test_export_writes_a_file_that_says_what_adapt_says(cli, here):
    runtime = pytest.importorskip("onnxruntime", reason="extra onnx is not installed")
    told = json.loads(cli("adapt", "model", "--support", "support", "--query", "query", "--json").out)
    done = cli("export", "model", "--support", "support", "-o", "m.onnx")
    assert done.code == 0 and done.err == "" and "Classes:   <b>slanted<|b>, flat, up" in done.out
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(here / "m.onnx", options)
    names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    pixels = np.stack([np.asarray(Image.open(here / "query" / f"{i}.png"))[None] for i in range(6)])
    (found,) = session.run(None, {"pixels": pixels})
    for row, said in zip(found, told["predictions"], strict=True):
        assert dict(zip(names, row.tolist(), strict=True)) == pytest.approx(said["probabilities"], abs=1e-5)


@pytest.mark.usefixtures("plain_pictures")
def test_fit_tunes_compares_and_turns(cli, here):
    line = ("fit", "data", "--images", "--way", "3", *FAST, "--steps", "4", "--every", "4")
    done = cli(*line, "--method", "auto", "--trials", "2", "--rotations", "--no-warp", "-o", "tuned")
    assert done.code == 0 and re.search(r"gem_head +│ +2 │", done.out) and re.search(r"protonet +│ +2 │", done.out)
    config = json.loads((here / "tuned" / "config.json").read_text())
    assert config["rotations"] is True and config["warp"] is False
    refused(cli("fit", "rows.csv", "--rotations", "-o", "x"), "--rotations")
    refused(cli("fit", "rows.csv", "--no-warp", "-o", "x"), "--warp/--no-warp")
