"""The README's figures are those of the result files."""

import re
from pathlib import Path

import pytest

from warmstart.report import load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
TABLES = {
    "population.demo": (
        "relative MSE",
        [{"samples": k, "group": "all"} for k in (0, 1, 5, 10, 20)],
        {
            "`empirical_bayes`": "empirical_bayes",
            "gradient boosting with support statistics": "boosting",
            "the optimum": "exact Bayes",
        },
    ),
    "cold_ratings.full": (
        "MSE",
        [{"data": "ml-1m", "support": k} for k in (0, 1, 5, 20, "80 %")],
        {
            "`preference_bayes`": "preference_bayes",
            "AutoRec with profile": "autorec",
            "shrunk item and user effects": "bias",
        },
    ),
}


def mean(results, method, metric, setting):
    return next(r.mean for r in results.rows if (r.method, r.metric, r.setting) == (method, metric, setting))


@pytest.mark.parametrize("name", TABLES)
def test_tables(name):
    metric, settings, names = TABLES[name]
    results = load(ROOT / f"results/{name}.json")
    for label, method in names.items():
        found = [f"{mean(results, method, metric, setting):.3f}" for setting in settings]
        assert f"| {label} | {' | '.join(found)} |" in README


def test_what_an_update_costs():
    results = load(ROOT / "results/meta_step.full.json")
    words = []
    for metric, more in (("microseconds", {}), ("ratio", {"against": "loop on cuda"})):
        for steps in ("maml, 1 step", "maml, 5 steps"):
            setting = {"workload": steps, "device": "cuda", **more}
            words.append(f"{mean(results, 'fused, CUDA graph', metric, setting):,.0f}")
    one, five, less, lesser = words
    said = re.sub(r"\s+", " ", README)
    assert f"takes {one} microseconds at one inner step and {five} at five, {less} and {lesser} times less" in said
