"""fuse and generate: a folder of models in, a model for a new task out; bad input is one sentence."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file


def network(a, seed):
    """ReLU units in an order of their own, the head by least squares: a sin(x) + a^2 / 4."""
    order = np.random.default_rng(seed).permutation(20)
    knots = np.linspace(-3.2, 2.8, 20)[order]
    x = np.linspace(-3, 3, 120)
    phi = np.concatenate([np.maximum(x[:, None] - knots, 0), np.ones((120, 1))], 1)
    head = np.linalg.lstsq(phi, a * np.sin(x) + a**2 / 4, rcond=None)[0]
    parts = {"0.weight": np.ones((20, 1)), "0.bias": -knots, "2.weight": head[None, :-1], "2.bias": head[-1:]}
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in parts.items()}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """A folder of models with its table, and a generator made of it by the command."""
    folder = tmp_path_factory.mktemp("zoo")
    amplitudes = np.linspace(0.5, 3, 14)
    (folder / "models").mkdir()
    for i, a in enumerate(amplitudes):
        save_file(network(a, i), folder / "models" / f"m{i}.safetensors")
    table = pd.DataFrame({"model": [f"m{i}" for i in range(14)], "a": amplitudes, "place": ["sea", "hill"] * 7})
    table.to_csv(folder / "tasks.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def made(zoo, cli):
    line = ["fuse", zoo / "models", "--descriptors", zoo / "tasks.csv", "--method", "function_gp", "-o", zoo / "gen"]
    done = cli(*line)
    assert done.code == 0, done.err
    return zoo, done


def test_fuse_writes_a_generator_and_its_page(made):
    folder, done = made
    assert "function_gp" in done.out and "report.html" in done.out
    page = (folder / "gen" / "report.html").read_text()
    for heading in ("Ways of fusing", "Leave-one-out error per model", "Map of tasks", "Predicted functions"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<svg") == 2
    assert sorted(path.name for path in (folder / "gen").iterdir()) == [
        "card.md",
        "config.json",
        "report.html",
        "weights.safetensors",
    ]


def test_generate_writes_a_model_of_the_architecture(made, cli, tmp_path):
    folder, _ = made
    done = cli("generate", folder / "gen", "--descriptor", "a=1.7,place=sea", "-o", tmp_path / "model", "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["method"] == "function_gp" and told["support"] == 0 and told["warning"] == ""
    weights = load_file(tmp_path / "model" / "weights.safetensors")
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in network(1.0, 0).items()
    }
    x = torch.linspace(-3, 3, 50)[:, None]
    hidden = torch.relu(x @ weights["0.weight"].T + weights["0.bias"])
    said = (hidden @ weights["2.weight"].T + weights["2.bias"])[:, 0]
    assert (said - (1.7 * torch.sin(x[:, 0]) + 1.7**2 / 4)).abs().max() < 0.1
    assert "Relevance of the pool" in (tmp_path / "model" / "report.html").read_text()


def test_rows_of_the_task_are_used(made, cli, tmp_path):
    folder, _ = made
    pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": [0.7, 1.9, 2.2]}).to_csv(tmp_path / "few.csv", index=False)
    line = ["generate", folder / "gen", "--descriptor", "a=1.7,place=sea", "--support", tmp_path / "few.csv"]
    done = cli(*line, "-o", tmp_path / "model")
    assert done.code == 0 and "3 rows of the task" in done.out
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["support"] == 3 and config["half_width"][0] > 0


def test_few_models_make_a_generator_without_intervals(zoo, cli, tmp_path):
    (tmp_path / "models").mkdir()
    for i in (0, 5, 9):
        shutil.copy(zoo / "models" / f"m{i}.safetensors", tmp_path / "models")
    line = ["fuse", tmp_path / "models", "--descriptors", zoo / "tasks.csv", "--method", "function_gp"]
    done = cli(*line, "-o", tmp_path / "gen")
    assert done.code == 0 and "needs at least 9 models" in done.out
    done = cli("generate", tmp_path / "gen", "--descriptor", "a=1.7,place=sea", "-o", tmp_path / "model")
    assert done.code == 0 and "level 0.9 needs at least 9 models" in done.out
    assert json.loads((tmp_path / "model" / "config.json").read_text())["half_width"] == [None]


def test_generate_refuses_what_would_be_lost_or_ignored(made, cli, tmp_path):
    line = ["generate", made[0] / "gen", "--descriptor"]
    refused(cli(*line, "a=1.7,place=sea", "-o", made[0] / "gen"), "another folder")
    refused(cli(*line, "a=1.7,place=sea,zzz=3", "-o", tmp_path / "model"), "values of a, place", "zzz")


def test_fuse_refuses_early_what_it_cannot_write_or_read(zoo, cli, tmp_path):
    line = ["fuse", zoo / "models", "--descriptors", zoo / "tasks.csv", "-o"]
    (tmp_path / "file").write_text("")
    refused(cli(*line, tmp_path / "file"), "a new folder")
    (tmp_path / "one.csv").write_text("x\n1.0\n1.0\n")
    refused(cli(*line, tmp_path / "gen", "--inputs", tmp_path / "one.csv"), "different rows", "2, all alike")
    (tmp_path / "models").mkdir()
    for i in range(4):
        parts = {f"{name}.weight": torch.randn(4, 4) for name in ("key", "query", "value")}
        save_file(parts | {"x.weight": torch.randn(1, 4)}, tmp_path / "models" / f"m{i}.safetensors")
    line[1] = tmp_path / "models"
    refused(cli(*line, tmp_path / "gen"), "one after another", "'key.weight'", "attention")


def test_a_task_far_outside_is_warned_of(made, cli, tmp_path):
    done = cli("generate", made[0] / "gen", "--descriptor", "a=90,place=moon", "-o", tmp_path / "model")
    assert done.code == 0 and "Warning: the task is far outside the pool" in done.out


def refused(done, *words):
    assert done.code == 2 and done.out == ""
    (line,) = done.err.splitlines()
    assert re.fullmatch(r"warmstart: expected .+, got .+; .+", line)
    for word in words:
        assert word in line


def pickled(folder):
    (folder / "models" / "m3.safetensors").rename(folder / "models" / "m3.pt")


def other_shape(folder):
    save_file({"0.weight": torch.zeros(5, 1)}, folder / "models" / "m3.safetensors")


def broken(folder):
    spoilt = network(1.0, 0)
    spoilt["2.bias"][0] = float("nan")
    save_file(spoilt, folder / "models" / "m3.safetensors")


def too_few(folder):
    for i in range(2, 14):
        (folder / "models" / f"m{i}.safetensors").unlink()


def constant(folder):
    pd.read_csv(folder / "tasks.csv").assign(a=1, place="sea").to_csv(folder / "tasks.csv", index=False)


def duplicate(folder):
    table = pd.read_csv(folder / "tasks.csv")
    table.loc[2] = table.loc[0].where(table.columns != "model", "m2")
    table.to_csv(folder / "tasks.csv", index=False)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (pickled, ["m3.pt, a pickle, which may run any code", "save_file"]),
        (other_shape, ["m3, as in m0"]),
        (broken, ["finite weights in m3.safetensors"]),
        (too_few, ["at least 3 models", "got 2"]),
        (constant, ["constant columns only"]),
        (duplicate, ["the same for 'm0' and 'm2'"]),
    ],
)
def test_bad_pools_are_refused_before_anything_is_written(zoo, tmp_path, cli, spoil, words):
    shutil.copytree(zoo / "models", tmp_path / "models")
    shutil.copy(zoo / "tasks.csv", tmp_path / "tasks.csv")
    spoil(tmp_path)
    done = cli("fuse", tmp_path / "models", "--descriptors", tmp_path / "tasks.csv", "-o", tmp_path / "gen")
    refused(done, *words)
    assert not (tmp_path / "gen").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--range", "5"], ["--range LOW,HIGH", "'5'"]),
        (["--range", "5,1"], ["low below high"]),
        (["--activation", "step"], ["relu, tanh, gelu, silu", "'step'"]),
        (["--method", "magic"], ["auto or one among nearest", "magic"]),
    ],
)
def test_bad_options_of_fuse_are_refused(zoo, tmp_path, cli, options, words):
    line = ["fuse", zoo / "models", "--descriptors", zoo / "tasks.csv", "-o", tmp_path / "gen", *options]
    refused(cli(*line), *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--descriptor", "a=1"], ["column 'place' in the descriptor"]),
        (["--descriptor", "a=big,place=sea"], ["a number for 'a'", "'big'"]),
        (["--descriptor", "a"], ["key=value"]),
        (["--descriptor", "a=1,place=sea", "--level", "90"], ["a level between 0 and 1"]),
        (["--descriptor", "a=1,place=sea", "--support", "few.csv"], ["1 columns of inputs and then 1 of outputs"]),
    ],
)
def test_bad_options_of_generate_are_refused(made, tmp_path, cli, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.csv").write_text("x,y,z\n1,2,3\n")
    refused(cli("generate", made[0] / "gen", "-o", "model", *options), *words)


def test_a_model_of_another_kind_is_no_generator(made, cli, tmp_path):
    cli("generate", made[0] / "gen", "--descriptor", "a=1,place=sea", "-o", tmp_path / "model")
    again = cli("generate", tmp_path / "model", "--descriptor", "a=1,place=sea", "-o", tmp_path / "other")
    refused(again, "kind fusion", "'fused model'")


def test_adapters_go_through_the_same_verbs(cli, tmp_path):
    base = network(1.0, 0)
    save_file(base, tmp_path / "base.safetensors")
    (tmp_path / "users").mkdir()
    strength = np.linspace(-1, 1, 12)
    for i, t in enumerate(strength):
        factors = {"2.lora_A": base["2.weight"] * t / (i - 5.5), "2.lora_B": torch.tensor([[i - 5.5]])}
        save_file({k: v.float().contiguous() for k, v in factors.items()}, tmp_path / "users" / f"u{i}.safetensors")
    pd.DataFrame({"user": [f"u{i}" for i in range(12)], "t": strength}).to_csv(tmp_path / "users.csv", index=False)
    line = ["fuse", tmp_path / "users", "--descriptors", tmp_path / "users.csv", "-o", tmp_path / "gen"]
    refused(cli(*line), "the frozen network of the adapters", "--base")
    done = cli(*line, "--base", tmp_path / "base.safetensors", "--method", "adapter_gp")
    assert done.code == 0, done.err
    done = cli("generate", tmp_path / "gen", "--descriptor", "t=0.37", "-o", tmp_path / "user", "--json")
    assert done.code == 0 and json.loads(done.out)["method"] == "adapter_gp"
    made = load_file(tmp_path / "user" / "weights.safetensors")
    assert torch.allclose(made["2.lora_B"] @ made["2.lora_A"], 0.37 * base["2.weight"], atol=0.02)
