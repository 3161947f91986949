"""Each verb does what the library does, and prints what it did."""

import inspect
import json
import resource
import shlex
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

from warmstart import __version__
from warmstart.cli import app
from warmstart.estimators.meta_learner import MetaLearner
from warmstart.report import load, make_results, make_row, plain
from warmstart.report.page import Outcome, Section


def commands(command, path=()):
    """Every verb with its parameters, those of `data` among them."""
    if hasattr(command, "commands"):
        return {k: v for name, part in command.commands.items() for k, v in commands(part, (*path, name)).items()}
    return {" ".join(path): {option for parameter in command.params for option in parameter.opts}}


def test_help_is_quick_and_imports_nothing_heavy():
    code = """
import sys
from warmstart.cli import run
assert run(["--help"]) == 0
sys.exit(" ".join({"torch", "numpy", "pandas", "sklearn", "matplotlib"} & set(sys.modules)) or 0)
"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
    for verb in ("demo", "fit", "adapt", "recommend", "evaluate", "export", "study", "bench", "data"):
        assert f" {verb} " in done.stdout


def test_version_and_no_arguments(cli):
    assert cli("--version").out == f"warmstart {__version__}\n"
    assert cli().out == cli("--help").out


def test_runs_as_a_module_too():
    for words, code in ((["--version"], 0), (["study", "no_such"], 2)):
        done = subprocess.run([sys.executable, "-m", "warmstart", *words], capture_output=True, text=True)
        assert done.returncode == code
        assert (f"warmstart {__version__}\n" == done.stdout) if code == 0 else ("Traceback" not in done.stderr)


def test_every_verb_takes_the_common_options():
    found = commands(get_command(app))
    assert set(found) >= {"demo", "fit", "adapt", "evaluate", "export", "study", "bench", "data list", "data check"}
    for verb, options in found.items():
        assert {"--json", "--quiet"} <= options, verb
        assert "--seed" in options or verb == "generate"  # which draws nothing
        # export writes a file for any machine; pools of small models are fused, and users recommended to, on a CPU
        assert "--device" in options or verb in ("export", "fuse", "generate", "recommend")


def test_fit_tells_what_it_did_and_what_to_type_next(cli, home, tmp_path, fast):
    line = ("fit", home / "rows.csv", "--task", "user", "--target", "y", "--method", "pretrain", *fast, "--trials", "2")
    done = cli(*line, "-o", tmp_path / "my model")
    assert done.code == 0 and done.err == ""
    model = MetaLearner.load(tmp_path / "my model")
    assert f"{model.fitted.value:.4g}" in done.out and "pretrain" in done.out and "│      2 │" in done.out
    assert "19 train, 3 validation, 6 test" in done.out
    evaluate, adapt = (shlex.split(line) for line in done.out.splitlines()[-2:])
    assert adapt[:3] == ["warmstart", "adapt", str(tmp_path / "my model")]
    judged = cli(*evaluate[1:], "--trials", "1", "--json")
    assert judged.code == 0 and judged.err == ""
    folder = tmp_path / "my model-report"
    assert {path.name for path in folder.iterdir()} == {"results.json", "table.csv", "report.html"}
    kept = load(folder / "results.json")
    assert json.loads(judged.out)["rows"] == json.loads((folder / "results.json").read_text())["rows"]
    assert {row.method for row in kept.rows} >= {"pretrain", "global_mean", "task_mean", "pooled_ridge", "boosting"}
    assert max(row.n for row in kept.rows) == 6


def test_fit_compares_methods_by_default_and_takes_the_best(cli, home, tmp_path, fast):
    done = cli("fit", home / "rows.csv", "--task", "user", "--target", "y", *fast, "-o", tmp_path / "m", "--json")
    assert done.code == 0 and done.err == ""
    told = json.loads(done.out)
    best = {name: trials[0]["error"] for name, trials in told["trials"].items()}
    assert set(best) == {"empirical_bayes", "anil", "pretrain"}
    assert told["method"] == min(best, key=best.get) and told["error"] == min(best.values())
    assert told["tasks"] == {"train": 19, "validation": 3, "test": 6}
    assert MetaLearner.load(tmp_path / "m").method == told["method"]


def test_fit_quietly_with_settings_and_roles(cli, home, tmp_path, fast):
    rows = pd.read_csv(home / "rows.csv").assign(day=lambda t: np.arange(len(t)), weight=2.0, noise=1.0, tags="a|b")
    rows.to_parquet(tmp_path / "rows.parquet")
    roles = "--task user --target y --time day --weight weight --categorical x --multi tags --drop noise,colour"
    line = f"{roles} --method maml --set inner_lr=0.3 --set inner=adam --quiet".split()
    done = cli("fit", tmp_path / "rows.parquet", *line, *fast, "-o", tmp_path / "m")
    assert (done.code, done.out, done.err) == (0, "", "")
    model = MetaLearner.load(tmp_path / "m")
    assert (model.fitted.config.inner_lr, model.fitted.config.inner) == (0.3, "adam")
    schema = model.fitted.schema
    assert [part.name for part in schema.rows.categorical] == ["x"] and schema.rows.numeric == ()
    assert [part.name for part in schema.rows.bag] == ["tags"]
    assert (schema.roles.time, schema.roles.weight, schema.roles.drop) == ("day", "weight", ("noise", "colour"))


def test_fit_goes_on_from_a_model(cli, home, tmp_path, fast):
    tables = (home / "rows.csv", "--task-table", home / "tasks.csv")
    done = cli(
        "fit", *tables, "--from", home / "model", *fast, "--set", "outer_lr=1e-9", "-o", tmp_path / "m", "--json"
    )
    assert done.code == 0 and json.loads(done.out)["method"] == "maml"
    old, new = (MetaLearner.load(path).fitted.state.theta for path in (home / "model", tmp_path / "m"))
    assert all(np.allclose(old[name], new[name], atol=1e-6) for name in old)
    wrong = cli("fit", *tables, "--from", home / "model", "--method", "reptile", *fast, "-o", tmp_path / "n")
    assert wrong.code == 2 and "maml" in wrong.err
    wrong = cli(
        "fit", *tables, "--from", home / "model", "--task", "user", "--target", "x", *fast, "-o", tmp_path / "n"
    )
    assert wrong.code == 2 and "user, y, squared" in wrong.err


def test_fit_records_for_tensorboard(cli, home, tmp_path, fast, monkeypatch):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    line = ("fit", home / "rows.csv", "--task", "user", "--target", "y", "--method", "pretrain", *fast)
    assert cli(*line, "--trials", "2", "--tensorboard", tmp_path / "tb", "-o", tmp_path / "m").code == 0
    found = events.EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.step for event in found.Scalars("loss")] == [10, 20]
    assert min(event.value for event in found.Scalars("validation")) == pytest.approx(
        MetaLearner.load(tmp_path / "m").fitted.value
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    done = cli(*line, "--tensorboard", tmp_path / "tb", "-o", tmp_path / "m")
    assert done.code == 2 and "warmstart[tensorboard]" in done.err


def said(done):
    assert done.code == 0 and done.err == "", done.err
    return pd.DataFrame(json.loads(done.out)["predictions"])


def test_adapt_serves_each_task_of_a_table(cli, home, tmp_path):
    query = pd.read_csv(home / "query.csv")
    stranger = query.iloc[:1].assign(user="u27")  # no support rows
    query = pd.concat([query, stranger]).sample(frac=1, random_state=0, ignore_index=True)
    query.to_csv(tmp_path / "query.csv", index=False)
    tables = ("--support", home / "support.csv", "--query", tmp_path / "query.csv")
    line = ("adapt", home / "model", *tables, "--descriptor-table", home / "tasks.csv", "--level", "0.6")
    found = said(cli(*line, "--json"))
    assert found["user"].tolist() == query["user"].tolist()
    model, support = MetaLearner.load(home / "model"), pd.read_csv(home / "support.csv")
    about = pd.read_csv(home / "tasks.csv").set_index("user")
    for user, rows in query.groupby("user"):
        shown = support[support["user"] == user] if user != "u27" else None
        alone = model.adapt(shown, about.loc[user].to_dict()).frame(rows, 0.6)
        told = found[found["user"] == user]
        np.testing.assert_allclose(told["prediction"], alone["prediction"], rtol=1e-5)
        np.testing.assert_allclose(told[["low", "high"]], alone[["low", "high"]], rtol=1e-5)
    for suffix, read in {"csv": pd.read_csv, "parquet": pd.read_parquet}.items():
        assert cli(*line, "-o", tmp_path / f"said.{suffix}", "--quiet").out == ""
        np.testing.assert_allclose(read(tmp_path / f"said.{suffix}")["high"], found["high"], rtol=1e-5)


def test_adapt_to_the_first_rows_only(cli, home, tmp_path):
    query, support = home / "query.csv", pd.read_csv(home / "support.csv")
    support.groupby("user").head(2).to_csv(tmp_path / "two.csv", index=False)
    first = said(cli("adapt", home / "model", "--support", home / "support.csv", "--query", query, "-k", 2, "--json"))
    two = said(cli("adapt", home / "model", "--support", tmp_path / "two.csv", "--query", query, "--json"))
    pd.testing.assert_frame_equal(first, two)
    none = said(cli("adapt", home / "model", "--support", home / "support.csv", "--query", query, "-k", 0, "--json"))
    zero = said(cli("adapt", home / "model", "--query", query, "--json"))
    pd.testing.assert_frame_equal(none, zero)
    support.head(0).to_csv(tmp_path / "header.csv", index=False)
    nothing = cli("adapt", home / "model", "--support", tmp_path / "header.csv", "--query", query, "--json")
    pd.testing.assert_frame_equal(said(nothing), zero)
    assert not np.allclose(zero["prediction"], two["prediction"])


def test_adapt_says_what_training_did_not_have(cli, home, tmp_path):
    tables = {"--support": home / "support.csv", "--query": tmp_path / "query.csv"}
    query, about = pd.read_csv(home / "query.csv"), pd.read_csv(home / "tasks.csv")
    query.loc[1:3, "colour"] = ["green", "pink", "green"]
    query.loc[2, "x"] = 1e6
    query.to_csv(tmp_path / "query.csv", index=False)
    about.loc[about["user"].isin(["u01", "u28"]), "town"] = "lund"  # of the two, u28 is asked about
    tables["--descriptor-table"] = tmp_path / "tasks.csv"
    about.to_csv(tables["--descriptor-table"], index=False)
    line = ("adapt", home / "model", *(part for pair in tables.items() for part in pair))
    count = len(query)
    notes = [
        f"'x' is 1e+06 in 1 of {count} rows of the query, more than 10 standard deviations from the mean of training "
        "rows: far from all learned",
        f"'colour' is 'green', 'pink' in 3 of {count} rows of the query, which no or few training rows have: taken as "
        "unknown",
        "'town' is 'lund', which no or few training tasks have: taken as unknown",
    ]
    assert json.loads(cli(*line, "--json").out)["notes"] == notes
    assert [part for part in cli(*line).out.splitlines() if part.startswith("Note")] == [f"Note: {n}" for n in notes]
    usual = cli("adapt", home / "model", "--support", home / "support.csv", "--query", home / "query.csv", "--json")
    assert "notes" not in json.loads(usual.out)


def test_adapt_says_when_intervals_cannot_be_bounded(cli, home):
    tables = ("--support", home / "support.csv", "--query", home / "query.csv")
    done = cli("adapt", home / "model", *tables)  # 3 validation tasks claim 75 % at most
    assert "too few validation tasks" in done.out and "inf" in done.out
    assert said(cli("adapt", home / "model", *tables, "--json"))["low"].isna().all()
    assert "too few" not in cli("adapt", home / "model", *tables, "--level", "0.7").out


def test_adapt_to_one_task_and_export_it(cli, home, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason="extra onnx is not installed")
    for part in ("support", "query"):
        rows = pd.read_csv(home / f"{part}.csv")
        rows[rows["user"] == "u28"].drop(columns="user").to_csv(tmp_path / f"{part}.csv", index=False)
    known = ("--support", tmp_path / "support.csv", "--descriptor", "hint=0.5,town=rome")
    kept = ("--query", tmp_path / "query.csv", "--save", tmp_path / "adapted", "--json")
    found = said(cli("adapt", home / "model", *known, *kept))
    assert cli("export", "--adapted", tmp_path / "adapted", "-o", tmp_path / "a.onnx").code == 0
    done = cli("export", home / "model", *known, "-o", tmp_path / "b.onnx", "--json")
    assert json.loads(done.out) == {"file": str(tmp_path / "b.onnx"), "method": "maml", "support": 5}
    rows = MetaLearner.load(home / "model").fitted.schema.transform_rows(tmp_path / "query.csv")
    for name in ("a.onnx", "b.onnx"):
        session = runtime.InferenceSession(tmp_path / name)
        inputs = {entry.name: rows[entry.name].numpy() for entry in session.get_inputs()}
        np.testing.assert_allclose(session.run(["mean"], inputs)[0], found["prediction"], rtol=1e-5, atol=1e-6)


def fake_study(told):
    """A study that measures the seed."""

    def run(preset, seeds, only, data, device, progress, folder):
        told.append((preset, list(seeds), list(only), data, device))
        progress("working")(1, 1, "")
        rows = [make_row("ours", {"shot": 5}, "mse", {seed: float(seed) for seed in seeds})]
        results = make_results("sine", preset, "cpu", f"seeds {list(seeds)}", rows)
        return Outcome(results, [Section("T", table=plain(["a"], [["told"]]))], "Verdict.")

    return run


def test_study_merges_rows_over_runs(cli, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("warmstart.studies.sine.run", fake_study(told))
    monkeypatch.setenv("WARMSTART_DATA", str(tmp_path))
    out = tmp_path / "out"
    done = cli("study", "sine", "--seeds", 2, "--only", "maml", "--only", "reptile", "--device", "cpu", "-o", out)
    assert done.code == 0 and "told" in done.out and "Verdict." in done.out and str(out / "report.html") in done.out
    assert told == [("quick", [0, 1], ["maml", "reptile"], tmp_path, "cpu")]
    done = cli("study", "sine", "--seed", 7, "-o", out, "--json")
    assert json.loads(done.out)["rows"][0]["seeds"] == [0, 1, 7]
    assert load(out / "results.json").rows[0].values == (0.0, 1.0, 7.0)
    before = (out / "results.json").read_bytes(), (out / "report.html").read_bytes()
    done = cli("study", "sine", "--preset", "full", "-o", out)
    assert done.code == 2 and told[-1][:2] == ("full", [0, 1, 2]) and "another folder" in done.err
    assert ((out / "results.json").read_bytes(), (out / "report.html").read_bytes()) == before


def test_a_study_of_texts_is_told_its_model(cli, monkeypatch):
    models, plain_run = [], fake_study([])

    def run(preset, seeds, only, data, device, progress, folder, texts=None):
        models.append(texts)
        return plain_run(preset, seeds, only, data, device, progress, folder)

    monkeypatch.setattr("warmstart.studies.select_weak.run", run)
    assert cli("study", "select_weak", "--texts", "mini").code == cli("study", "select_weak").code == 0
    assert models == ["mini", None]


def test_studies_are_the_modules_that_run(cli):
    import warmstart.studies.population
    import warmstart.studies.sine

    listed = {one["name"]: one["about"] for one in json.loads(cli("study", "--list", "--json").out)}
    for module in (warmstart.studies.population, warmstart.studies.sine):
        assert listed[module.__name__.rpartition(".")[2]] == inspect.getdoc(module).splitlines()[0]
    assert "sine" in cli("study", "--list").out


def test_demo_is_the_population_study(cli, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("warmstart.studies.population.run", fake_study(told))
    assert cli("demo", "-o", tmp_path / "demo").code == 0
    assert told == [("demo", [0], [], None, "auto")]
    assert (tmp_path / "demo" / "report.html").exists()


def test_bench_prints_ratios_of_all_benchmarks(cli, tmp_path, monkeypatch):
    def run(device, progress, only):
        rows = [make_row("compiled", {"against": "loop"}, "ratio", {0: 40.0, 1: 42.0}, "x")]
        return make_results("meta_step", "full", device, "", rows)

    listed = [one["name"] for one in json.loads(cli("bench", "--list", "--json").out)]
    small = ["bayes_step", "cold_step", "conv_step", "memory", "meta_step", "neighbours", "picture_training"]
    assert listed == [*small, "recommend", "source_count", "subset_training"]
    for name in listed:
        monkeypatch.setattr(f"warmstart.benches.{name}.run", run)
        sections = [Section(name, table=plain(["way", "ratio"], [["compiled", "41x"]], caption=name))]
        monkeypatch.setattr(f"warmstart.benches.{name}.sections", lambda results, made=sections: made)
    done = cli("bench", "--device", "cpu", "-o", tmp_path)
    assert done.code == 0 and done.out.count("41x") == len(listed)
    assert load(tmp_path / "memory" / "results.json").rows[0].mean == 41
    assert list(json.loads(cli("bench", "meta_step", "--device", "cpu", "--json").out)) == ["meta_step"]


@pytest.mark.parametrize("name", ["population", "sine"])
def test_data_that_was_got_can_be_fitted_as_told(cli, tmp_path, fast, name):
    assert name in cli("data", "list").out
    done = cli("data", "get", name, "--tasks", 30, "-o", tmp_path / "data", "--json")
    fit, adapt, _ = (shlex.split(line)[1:] for line in json.loads(done.out)["commands"])
    rows, query = (pd.read_csv(tmp_path / "data" / f"{part}.csv") for part in ("rows", "query"))
    assert rows["task"].nunique() >= 30 and not set(rows["task"]) & set(query["task"]) and "target" not in query
    assert cli(*fit, *fast, "--method", "pretrain").code == 0
    assert len(said(cli(*adapt, "--json"))) == len(query) == 20
    checked = cli("data", "check", tmp_path / "data", "--task", "task", "--json")
    assert checked.code == 0
    tables = {one["table"].rpartition("/")[2]: one for one in json.loads(checked.out)}
    assert tables["rows.csv"]["tasks"] == rows["task"].nunique() and tables["rows.csv"]["longest"] == 30


def test_data_check_lists_problems(cli, tmp_path):
    (tmp_path / "good.csv").write_text("user,x,tags\na,1,p|q\na,2,q\nb,,p|r\n")
    (tmp_path / "mixed.csv").write_text("user,x\na,1\nb,2\nc,many\n")
    (tmp_path / "cut.csv").write_text('user,x\na,"1\n')
    done = cli("data", "check", tmp_path / "good.csv", "--task", "user", "--json")
    (one,) = json.loads(done.out)
    assert done.code == 0 and (one["rows"], one["tasks"], one["shortest"], one["longest"]) == (3, 2, 1, 2)
    kinds = {column["name"]: (column["kind"], column["missing"], column["distinct"]) for column in one["columns"]}
    assert kinds == {"user": ("categorical", 0, 2), "x": ("numeric", 1, 2), "tags": ("multi", 0, 3)}
    done = cli("data", "check", tmp_path)
    assert done.code == 2 and "got 2" in done.err and len(done.err.splitlines()) == 1
    assert "'many'" in done.out.replace("\n", "") and "closing quote" in done.out
    done = cli("data", "check", tmp_path / "good.csv", "--task", "usr")
    assert done.code == 2 and "did you mean 'user'" in done.out
