"""What the pages tell a reader to type works, and does what the page says."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from warmstart.core import Learner, adapt, make_batch, make_task
from warmstart.engine.meta import predict_stack
from warmstart.models.mlp import MLP, seeded
from warmstart.tasks.images import as_batch, draw_episodes, make_images
from warmstart.training.train import Plan

ROOT = Path(__file__).parents[2]
OWN = (
    "index",
    "nearest_centroid",
    "linear_head",
    "protonet",
    "preference_bayes",
    "click_bayes",
)  # with tests of their own
METHODS = sorted(path for path in (ROOT / "docs/methods").glob("*.md") if path.stem not in OWN)


def blocks(page, heading=""):
    """The Python blocks of a page, after a heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text[text.index(heading) :], re.MULTILINE | re.DOTALL)


def sines(tasks, rows):
    x = torch.linspace(-5, 5, tasks * rows).reshape(tasks, rows, 1)
    return x, torch.sin(x).squeeze(-1) + torch.arange(tasks)[:, None]


def error(learner, state, x, y, steps):
    """Mean squared error on the rows that were adapted to."""
    task = make_task(make_batch(x[None], y[None]), make_batch(x[None], y[None]))
    return (predict_stack(learner, state, task, steps=steps).mean - y).square().mean()


@pytest.mark.parametrize("page", METHODS, ids=lambda page: page.stem)
def test_method_pages_build_learners_that_adapt(page):
    (snippet,) = blocks(page)
    names = {}
    with seeded(0):
        exec(snippet, names)
    x, y = sines(1, 10)
    built = [value for value in names.values() if isinstance(value, Learner)]
    assert built
    for learner in built:
        state = learner.init(names["model"].params)
        assert error(learner, state, x[0], y[0], learner.steps) < error(learner, state, x[0], y[0], 0)


def test_the_page_of_prototypical_networks_builds_a_learner_of_pictures():
    (snippet,) = blocks("docs/methods/protonet.md")
    names = {}
    with seeded(0):
        exec(snippet, names)
    learner, pixels, label = names["learner"], torch.rand(6, 1, 28, 28), torch.arange(6) % 3
    shown = as_batch(pixels, label)
    state = learner.init(names["model"].params)
    chance = learner.predict(state, adapt(learner, state, shown, torch.zeros(0)), shown.x, ()).mean
    assert chance.shape == (6, 20) and (chance[:, 3:] == 0).all() and (chance.argmax(-1) == label).all()


def patches(classes, each, side=16):
    """A class of pictures is the place of a bright patch."""
    pixels = torch.randint(0, 60, (classes * each, 1, side, side), generator=torch.Generator().manual_seed(classes))
    for row in range(len(pixels)):
        high, wide = divmod(row // each, side // 4)
        pixels[row, 0, 4 * high : 4 * high + 4, 4 * wide : 4 * wide + 4] += 180
    names = tuple(f"place{c}" for c in range(classes))
    return make_images(pixels.to(torch.uint8), torch.full((classes,), each), names)


@pytest.mark.parametrize("name", ["nearest_centroid", "linear_head"])
def test_the_pages_of_picture_baselines_fit_and_tell_classes_apart(name):
    (snippet,) = blocks(f"docs/methods/{name}.md")
    images = patches(12, 6)
    parts = {"train": images.select(torch.arange(7)), "validation": images.select(torch.arange(7, 12))}
    tasks = draw_episodes(parts["validation"], 3, 5, 1, 5, torch.Generator().manual_seed(0))
    # the reader waits for the network; a test does not
    names = {**parts, "tasks": tasks}
    exec(snippet.replace("steps=200", "steps=20").replace("filters=32", "filters=8"), names)
    assert names["chances"].shape == (3, 25, 5)
    assert (names["chances"].argmax(-1) == tasks.query.y).float().mean() > 0.5


def test_the_page_of_pictures_fits_adapts_and_exports(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxscript", reason="extra onnx is not installed")
    (snippet,) = blocks("docs/pictures.md")
    images = patches(14, 6)
    for folder, rows in {"drawings": range(6), "new_classes": range(1)}.items():
        for c, name in enumerate(images.names[: 14 if folder == "drawings" else 4]):
            (tmp_path / folder / name).mkdir(parents=True)
            for i in rows:
                Image.fromarray(images.pixels[6 * c + i, 0].numpy()).save(tmp_path / folder / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    short = snippet.replace('method="protonet"', 'method="protonet", plan=Plan(steps=5, tasks=2, query=2, every=5)')
    names = {"Plan": Plan, "pixels": images.pixels[:3]}
    exec(short, names)
    assert names["chances"].shape == (3, 4) and "protonet is right on" in capsys.readouterr().out
    assert (tmp_path / "classifier.onnx").exists() and (tmp_path / "model" / "card.md").exists()


def test_the_page_of_preferences_predicts_ratings(simulated_ratings):
    (snippet,) = blocks("docs/methods/preference_bayes.md")
    names = {"ratings": simulated_ratings(users=60)}
    exec(snippet.replace("factors=16", "factors=2, sweeps=3"), names)
    asked = names["parts"].test.asked
    assert names["said"].mean.shape == names["said"].variance.shape == (len(asked.value),)


def test_the_page_of_clicks_predicts_clicks(simulated_ratings):
    (snippet,) = blocks("docs/methods/click_bayes.md")
    ratings = simulated_ratings(users=60)
    names = {"clicks": ratings._replace(value=(ratings.value > 3).astype(float), scale=(0.0, 1.0))}
    exec(snippet.replace("choices=8", "choices=2, least=5"), names)
    said = names["said"].mean
    assert said.shape == (len(names["parts"].test.asked.value),) and 0 < said.min() < said.max() < 1


def test_readme_example_for_tables_runs(tmp_path, monkeypatch, capsys):
    snippet, _ = blocks("README.md")
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"user": np.repeat(np.arange(60), 8), "price": generator.normal(size=480)})
    table["rating"] = table["price"] * (1 + table["user"] % 3) + generator.normal(size=480) / 10
    table.to_csv(tmp_path / "ratings.csv", index=False)
    monkeypatch.chdir(tmp_path)
    # the reader waits for the search over methods; a test does not
    short = "MetaLearner('empirical_bayes', plan=Plan(steps=20, support=5, query=3), trials=1, device='cpu')"
    names = {"Plan": Plan, "first_ratings": table[:4], "candidates": table[4:8].drop(columns="rating")}
    exec(snippet.replace("MetaLearner()", short), names)
    assert "prediction" in capsys.readouterr().out
    again = names["MetaLearner"].load("model").adapt(table[:4])
    assert torch.equal(again.predict(table[4:8]).mean, names["newcomer"].predict(table[4:8]).mean)


def test_readme_example_for_researchers_trains():
    _, snippet = blocks("README.md")
    with seeded(0):
        module = MLP(1, (8,), 1)
    x, y = sines(4, 10)
    batch = (x[:, :5], y[:, :5], x[:, 5:], y[:, 5:])
    first, later = {"my_module": module, "batches": [batch]}, {"my_module": module, "batches": [batch] * 30}
    exec(snippet, first)
    exec(snippet, later)
    assert later["info"].loss < first["info"].loss


def test_page_for_newcomers_trains_and_adapts():
    update, new = blocks("docs/coming-from.md", "### warmstart")
    x, y = sines(25, 20)
    names = {"xs": x[:, ::2], "ys": y[:, ::2], "xq": x[:, 1::2], "yq": y[:, 1::2]}
    with seeded(0):
        exec(update, names)
    assert not torch.equal(names["state"].theta["head.bias"], names["model"].params["head.bias"])
    names |= {"support": make_batch(x[3], y[3]), "x_new": x[3]}
    exec(new, names)
    assert names["mean"].shape == (20,)
