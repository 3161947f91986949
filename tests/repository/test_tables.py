"""The documentation's tables say what the result files say, and nothing else."""

import importlib.util
from pathlib import Path

import pytest

from warmstart.report import load, make_results, make_row, save

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs/tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mse(method, steps, value):
    return make_row(method, {"shot": 5, "steps": steps}, "mse", {0: value})


def results(*rows):
    return make_results("sine", "full", "a CPU", "warmstart study sine", rows)


def cells(text):
    """The cells of the Markdown tables in `text`."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line] for line in lines]


def test_a_page_shows_its_methods_only_and_every_setting_of_the_study(tables):
    study = results(mse("maml", 1, 0.5), mse("reptile", 5, 0.25))
    assert cells(tables.page([study], ["maml", "anil"])) == [
        ["method", "steps 1", "steps 5"],
        ["maml", "0.500", "not run"],
        ["anil", "not run", "not run"],
    ]


def test_the_rivals_of_a_study_stand_beside_the_methods_of_a_page(tables, monkeypatch):
    monkeypatch.setattr(tables, "PEERS", {"sine": ["reptile", "maml"], "other": ["anil"]})
    study = results(mse("maml", 1, 0.5), mse("reptile", 1, 0.25), mse("anil", 1, 0.75))
    assert [line[0] for line in cells(tables.page([study], ["maml"]))] == ["method", "maml", "reptile"]
    assert tables.page([study], ["imaml"]) == tables.NO_RESULTS


def test_rows_that_a_study_has_still_to_run_are_shown(tables, monkeypatch):
    monkeypatch.setattr(tables, "EXPECTED", {"sine": ("maml", "imaml")})
    study = results(mse("maml", 1, 0.5), mse("reptile", 1, 0.25))
    assert cells(tables.section(study))[1:] == [["maml", "0.500"], ["imaml", "not run"], ["reptile", "0.250"]]
    assert cells(tables.section(study, ["imaml", "anil"]))[1:] == [["imaml", "not run"]]


def test_what_papers_report_stands_below(tables):
    told = [make_row("maml", {"shot": k}, "mse", {0: 0.5}, peer=peer) for k, peer in ((5, "paper 0.4"), (10, "loop"))]
    assert "Published: maml, shot 5: 0.4." in tables.section(results(*told))
    assert "Published" not in tables.section(results(told[1]))


def test_each_metric_has_its_table_and_unit(tables):
    text = tables.section(results(mse("maml", 1, 0.5), make_row("maml", {}, "time", {0: 2.0}, unit="s")))
    assert cells(text) == [["method", "mse"], ["maml", "0.500"], ["method", "time (s)"], ["maml", "2.00"]]
    assert text.index("mse:") < text.index("0.500") < text.index("time (s):") < text.index("2.00")


def test_of_trials_the_chosen_settings_are_shown(tables):
    trials = [
        make_row("maml", {"family": "f", "trial": i, "settings": words, "kept": i == 1}, "validation MSE", {0: value})
        for i, (words, value) in enumerate([("rate 1", 0.25), ("rate 2", 0.0005)])
    ]
    text = tables.section(results(mse("maml", 1, 0.5), *trials), ["maml"])
    assert cells(text)[2:] == [
        ["method", "family", "settings", "validation MSE", "trials"],
        ["maml", "f", "rate 2", "0.0005", "2"],
    ]
    assert "No trials" in tables.section(results(mse("reptile", 1, 0.5), *trials), ["reptile"])


def test_a_section_says_how_it_was_run(tables):
    study = results(mse("maml", 1, 0.5))
    text = tables.section(study)
    for said in ("sine, full", "`warmstart study sine`", "a CPU", study.date, f"torch {study.versions['torch']}"):
        assert said in text


def test_a_study_without_the_method_is_left_out(tables):
    assert tables.page([results(mse("reptile", 1, 0.5))], ["maml"]) == tables.NO_RESULTS


def test_write_makes_a_file_for_every_page(tables, tmp_path):
    save(results(mse("anil", 1, 0.5)), tmp_path / "sine.full.json")
    tables.write(tmp_path, tmp_path / "pages")
    assert ["anil", "0.500"] in cells((tmp_path / "pages" / "maml.md").read_text(encoding="utf-8"))
    assert ["anil", "0.500"] in cells((tmp_path / "pages" / "all.md").read_text(encoding="utf-8"))
    assert (tmp_path / "pages" / "reptile.md").read_text(encoding="utf-8") == tables.NO_RESULTS


def test_every_learner_has_a_page(tables):
    learners = {path.stem for path in (ROOT / "src/warmstart/learners").glob("*.py")} - {"__init__"}
    assert {*learners, "nearest_centroid", "linear_head", "protonet"} <= set(tables.PAGES)


def test_committed_results_can_be_rendered(tables):
    for path in (ROOT / "results").glob("*.json"):
        found = load(path)
        assert path.name == f"{found.study}.{found.preset}.json"
        assert cells(tables.section(found))
