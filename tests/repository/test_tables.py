"""The documentation's tables say what the result files say, and nothing else."""

from pathlib import Path

import warmstart.benches
import warmstart.studies
from warmstart.cli.modules import runnable
from warmstart.report import load, make_results, make_row, save

ROOT = Path(__file__).parents[2]


def mse(method, steps, value):
    return make_row(method, {"shot": 5, "steps": steps}, "mse", {0: value})


def results(*rows):
    return make_results("sine", "full", "a CPU", "warmstart study sine", rows)


def cells(text):
    """The cells of the Markdown tables in `text`."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line] for line in lines]


def test_a_page_shows_what_its_methods_ran_and_all_shows_everything(tables):
    study = results(mse("maml", 1, 0.5), mse("reptile", 5, 0.25))
    assert cells(tables.page([study], ["maml", "anil"])) == [["method", "steps 1"], ["maml", "0.500"]]
    assert cells(tables.page([study])) == [
        ["method", "steps 1", "steps 5"],
        ["maml", "0.500", "not run"],
        ["reptile", "not run", "0.250"],
    ]


def test_a_setting_of_one_method_is_not_run_for_the_other_methods_of_the_page(tables):
    study = results(mse("maml", 1, 0.5), mse("maml", 5, float("nan")), mse("anil", 1, 0.75), mse("reptile", 10, 0.25))
    assert cells(tables.page([study], ["anil", "maml", "fomaml"])) == [
        ["method", "steps 1", "steps 5"],
        ["anil", "0.750", "not run"],
        ["maml", "0.500", "not finite"],
    ]


def test_a_page_has_a_metric_only_with_the_methods_that_have_it(tables):
    times = [make_row(method, {}, "time", {0: 2.0}, unit="s") for method in ("anil", "reptile")]
    study = results(mse("maml", 1, 0.5), *times)
    assert cells(tables.page([study], ["maml", "anil"])) == [
        ["method", "mse"],
        ["maml", "0.500"],
        ["method", "time (s)"],
        ["anil", "2.00"],
    ]
    assert "time" not in tables.page([study], ["maml"])


def test_the_rivals_of_a_study_stand_beside_the_methods_of_a_page(tables, monkeypatch):
    monkeypatch.setattr(tables, "PEERS", {"sine": ["reptile", "maml"], "other": ["anil"]})
    study = results(mse("maml", 1, 0.5), mse("reptile", 1, 0.25), mse("anil", 1, 0.75))
    assert [line[0] for line in cells(tables.page([study], ["maml"]))] == ["method", "maml", "reptile"]
    assert tables.page([study], ["imaml"]) == tables.NO_RESULTS


def test_rivals_bring_no_setting_or_metric_to_a_page(tables, monkeypatch):
    monkeypatch.setattr(tables, "PEERS", {"sine": ["reptile", "anil"]})
    time = make_row("reptile", {}, "time", {0: 2.0}, unit="s")
    study = results(mse("maml", 1, 0.5), mse("reptile", 1, 0.25), mse("reptile", 5, 0.125), mse("anil", 5, 0.75), time)
    assert cells(tables.page([study], ["maml"])) == [
        ["method", "steps 1"],
        ["maml", "0.500"],
        ["reptile", "0.250"],
        ["anil", "not run"],
    ]


def test_rows_that_a_study_has_still_to_run_are_shown(tables, monkeypatch):
    monkeypatch.setattr(tables, "EXPECTED", {"sine": ("maml", "imaml")})
    study = results(mse("maml", 1, 0.5), mse("reptile", 1, 0.25))
    assert cells(tables.section(study))[1:] == [["maml", "0.500"], ["imaml", "not run"], ["reptile", "0.250"]]
    assert cells(tables.section(study, ["imaml", "anil"]))[1:] == [["imaml", "not run"]]


def test_a_study_that_says_what_to_expect_shows_every_setting_and_metric(tables, monkeypatch):
    monkeypatch.setattr(tables, "EXPECTED", {"sine": ("maml", "imaml")})
    time = make_row("reptile", {}, "time", {0: 2.0}, unit="s")
    study = results(mse("maml", 1, 0.5), mse("reptile", 5, 0.25), time)
    assert cells(tables.page([study], ["imaml", "maml", "anil"])) == [
        ["method", "steps 1", "steps 5"],
        ["imaml", "not run", "not run"],
        ["maml", "0.500", "not run"],
        ["method", "time (s)"],
        ["imaml", "not run"],
        ["maml", "not run"],
    ]


def test_what_papers_report_stands_below(tables):
    told = [make_row("maml", {"shot": k}, "mse", {0: 0.5}, peer=peer) for k, peer in ((5, "paper 0.4"), (10, "loop"))]
    assert "Published: maml, shot 5: 0.4." in tables.section(results(*told))
    assert "Published" not in tables.section(results(told[1]))


def test_what_papers_report_of_rivals_is_of_the_settings_shown(tables, monkeypatch):
    monkeypatch.setattr(tables, "PEERS", {"sine": ["reptile"]})
    told = [make_row("reptile", {"shot": k}, "mse", {0: 0.5}, peer=f"paper 0.{k}") for k in (5, 7)]
    text = tables.section(results(make_row("maml", {"shot": 5}, "mse", {0: 0.25}), *told), ["maml"])
    assert "Published: reptile, shot 5: 0.5." in text


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


def test_a_page_takes_only_the_studies_it_belongs_to(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "PAGES", {"maml": ["maml"], "namesake": ["maml"]})
    monkeypatch.setattr(tables, "STUDIES_OF", {"namesake": ["theory"]})
    for name, value in (("sine", 0.5), ("theory", 0.25)):
        study = make_results(name, "full", "a CPU", f"warmstart study {name}", [mse("maml", 1, value)])
        save(study, tmp_path / f"{name}.full.json")
    tables.write(tmp_path, tmp_path / "pages")
    shown = {path.stem: cells(path.read_text(encoding="utf-8"))[1::2] for path in (tmp_path / "pages").glob("*.md")}
    both = [["maml", "0.500"], ["maml", "0.250"]]
    assert shown == {"namesake": both[1:], "maml": both, "all": both}


def test_pages_name_studies_that_exist(tables):
    runs = {*runnable(warmstart.studies), *runnable(warmstart.benches)}
    assert set(tables.STUDIES_OF) <= set(tables.PAGES)
    assert {name for names in tables.STUDIES_OF.values() for name in names} <= runs


def test_every_learner_has_a_page(tables):
    learners = {path.stem for path in (ROOT / "src/warmstart/learners").glob("*.py")} - {"__init__"}
    assert {*learners, "nearest_centroid", "linear_head", "protonet"} <= set(tables.PAGES)


def test_committed_results_can_be_rendered(tables):
    for path in (ROOT / "results").glob("*.json"):
        found = load(path)
        assert path.name == f"{found.study}.{found.preset}.json"
        assert cells(tables.section(found))
