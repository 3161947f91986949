"""What the pages tell a reader to type works, and does what the page says."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from warmstart.cli import run
from warmstart.core import Learner, adapt, make_batch, make_task
from warmstart.engine.meta import predict_stack
from warmstart.estimators.preference_rivals import BASELINES
from warmstart.fusion.network import make_network, make_pool
from warmstart.models.mlp import MLP, seeded
from warmstart.selection import final
from warmstart.tasks.films import simulate_films
from warmstart.tasks.images import as_batch, draw_episodes, make_images
from warmstart.tasks.roles import Roles
from warmstart.training.train import Plan

ROOT = Path(__file__).parents[2]
FEW = {kind: {"bias": rivals["bias"]} for kind, rivals in BASELINES.items()}  # a test does not wait for them all
OWN = (
    "index",
    "nearest_centroid",
    "linear_head",
    "protonet",
    "gem_head",
    "preference_bayes",
    "task_model",
    "model_fusion",
    "meta_model",
    "adapters",
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


@pytest.mark.parametrize("page", ["protonet", "gem_head"])
def test_pages_of_learners_of_pictures_build_one_that_tells_classes_apart(page):
    (snippet,) = blocks(f"docs/methods/{page}.md")
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


@pytest.mark.usefixtures("few_looks", "plain_pictures")
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
    exec(short.replace('evaluate(model, "drawings")', 'evaluate(model, "drawings", tasks=10)'), names)
    assert names["chances"].shape == (3, 4) and "protonet is right on" in capsys.readouterr().out
    assert (tmp_path / "classifier.onnx").exists() and (tmp_path / "model" / "card.md").exists()


def commands(page):
    """The lines of a page that begin with the program's name, as arguments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [shlex.split(line)[1:] for line in re.findall(r"^warmstart .+", text, re.MULTILINE)]


def test_the_page_of_cold_start_users_is_run_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warmstart.estimators.preference_rivals.BASELINES", FEW)
    for line in commands("docs/preferences.md"):
        few = ["--tasks", "60"] if line[0] == "data" else []  # the reader gets more users, and waits for them
        assert run([*line, *few]) == 0, line
    said = capsys.readouterr().out
    assert (
        "For u00060" in said and "For anna" in said and "Answered by: profile" in said and "Page: films/report" in said
    )
    (snippet,) = blocks("docs/preferences.md")
    more = pd.DataFrame({"user": ["u00060"], "film": ["f00007"], "rating": [4], "time": [2e9]})
    names = {"one_more_rating": more}
    exec(snippet, names)
    assert names["user"].events.tolist() == [11] and len(names["best"].items) == 10
    assert "prediction" in capsys.readouterr().out


def test_the_three_commands_of_the_readme_serve_a_new_user(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warmstart.estimators.preference_rivals.BASELINES", FEW)
    made = simulate_films(61, 40, fewest=6, most=20)
    own = made.ratings["user"] == "u00060"
    for name, table in {"ratings": made.ratings[~own], "users": made.users, "films": made.films}.items():
        table.to_csv(f"{name}.csv", index=False)
    made.ratings[own].head(3).to_csv("new_ratings.csv", index=False)
    readme = [line for line in commands("README.md") if "films.csv" in line or line[0] == "recommend"]
    assert [line[0] for line in readme] == ["fit", "recommend", "evaluate"]
    assert [run(line) for line in readme] == [0, 0, 0]
    assert "For u00060" in capsys.readouterr().out


def test_the_page_of_preferences_predicts_ratings(simulated_ratings):
    (snippet,) = blocks("docs/methods/preference_bayes.md")
    names = {"ratings": simulated_ratings(users=60)}
    exec(snippet.replace("factors=16", "factors=2, sweeps=3"), names)
    asked = names["parts"].test.asked
    assert names["said"].mean.shape == names["said"].variance.shape == (len(asked.value),)


def test_the_page_of_task_modelling_chooses_sources():
    snippet, thresholds, _ = blocks("docs/methods/task_model.md")
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"state": np.repeat(["HI", "A", "B", "C", "D"], 200), "x": draw.normal(size=1000)})
    table["y"] = (table["x"] > 0) ^ (table["state"] == "C")
    table["who"] = draw.choice(["a", "b"], 1000)
    # the reader waits for the trainings; a test does not
    training = "task_model.Training(hidden=(8,), steps=40, balance=0.0)"
    short = f"size=2, subsets=4, held_out=2, training={training}"
    snippet = snippet.replace("size=5, subsets=400", short)
    snippet = snippet.replace("cross_entropy)  #", f"cross_entropy, final.Config({training}, tuning=0), trials=2)  #")
    names = {"table": table, "roles": Roles(task="state", target="y", group="who"), "final": final}
    exec(snippet, names)
    assert names["chosen"].members.shape == (4,)
    assert names["chosen"].outputs(names["transfer"].test.x).shape == (40, 1)
    exec(thresholds, names)
    assert names["said"].shape == (40,)


def test_the_page_of_task_modelling_reads_texts(tmp_path, monkeypatch):
    *_, snippet = blocks("docs/methods/task_model.md")
    lines = [json.dumps({"text": f"so it is {i % 3}", "text2": "or not", "label": i % 2}) for i in range(8)]
    for task in ("rte", "cola", "wnli", "hate", "boolq"):
        (tmp_path / "tasks" / task).mkdir(parents=True)
        for part in ("train", "valid", "test") if task == "rte" else ("train",):
            (tmp_path / "tasks" / task / f"{part}.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    # the reader waits for the trainings; a test does not
    names = {}
    exec(
        snippet.replace("size=5, subsets=200, held_out=50", "size=1, subsets=2, held_out=2").replace("300", "2"), names
    )
    assert names["transfer"].names == ("boolq", "cola", "hate", "wnli", "rte") and names["found"].f.shape == (4,)


def test_the_page_of_model_fusion_makes_a_model(tmp_path, monkeypatch):
    (snippet,) = blocks("docs/methods/model_fusion.md")
    (tmp_path / "models").mkdir()
    draw = torch.Generator().manual_seed(0)
    about = torch.rand(8, 2, generator=draw)
    for i, (a, b) in enumerate(about.tolist()):
        line = {
            "0.weight": torch.full((3, 1), 1.0),
            "0.bias": torch.tensor([9.0, 0.0, -1.0]),
            "2.bias": torch.tensor([b]),
        }
        line["2.weight"] = torch.tensor([[a, -a, a * b]])
        save_file(line, tmp_path / "models" / f"m{i}.safetensors")
    table = pd.DataFrame({"model": [f"m{i}" for i in range(8)], "a": about[:, 0].numpy(), "b": about[:, 1].numpy()})
    table.to_csv(tmp_path / "tasks.csv", index=False)
    monkeypatch.chdir(tmp_path)
    x = torch.linspace(-5, 5, 20)[:, None]
    names = {"x": x, "support_x": x[:3], "support_y": torch.zeros(3)}
    # the reader waits for the hypernetwork; a test does not
    exec(snippet.replace("ModelFusion()", "ModelFusion('function_gp')"), names)
    assert names["mean"].shape == (20, 1) and (names["low"] <= names["high"]).all() and names["better"].shots == 3
    assert (tmp_path / "generator" / "card.md").exists()


def test_the_page_of_the_meta_model_fits_and_tunes():
    (snippet,) = blocks("docs/methods/meta_model.md")
    module = MLP(1, (4,), 1)
    params = {name: torch.randn(6, *value.shape) for name, value in module.named_parameters()}
    network, x = make_network(module), torch.linspace(-1, 1, 9)[:, None]
    names = {"network": network, "pool": make_pool(network, params, torch.arange(6.0)[:, None], x), "x": x, "y": x}
    names["descriptors"] = torch.tensor([[0.5]])
    exec(snippet.replace("epochs=60, refit=2000", "epochs=1, refit=1"), names)
    before, after = names["state"].theta["mean"], names["tuned"].theta["mean"]
    assert names["models"]["head.weight"].shape == (1, 1, 4) and not torch.equal(before, after)


def test_the_page_of_adapters_makes_an_adapter(tmp_path, monkeypatch):
    (snippet,) = blocks("docs/methods/adapters.md")
    (tmp_path / "adapters").mkdir()
    for i in range(9):
        factors = {"head.lora_A": torch.randn(1, 6), "head.lora_B": torch.randn(1, 1)}
        save_file(factors, tmp_path / "adapters" / f"u{i}.safetensors")
    table = pd.DataFrame(
        {"user": [f"u{i}" for i in range(9)], "age": range(30, 75, 5), "place": ["sea", "hill", "sea"] * 3}
    )
    table.to_csv(tmp_path / "users.csv", index=False)
    monkeypatch.chdir(tmp_path)
    names = {"network": MLP(3, (6,), 1), "inputs": torch.randn(20, 3)}
    exec(snippet.replace("ModelFusion()", "ModelFusion('adapter_gp')"), names)
    assert names["mean"].shape == (20, 1) and (names["low"] <= names["high"]).all()
    assert (tmp_path / "new_user.safetensors").exists()


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
