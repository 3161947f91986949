"""The rows of the speed bench follow from its times, and ours is the faster one."""

import math

import pytest

from warmstart.benches import meta_step, peers
from warmstart.benches.meta_step import FIRST, RATIO, TIME, WORKLOADS, run, sections
from warmstart.benches.timing import Plan
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.report import load, save

PLAN = Plan(rounds=2, repeats=3, seconds=0.0)


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_step, "stages", lambda device: {"plain": PLAIN, "traced": TRACED})
        patch.setattr(peers, "installed", lambda name: "")
        return run("cpu", plan=PLAN, workloads=WORKLOADS[:1])


def chosen(results, metric, **setting):
    return {row.method: row for row in results.rows if row.metric == metric and setting.items() <= row.setting.items()}


def test_a_ratio_is_the_peers_time_over_ours_in_the_same_round(results):
    times = chosen(results, TIME)
    for name, row in chosen(results, RATIO, against="loop on cpu").items():
        expected = [a / b for a, b in zip(times["loop"].values, times[name].values, strict=True)]
        assert row.values == pytest.approx(expected)
        assert (row.unit, row.peer, row.seeds) == ("x", "loop", (0, 1))


def test_a_stack_of_tasks_beats_a_loop_over_them(results):
    ratios = chosen(results, RATIO)
    assert ratios["traced"].mean > ratios["plain"].mean > 1.5
    assert ratios["traced"].mean > 4


def test_the_first_call_records_and_so_takes_longer(results):
    assert chosen(results, FIRST)["traced"].mean * 1e6 > 5 * chosen(results, TIME)["traced"].mean


def test_a_package_that_is_not_installed_is_said_to_be_missing(results):
    row = chosen(results, TIME)["higher"]
    assert math.isnan(row.mean) and row.peer == "not installed"
    assert not any("higher" in str(row.setting.get("against")) for row in results.rows)


def test_results_survive_the_disk_and_fill_one_table_for_each_workload(results, tmp_path):
    save(results, tmp_path / "results.json")
    assert load(tmp_path / "results.json").rows[0] == results.rows[0]
    (section,) = sections(results)
    lines = {line.label: line.cells for line in section.table.lines}
    assert section.table.head == ("method", "x loop on cpu", "us on cpu", "first call (s)")
    assert lines["traced"][0].text == f"{chosen(results, RATIO)['traced'].mean:.1f}"
    assert [line.kind for line in section.table.lines] == ["baseline", "method", "method", "baseline", "baseline"]
