"""Bad input is one sentence (expected, got, remedy), exit code 2, and leaves what was there as it was."""

import errno
import json
import os
import re
from types import SimpleNamespace

import pandas as pd
import pytest


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(done, *words):
    """One line that says what was expected, what came and what to do, in words that the case names."""
    assert done.code == 2 and done.out == "" and "Traceback" not in done.err
    (line,) = done.err.splitlines()
    assert re.fullmatch(r"warmstart: expected .+, got .+; .+", line)
    for word in words:
        assert word in line
    return line


ROWS = "user,x,y\n" + "".join(f"u{i % 12},{i % 7}.5,{i % 5}.25\n" for i in range(60))

COMMAS = "user,x,y\n" + "".join(f'u{i % 12},{i % 7}.5,"{i},25"\n' for i in range(60))


def spoilt(number, line):
    """ROWS with one line replaced."""
    lines = ROWS.splitlines()
    lines[number] = line
    return "\n".join(lines) + "\n"


FIT = [
    ("missing column", ROWS, ["--target", "rating"], ["'rating'", "'user', 'x', 'y'"]),
    ("misspelt column", ROWS, ["--task", "usr"], ["'usr'", "did you mean 'user'"]),
    ("non-numeric target", spoilt(9, "u1,1.5,good"), [], ["'good'", "row 9", "'y'", "correct or remove the row"]),
    ("infinite target", spoilt(9, "u1,1.5,inf"), [], ["a finite number", "row 9", "'y'"]),
    ("decimal commas", COMMAS, [], ["'y'", "different texts, such as '0,25'", "with a point"]),
    ("semicolons", ROWS.replace(",", ";"), [], ["commas", "'user;x;y'"]),
    ("column in capitals", ROWS, ["--target", "Y"], ["did you mean 'y' for 'Y'"]),
    ("target of texts", ROWS, ["--target", "user", "--task", "x", "--kind", "squared"], ["a number", "'user'"]),
    ("missing target", spoilt(4, "u1,1.5,"), [], ["target", "row 4", "remove rows"]),
    ("target NaN", spoilt(4, "u1,1.5,nan"), [], ["'y'", "row 4"]),
    ("infinite feature", spoilt(5, "u1,inf,1"), [], ["finite", "'x'", "row 5"]),
    ("task without a name", spoilt(5, ",1,1"), [], ["'user'", "row 5"]),
    ("one-row tasks", "user,x,y\n" + "".join(f"u{i},{i},{i}.5\n" for i in range(30)), [], ["two rows", "row number"]),
    ("two tasks", "user,x,y\na,1,2\na,2,3\nb,1,2\nb,2,3\n", [], ["task", "more tasks"]),
    ("duplicate column", ROWS.replace("user,x,y", "user,y,y"), [], ["distinct", "'y'", "rename"]),
    ("mixed types", spoilt(9, "u1,many,1"), [], ["'x'", "'many'", "row 9"]),
    ("ragged row", spoilt(9, "u1,1,2,3"), [], ["3 columns", "4"]),
    ("header only", "user,x,y\n", [], ["rows", "none"]),
    ("empty file", "", [], ["empty file"]),
    ("one class", ROWS, ["--target", "same", "--kind", "binary"], ["'same'"]),
    ("unknown kind", ROWS, ["--kind", "ordinal"], ["squared, binary, multiclass", "'ordinal'"]),
    ("noise of zero", ROWS, ["--method", "empirical_bayes", "--set", "noise=0"], ["positive spread and noise", "0.0"]),
    ("zero learning rate", ROWS, ["--method", "maml", "--set", "inner_lr=0"], ["positive inner_lr", "above 0"]),
    ("negative learning rate", ROWS, ["--method", "maml", "--set", "outer_lr=-0.1"], ["positive outer_lr", "-0.1"]),
    ("rate that is no number", ROWS, ["--method", "maml", "--set", "inner_lr=nan"], ["positive inner_lr", "nan"]),
    ("setting of another type", ROWS, ["--method", "maml", "--set", "inner_steps=2.5"], ["inner_steps", "'2.5'"]),
    ("misspelt setting", ROWS, ["--method", "maml", "--set", "inner_rl=1"], ["did you mean inner_lr"]),
    ("setting without a value", ROWS, ["--method", "maml", "--set", "inner_lr"], ["key=value"]),
    ("settings for auto", ROWS, ["--set", "inner_lr=0.1"], ["method", "auto", "name one"]),
    ("misspelt method", ROWS, ["--method", "mamal"], ["did you mean maml"]),
    ("unknown device", ROWS, ["--device", "tpu9"], ["auto, cpu or cuda", "tpu9"]),
    ("column with two roles", ROWS, ["--weight", "y"], ["one role", "'y'"]),
    ("item table without a key", ROWS, ["--item-table", "ROWS"], ["item column"]),
    ("no task table row", ROWS, ["--task-table", "SIDE"], ["'u0'", "task table"]),
    ("no such model to start from", ROWS, ["--from", "nowhere"], ["model folder", "nowhere"]),
]


@pytest.mark.parametrize(("text", "options", "words"), [case[1:] for case in FIT], ids=[case[0] for case in FIT])
def test_fit_refuses(cli, model, tmp_path, fast, text, options, words):
    rows, side = tmp_path / "rows.csv", tmp_path / "side.csv"
    rows.write_text(text.replace("\n", ",same\n", 1).replace("5\n", "5,1\n") if "same" in options else text)
    side.write_text("user,age\nsomebody,3\n")
    options = [{"ROWS": rows, "SIDE": side}.get(option, option) for option in options]
    before = contents(tmp_path)
    names = {"--task": "user", "--target": "y"} | dict(zip(options[::2], options[1::2], strict=True))
    done = cli("fit", rows, *(part for pair in names.items() for part in pair), *fast, "-o", model)
    refused(done, *words)
    assert contents(tmp_path) == before, "something was written"
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "side.csv", "model"}


def test_fit_refuses_bytes_of_another_encoding(cli, tmp_path, fast):
    (tmp_path / "rows.csv").write_bytes(spoilt(7, "caf\u00e9,1,2").encode("latin-1"))
    done = cli("fit", tmp_path / "rows.csv", "--task", "user", "--target", "y", *fast, "-o", tmp_path / "new")
    refused(done, "utf-8", "line 8", "UTF-8")


def test_fit_refuses_a_truncated_parquet_file(cli, home, tmp_path, fast):
    pd.read_csv(home / "rows.csv").to_parquet(tmp_path / "rows.parquet")
    whole = (tmp_path / "rows.parquet").read_bytes()
    (tmp_path / "rows.parquet").write_bytes(whole[: len(whole) // 2])
    done = cli("fit", tmp_path / "rows.parquet", "--task", "user", "--target", "y", *fast, "-o", tmp_path / "new")
    refused(done, "truncated or damaged", "write the file again")


@pytest.mark.parametrize("place", ["rows.csv/below/a/file", "rows.csv", "project", "/proc/nowhere/model"])
def test_fit_refuses_an_output_that_cannot_be_before_any_work(cli, home, tmp_path, fast, monkeypatch, place):
    (tmp_path / "rows.csv").write_bytes((home / "rows.csv").read_bytes())
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "thesis.tex").write_text("years of work")
    before = contents(tmp_path)
    monkeypatch.setattr("warmstart.estimators.meta_learner.choose", None)  # any training would be a crash
    done = cli("fit", tmp_path / "rows.csv", "--task", "user", "--target", "y", *fast, "-o", tmp_path / place)
    refused(done, "choose another")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "training", "kind"),
    [
        ((), "meta_learner", "meta"),
        (("--preferences", "--item", "colour"), "preference_learner", "preferences"),
    ],
)
def test_fit_refuses_a_model_of_another_kind_before_any_work(
    cli, home, model, fast, monkeypatch, options, training, kind
):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"kind": "pictures"}))
    before = contents(model)
    monkeypatch.setattr(f"warmstart.estimators.{training}.choose", None)  # any training would be a crash
    plan = () if options else fast
    done = cli("fit", home / "rows.csv", "--task", "user", "--target", "y", *options, *plan, "-o", model)
    refused(done, f"a saved model of kind '{kind}'", "kind 'pictures'", "another path")
    assert contents(model) == before and not model.with_name(".model.run").exists()


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_while_saving_keeps_the_old_model_and_the_training(cli, home, model, tmp_path, fast, monkeypatch):
    line = ("fit", home / "rows.csv", "--task", "user", "--target", "y", "--method", "pretrain", *fast, "-o", model)
    before = contents(model)
    with monkeypatch.context() as patch:
        patch.setattr("warmstart.estimators.folder.os", SimpleNamespace(fsync=full))
        refused(cli(*line), "No space left on device", "nothing was changed")
    assert contents(model) == before
    assert {path.name for path in tmp_path.iterdir()} == {"model", ".model.run"}
    with monkeypatch.context() as patch:
        patch.setattr("warmstart.training.train.meta_update", lambda *_: None)  # no step is left to run
        assert cli(*line).code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    assert json.loads((model / "config.json").read_text())["method"] == "pretrain"


def test_full_disk_while_writing_predictions_keeps_the_old_ones(cli, home, tmp_path, monkeypatch):
    output = tmp_path / "said.csv"
    output.write_text("precious")
    monkeypatch.setattr("os.fsync", full)
    done = cli("adapt", home / "model", "--support", home / "support.csv", "--query", home / "query.csv", "-o", output)
    refused(done, "No space left on device", "nothing was changed")
    assert contents(tmp_path) == {"said.csv": b"precious"}


ADAPT = [
    ("other columns", {"--query": "user,z\nu28,1\n"}, [], ["'x', 'colour'", "'user', 'z'"]),
    ("misspelt column", {"--query": "user,x,color\nu28,1,red\n"}, [], ["did you mean 'color' for 'colour'"]),
    ("text for a number", {"--query": "user,x,colour\nu28,1,red\nu28,many,red\n"}, [], ["'many'", "row 2"]),
    ("row of a later task", {"--support": "user,x,colour,y\nu28,1,red,1\nu29,1,red,bad\n"}, [], ["'bad'", "row 2"]),
    ("target beyond all", {"--support": "user,x,colour,y\nu28,1,red,1e30\n"}, [], ["finite predictions", "row 1"]),
    ("empty query", {"--query": "user,x,colour\n"}, [], ["rows", "none"]),
    ("support without target", {"--support": "user,x,colour\nu28,1,red\n"}, [], ["'y'"]),
    ("support with a missing target", {"--support": "user,x,colour,y\nu28,1,red,\n"}, [], ["target", "row 1"]),
    ("more than there are", {}, ["-k", "6"], ["6 support rows of task 'u28'", "5", "at most 5"]),
    ("unknown task", {"--descriptor-table": "user,hint,town\nu01,1,rome\n"}, [], ["'u28'", "task table"]),
    ("unknown descriptor column", {"--descriptor-table": "user,hunt\nu28,1\nu29,1\n"}, [], ["'hunt'", "'hint'"]),
    ("descriptor without value", {}, ["--descriptor", "hint"], ["key=value"]),
    ("one descriptor, two tasks", {}, ["--descriptor", "hint=1"], ["one task", "2", "table"]),
    ("level", {}, ["--level", "1.5"], ["between 0 and 1", "1.5"]),
    ("format of the output", {}, ["-o", "said.xlsx"], [".csv, .tsv or .parquet", "said.xlsx"]),
    ("query without tasks", {"--query": "x,colour\n1,red\n"}, [], ["'user' in the query", "2 tasks"]),
    ("support without tasks", {"--support": "x,colour,y\n1,red,1\n"}, [], ["'user' in the support", "2 tasks"]),
    ("no task in common", {"--support": "user,x,colour,y\nu82,1,red,1\n"}, [], ["'u82' there", "'u28' in the query"]),
    ("two tasks to save", {}, ["--save", "adapted"], ["one task", "2"]),
]


@pytest.mark.parametrize(("tables", "options", "words"), [case[1:] for case in ADAPT], ids=[case[0] for case in ADAPT])
def test_adapt_refuses(cli, home, tmp_path, monkeypatch, tables, options, words):
    monkeypatch.chdir(tmp_path)
    given = {"--support": home / "support.csv", "--query": home / "query.csv"}
    for number, (flag, text) in enumerate(tables.items()):
        given[flag] = tmp_path / f"table{number}.csv"
        given[flag].write_text(text)
    before = contents(tmp_path)
    refused(cli("adapt", home / "model", *(part for pair in given.items() for part in pair), *options), *words)
    assert contents(tmp_path) == before


def test_an_adapted_model_does_not_take_the_place_of_its_model(cli, home, model, tmp_path):
    pd.read_csv(home / "support.csv").query("user == 'u28'").to_csv(tmp_path / "support.csv", index=False)
    pd.read_csv(home / "query.csv").query("user == 'u28'").to_csv(tmp_path / "query.csv", index=False)
    before = contents(model)
    given = ("--support", tmp_path / "support.csv", "--query", tmp_path / "query.csv")
    refused(cli("adapt", model, *given, "--save", model), "kind 'adapted'", "kind 'meta'", "another path")
    assert contents(model) == before
    for _ in range(2):  # one of its own kind is replaced
        assert cli("adapt", model, *given, "--save", tmp_path / "adapted").code == 0
    (tmp_path / "adapted" / "config.json").write_text("{")  # and so is a damaged one
    assert cli("adapt", model, *given, "--save", tmp_path / "adapted").code == 0


def test_a_model_whose_error_is_infinite_is_not_saved(cli, fast, tmp_path):
    (tmp_path / "rows.csv").write_text(ROWS)
    line = ("fit", tmp_path / "rows.csv", "--task", "user", "--target", "y", *fast, "--method", "maml")
    done = cli(*line, "--set", "inner_lr=1e9", "-o", tmp_path / "model")
    refused(done, "finite error of maml on the validation tasks", "infinite", "lower the learning rates")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("descriptor", ["hunt=1", "hint=high", "y=1"])
def test_adapt_refuses_a_bad_descriptor(cli, home, tmp_path, descriptor):
    (tmp_path / "query.csv").write_text("x,colour\n1,red\n")
    refused(cli("adapt", home / "model", "--query", tmp_path / "query.csv", "--descriptor", descriptor), "descriptor")


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "schema.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "noise"])
def test_adapt_refuses_a_damaged_model(cli, home, model, name, damage):
    file = model / name
    whole = file.read_bytes()
    file.write_bytes({"missing": whole, "empty": b"", "half": whole[: len(whole) // 2], "noise": b"\xff\x00"}[damage])
    if damage == "missing":
        file.unlink()
    line = refused(cli("adapt", model, "--support", home / "support.csv", "--query", home / "query.csv"))
    assert name in line or "schema" in line


@pytest.mark.parametrize(("name", "key"), [("config.json", "format"), ("schema.json", "version")])
def test_adapt_refuses_a_newer_model(cli, home, model, name, key):
    content = json.loads((model / name).read_text())
    (model / name).write_text(json.dumps(content | {key: 99}))
    refused(cli("adapt", model, "--query", home / "query.csv"), "99", "update warmstart")


def test_a_model_and_an_adapted_model_are_not_mixed_up(cli, home, tmp_path):
    refused(cli("export", "--adapted", home / "model", "-o", tmp_path / "m.onnx"), "adapted")
    refused(cli("export", "-o", tmp_path / "m.onnx"), "neither")
    refused(cli("export", home / "model", "--adapted", home / "model", "-o", tmp_path / "m.onnx"), "both")
    refused(
        cli("export", home / "model", "--support", home / "support.csv", "-o", tmp_path / "m.onnx"), "one task", "2"
    )


def test_evaluate_refuses_another_table(cli, home, tmp_path):
    (tmp_path / "rows.csv").write_text("user,x,colour,y\nz1,1,red,1\nz1,2,red,1\n")
    (tmp_path / "tasks.csv").write_text("user,hint,town\nz1,1,rome\n")
    tables = (tmp_path / "rows.csv", "--task-table", tmp_path / "tasks.csv")
    refused(cli("evaluate", home / "model", *tables, "-o", tmp_path / "new" / "out"), "table given to fit")
    assert not (tmp_path / "new").exists()
    refused(cli("evaluate", home / "model", home / "rows.csv", "-o", tmp_path / "rows.csv" / "out"), "write the folder")


def test_results_are_not_written_among_other_files(cli, home, model, tmp_path, monkeypatch):
    monkeypatch.setattr("warmstart.estimators.evaluation.evaluate", None)  # any work would be a crash
    monkeypatch.setattr("warmstart.tasks.transfer.read_transfer", None)
    evaluate = ("evaluate", home / "model", home / "rows.csv", "-o")
    select = ("select", home / "rows.csv", "--task", "user", "--target", "colour", "--target-task", "u01", "-o")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "table.csv").write_text("years of work")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "results.json").write_text("[1, 2]")
    before = contents(tmp_path)
    for line in (evaluate, select, ("study", "sine", "-o")):
        refused(cli(*line, tmp_path / "project"), "one of an earlier run", "table.csv", "another folder")
        refused(cli(*line, model), "one of an earlier run", "card.md", "another folder")
        refused(cli(*line, tmp_path / "foreign"), "a results file", "damaged")
    refused(cli(*select, tmp_path), "a saved model of kind 'selected'", "kind 'meta'", "another path")
    assert contents(tmp_path) == before


def test_unknown_workload_of_a_benchmark(cli):
    done = cli("bench", "memory", "--device", "cpu", "--only", "nonsense")
    assert done.code == 2 and "got nonsense" in done.err and "gem" in done.err


@pytest.mark.parametrize("verb", ["study", "bench"])
def test_unknown_study_or_benchmark(cli, verb):
    refused(cli(verb, "nothing-like-it"), "nothing-like-it", "--list")


def test_a_model_of_texts_for_a_study_without(cli, tmp_path):
    refused(cli("study", "sine", "--texts", "mini", "-o", tmp_path / "out"), "--texts", "select_weak", "got sine")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "line",
    [
        ["fit", "rows.csv"],
        ["fit", "rows.csv", "-o", "m", "--steps", "0"],
        ["fix"],
        ["adapt", "m", "--nonsense"],
        ["data"],
    ],
    ids=" ".join,
)
def test_usage_errors_are_one_line(cli, line):
    done = cli(*line)
    assert done.code == 2 and done.out == ""
    assert re.fullmatch(r"warmstart: .+; see `warmstart.* --help`\n", done.err)


def test_a_bug_keeps_its_traceback(cli, home, monkeypatch):
    def broken(*_):
        raise ValueError("not the user's fault")

    monkeypatch.setattr("warmstart.estimators.meta_learner.MetaLearner.load", broken)
    with pytest.raises(ValueError, match="not the user's fault"):
        cli("adapt", home / "model", "--query", home / "query.csv")
