import csv
import errno
import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest

from warmstart.core import InputError
from warmstart.report import (
    Results,
    differences,
    load,
    make_results,
    make_row,
    mean_interval,
    merge,
    save,
    save_csv,
)

T2 = 4.302652729696142  # Student's t with two degrees of freedom, 97.5 %


def results(*rows, **changes):
    head = {"study": "sine", "preset": "quick", "device": "cpu", "command": "warmstart study sine"}
    return make_results(**{**head, **changes}, rows=rows)


def test_one_seed_gives_the_interval_over_tasks():
    mean, low, high = make_row("m", {}, "mse", {0: [1.0, 2.0, 6.0]}).interval
    half = T2 * math.sqrt(7 / 3)  # variance (4 + 1 + 9) / 2 = 7
    assert (mean, low, high) == pytest.approx((3.0, 3.0 - half, 3.0 + half))
    assert mean_interval([1.0, 2.0, 6.0]) == pytest.approx((mean, low, high))


def test_values_without_tasks_give_the_interval_over_seeds():
    row = make_row("m", {}, "ratio", {5: 1.0, 7: 2.0, 9: 6.0})
    half = T2 * math.sqrt(7 / 3)
    assert (row.mean, row.low, row.high, row.n) == pytest.approx((3.0, 3.0 - half, 3.0 + half, 3))


def test_a_single_number_has_no_interval():
    row = make_row("m", {}, "ratio", {0: 2.0})
    assert row.mean == 2.0 and math.isnan(row.low) and math.isnan(row.high)


def covers(generator, fresh, task_spread, seed_spread, tasks=40, seeds=4):
    """Whether an interval holds the truth, 0, when tasks and seeds add their own luck."""
    shared = generator.normal(size=tasks) * task_spread
    per_seed = {}
    for seed in range(seeds):
        luck = generator.normal(size=tasks) * task_spread if fresh else shared
        noise = 0.3 * generator.normal(size=tasks)
        per_seed[seed] = luck + noise + seed_spread * generator.normal()
    row = make_row("m", {}, "mse", per_seed, fresh_tasks=fresh)
    return row.low <= 0 <= row.high


@pytest.mark.parametrize("seed_spread", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("fresh", [False, True])
def test_intervals_hold_the_truth_as_often_as_they_promise(fresh, seed_spread):
    generator = np.random.default_rng(3)
    share = np.mean([covers(generator, fresh, 1.0, seed_spread) for _ in range(600)])
    assert 0.92 <= share <= 0.99


def test_paired_differences_take_the_seeds_both_have():
    found = differences({0: [1.0, 5.0], 1: [2.0, 2.0]}, {0: [3.0, 4.0], 2: [0.0, 0.0]})
    assert list(found) == [0] and found[0].tolist() == [-2.0, 1.0]
    with pytest.raises(InputError, match="same tasks on seed 0, got 2 and 1"):
        differences({0: [1.0, 5.0]}, {0: [3.0]})


def test_no_tasks_is_an_error():
    with pytest.raises(InputError, match="at least one value of mse"):
        make_row("m", {}, "mse", {0: []})


def test_a_setting_holds_plain_values():
    assert make_row("m", {"shot": np.int64(5)}, "mse", {0: 1.0}).setting == {"shot": 5}
    with pytest.raises(InputError, match="plain values"):
        make_row("m", {"hidden": [40, 40]}, "mse", {0: 1.0})


def test_merge_replaces_a_seed_and_adds_a_new_one():
    old = results(
        make_row("maml", {"shot": 1}, "mse", {0: 10.0, 1: 2.0}, peer="paper 0.6"),
        make_row("maml", {"shot": 5}, "mse", {0: 9.0}),
    )
    new = results(
        make_row("maml", {"shot": 1}, "mse", {2: 6.0, 0: 1.0}), make_row("anil", {"shot": 1}, "mse", {0: 4.0})
    )
    both = merge(old, new)
    assert [(row.method, row.setting["shot"]) for row in both.rows] == [("maml", 1), ("maml", 5), ("anil", 1)]
    first = both.rows[0]
    assert first.seeds == (0, 1, 2) and first.values == (1.0, 2.0, 6.0) and first.peer == "paper 0.6"
    assert (first.mean, first.high) == pytest.approx((3.0, 3.0 + T2 * math.sqrt(7 / 3)))


def test_merge_is_the_same_as_running_all_seeds_at_once():
    generator = np.random.default_rng(0)
    tasks = {seed: generator.gamma(2.0, size=7 + seed) for seed in range(4)}
    parts = [results(make_row("m", {"k": 1}, "mse", {s: tasks[s] for s in pair})) for pair in ((3, 1), (0, 2))]
    assert merge(*parts).rows == (make_row("m", {"k": 1}, "mse", tasks),)


def test_merge_keeps_every_command_and_device_once():
    old = results(command="a\nb", device="cpu")
    both = merge(old, results(command="b", device="cuda"))
    assert (both.command, both.device) == ("a\nb", "cpu\ncuda")


def test_merge_refuses_what_does_not_belong_together():
    with pytest.raises(InputError, match=r"results of sine \(full\), got sine \(quick\)"):
        merge(results(), results(preset="full"))
    with pytest.raises(InputError, match="mse in '%'"):
        merge(results(make_row("m", {}, "mse", {0: 1.0})), results(make_row("m", {}, "mse", {1: 1.0}, unit="%")))


def test_saved_results_come_back(tmp_path):
    content = results(
        make_row("gem-bml+", {"way": 5, "shot": 1, "noise": 0.5, "data": "Ω | x", "bn": True}, "mse", {3: [0.1, 0.4]}),
        make_row("maml", {}, "seconds", {0: 1.5, 1: 2.5}, unit="s", peer="higher 0.2.1", fresh_tasks=True),
    )
    save(content, tmp_path / "new" / "results.json")
    assert load(tmp_path / "new" / "results.json") == content


def test_values_are_written_to_nine_digits_and_their_summary_follows(tmp_path):
    row = make_row("m", {}, "mse", {0: 1 / 3, 1: 2e-15 / 3, 2: -1 / 3 + 1e-12})  # a mean that nearly cancels
    save(results(row), tmp_path / "r.json")
    (found,) = load(tmp_path / "r.json").rows
    assert found.values == (0.333333333, 6.66666667e-16, -0.333333333)
    assert found.low == pytest.approx(row.low, rel=1e-8) and found.mean == pytest.approx(2e-16 / 0.9, rel=1e-8)


def test_the_file_has_the_promised_keys_and_a_row_a_line(tmp_path):
    save(results(make_row("m", {"shot": 1}, "mse", {0: [1.0, 3.0]})), tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    content = json.loads(text)
    assert set(content) == {"study", "preset", "device", "versions", "command", "date", "rows"}
    assert {"method", "setting", "metric", "unit", "values", "mean", "low", "high", "n", "peer"} <= set(
        content["rows"][0]
    )
    assert {"python", "torch", "numpy", "warmstart", "platform"} == set(content["versions"])
    assert sum(line.startswith('  {"method"') for line in text.splitlines()) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_run_is_a_null_on_disk(tmp_path, bad):
    save(results(make_row("m", {}, "mse", {0: [1.0, bad], 1: [1.0, 2.0]})), tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    assert "NaN" not in text and "Infinity" not in text
    row = load(tmp_path / "r.json").rows[0]
    assert math.isnan(row.values[0]) and row.values[1] == 1.5 and math.isnan(row.mean) and math.isnan(row.low)


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "results.json"
    save(results(command="old"), path)
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(InputError, match=r"expected to write .*results.json, got No space left on device; free"):
        save(results(command="new"), path)
    assert load(path).command == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another folder"):
        save(results(), tmp_path / "file" / "results.json")
    with pytest.raises(InputError, match="choose another folder"):
        save(results(), tmp_path)  # a folder is no file
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def damage(change):
    def apply(content):
        change(content)
        return json.dumps(content)

    return apply


DAMAGE = {
    "cut short": lambda content: json.dumps(content)[:-40],
    "not an object": lambda content: "[1, 2]",
    "too deep": lambda content: "[" * 100_000,
    "no rows": damage(lambda content: content.pop("rows")),
    "rows are text": damage(lambda content: content.update(rows="abc")),
    "no study": damage(lambda content: content.pop("study")),
    "study is a number": damage(lambda content: content.update(study=3)),
    "value is text": damage(lambda content: content["rows"][0].update(values=["1.0", "2.0"])),
    "a seed twice": damage(lambda content: content["rows"][0].update(seeds=[1, 1])),
    "a value too many": damage(lambda content: content["rows"][0]["values"].append(2.0)),
    "edited mean": damage(lambda content: content["rows"][0].update(mean=0.9)),
    "edited value": damage(lambda content: content["rows"][0].update(values=[0.9, 2.0])),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_named(tmp_path, kind):
    path = tmp_path / "results.json"
    save(results(make_row("m", {"k": 1}, "mse", {0: [1.0, 3.0], 1: [2.0, 2.5]})), path)
    path.write_text(DAMAGE[kind](json.loads(path.read_text())))
    with pytest.raises(InputError, match=r"results\.json, got one that is damaged .*; restore it"):
        load(path)


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path):
    (tmp_path / "r.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="damaged"):
        load(tmp_path / "r.json")
    with pytest.raises(InputError, match=r"expected a results file at .*none.json, got no such file"):
        load(tmp_path / "none.json")


def test_csv_has_a_line_for_each_row_and_a_column_for_each_setting(tmp_path):
    content = results(
        make_row('a "b", c', {"shot": 1, "n": 3}, "mse", {0: 1.0, 1: 2.0}),
        make_row("d", {"way": 5}, "accuracy", {0: [90.0, 92.0]}, unit="%"),
    )
    save_csv(content, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as handle:
        first, second = csv.DictReader(handle)
    assert first["method"] == 'a "b", c' and first["setting.n"] == "3" and first["n"] == "2"
    assert first["setting.way"] == "" and second["setting.way"] == "5" and second["unit"] == "%"
    assert float(first["high"]) == content.rows[0].high and first["values"] == "1.0 2.0"


def test_results_are_immutable():
    content = results()
    assert isinstance(content, Results)
    with pytest.raises(AttributeError):
        content.study = "other"


def test_merged_results_name_the_versions_of_both_runs():
    row = make_row("ours", {}, "mse", {0: 1.0})
    first, second = (make_results("sine", "full", "cpu", "", [row]) for _ in range(2))
    other = replace(second, versions={**second.versions, "torch": "9.9"})
    merged = merge(first, other).versions
    assert merged["torch"].splitlines() == [first.versions["torch"], "9.9"]
    assert merged["python"] == first.versions["python"]
