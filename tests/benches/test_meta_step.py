"""The rows of the speed bench follow from its times, and ours is the faster one."""

import math
from dataclasses import replace

import pytest
import torch

from warmstart.benches import meta_step, peers
from warmstart.benches.meta_step import WORKLOADS, batches, network, run, sections, ways
from warmstart.benches.timing import Plan
from warmstart.benches.updates import FIRST, RATIO, TIME, first_call, stepwise, whole
from warmstart.core import functional
from warmstart.engine.stage import PLAIN, TRACED
from warmstart.report import load, save

PLAN = Plan(rounds=2, repeats=3, seconds=0.0)


@pytest.fixture(scope="module")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_step, "ways", lambda device: {"plain": stepwise(PLAIN), "traced": stepwise(TRACED)})
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
    kept, first = load(tmp_path / "results.json").rows[0], results.rows[0]
    assert kept == replace(first, values=kept.values) and kept.values == pytest.approx(first.values, rel=1e-8)
    (section,) = sections(results)
    lines = {line.label: line.cells for line in section.table.lines}
    assert section.table.head == ("method", "x loop on cpu", "us on cpu", "first call (s)")
    assert lines["traced"][0].text == f"{chosen(results, RATIO)['traced'].mean:.1f}"
    assert [line.kind for line in section.table.lines] == ["baseline", "method", "method", "baseline", "baseline"]


CPU = torch.device("cpu")


@pytest.mark.parametrize("way", [stepwise(TRACED), whole(TRACED)], ids=["stepwise", "whole"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=[workload.name for workload in WORKLOADS])
def test_every_way_takes_the_same_steps(workload, way):
    place = CPU, torch.float64
    (expected, plain), (found, update) = (
        one.make(workload, functional(network(*place))) for one in (stepwise(PLAIN), way)
    )
    for feed in batches(*place):
        expected, left = plain(expected, feed)
        found, right = update(found, feed)
        torch.testing.assert_close(right.loss, left.loss, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.theta, expected.theta, rtol=0, atol=1e-10)


def test_batches_differ_so_that_nothing_can_be_kept_from_the_last():
    first, *others = [feed.tasks.support.y for feed in batches(CPU)]
    assert len(others) > 0 and not any(first.equal(other) for other in others)


def test_a_first_call_is_timed_by_the_names_of_a_workload_and_a_way():
    assert set(ways(CPU)) == {"plain", "traced", "compiled", "traced whole", "compiled whole"}
    assert first_call("meta_step", "maml, 1 step", "traced", "cpu") > 5 * first_call(
        "meta_step", "maml, 1 step", "plain", "cpu"
    )
