"""The share of the gap closed follows from rows alone, whichever runs they came from."""

from __future__ import annotations

import pytest

from warmstart.estimators.rivals import BASELINES
from warmstart.report import Row, load, make_row
from warmstart.studies.population import GAP, METRIC, OPTIMUM, gap_rows

SETTING = {"samples": 5, "group": "all"}


def error_row(method: str, values: dict[int, float]) -> Row:
    return make_row(method, SETTING, METRIC, values)


def rows(seeds: list[int]) -> list[Row]:
    baselines = [error_row(name, {seed: 0.9 + i + seed for seed in seeds}) for i, name in enumerate(BASELINES)]
    return [*baselines, error_row(OPTIMUM, dict.fromkeys(seeds, 0.1))]


def test_the_share_is_that_of_the_best_baseline_by_seed() -> None:
    found = gap_rows([*rows([0, 1]), error_row("maml", {0: 0.3, 1: 0.1})])
    assert [row.method for row in found] == ["maml"] and found[0].setting == SETTING and found[0].metric == GAP
    assert found[0].values == pytest.approx((0.75, 1.0))


def test_seeds_without_a_baseline_do_not_count() -> None:
    found = gap_rows([*rows([1]), error_row("maml", {0: 0.3, 1: 0.1}), error_row("reptile", {2: 0.2})])
    assert [(row.method, row.seeds) for row in found] == [("maml", (1,))]


def test_a_missing_baseline_leaves_no_share() -> None:
    assert gap_rows([*rows([0])[1:], error_row("maml", {0: 0.3})]) == []


def test_committed_shares_follow_from_the_committed_errors(pytestconfig: pytest.Config) -> None:
    results = load(pytestconfig.rootpath / "results" / "population.full.json")
    stored = {(row.method, str(row.setting)): row.values for row in results.rows if row.metric == GAP}
    again = {(row.method, str(row.setting)): row.values for row in gap_rows(results.rows)}
    assert stored.keys() == again.keys() and stored
    assert all(stored[key] == pytest.approx(again[key], rel=1e-5) for key in stored)
