"""The README's figures are those of the result files."""

import re
from pathlib import Path

import pytest

from warmstart.report import load
from warmstart.studies import omniglot
from warmstart.studies.few_shot_rows import plain_name

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


def test_fused_sines():
    results = load(ROOT / "results/fusion_sine.full.json")
    names = {
        "five domains": "five domains",
        "hard family": "hard, 200 networks",
        "hard family, from 40 networks": "hard, 40 networks",
    }
    for label, family in names.items():
        asked = [("auto", shots) for shots in (0, 10, 20, 40)] + [("nearest", 0)]
        found = [mean(results, name, "nRMSE", {"family": family, "shots": shots}) for name, shots in asked]
        assert f"| {label} | {' | '.join(f'{value:.4f}' for value in found)} |" in README
    worse = [row.mean for row in results.rows if (row.method, row.metric) == ("auto", "share worse by 5 %")]
    assert max(worse) <= 0.04 and "Rows make at most 4 % of the tasks worse" in README


def test_what_fusing_costs():
    results, said = load(ROOT / "results/fusion_cost.full.json"), re.sub(r"\s+", " ", README)
    few, many = ({"models": count} for count in (200, 5000))
    fuse = [mean(results, "auto", "time to fuse", at) for at in (few, many)]
    made = [mean(results, "function_gp", "time to generate one", at) for at in (few, many)]
    assert f"take {fuse[0]:.0f} s of one thread for 200 networks and {fuse[1]:.0f} s for 5,000" in said
    assert f"generated in {made[0]:.1f} ms from 200, in {made[1]:.1f} ms from 5,000" in said


def test_fused_ratings():
    results, said = load(ROOT / "results/fusion_ratings.full.json"), re.sub(r"\s+", " ", README)
    settings = [{"new": "users", "split": "by number", "dims": dims} for dims in (20, 30, 40)]
    auto = [f"{mean(results, 'auto', 'RMSE', at):.3f}" for at in settings]
    assert f"RMSE {auto[0]}, {auto[1]} and {auto[2]} at 20, 30 and 40 dimensions" in said
    bias, near, deep = (mean(results, n, "RMSE", settings[0]) for n in ("item + context bias", "nearest", "DeepFM"))
    assert f"items and users {bias:.3f}, the nearest user {near:.3f}," in said and f"of the others {deep:.3f}." in said


def test_clicks():
    results, said = load(ROOT / "results/cold_clicks.full.json"), re.sub(r"\s+", " ", README)

    def scores(method):
        at = {"data": "kuairand", "support": "80 %"}
        return [f"{mean(results, method, metric, at):.3f}" for metric in ("AUC", "AUC per user", "log loss, pooled")]

    ours, trees, effects = map(scores, ("click_bayes", "boosted trees", "bias"))
    assert f"a pooled AUC of {ours[0]}, {ours[1]} within a user and a log loss of {ours[2]};" in said
    assert f"context and support {trees[0]}, {trees[1]} and {trees[2]}," in said
    assert f"effects of users and items {effects[0]}, {effects[1]} and {effects[2]}." in said
    names = ("melu", "paml", "at_paml", "reg_paml", "meta_sgd", "transfer")
    known, bare = ([scores(name + more)[0] for name in names] for more in ("", ", content only"))
    assert f"effects' level, {min(known)} to {max(known)} in pooled AUC;" in said
    assert (
        f"by content alone and with weighted clicks, as in their paper, they have {min(bare)} to {max(bare)}." in said
    )


def test_pictures():
    results = load(ROOT / "results/omniglot.full.json")
    settings = [{"way": way, "shot": shot} for way in (5, 20) for shot in (1, 5)]
    ours = ("meta_sgd", "maml", "fomaml", "reptile", "imaml_head", "anil", "gem_bml_plus", "gem_head")
    names = {f"`{name}`": name for name in ours} | {
        "`maml`, blank head": "maml, blank head",
        **{f"`{name}`, warped": f"{name}, warped" for name in ("maml", "imaml_head")},
        **{f"`{name}`, mirrored": f"{name}, mirrored" for name in ("maml", "fomaml", "imaml", "imaml_head")},
        "`imaml`, plain gradient, mirrored": "imaml, plain gradient, mirrored",
        "prototypical network": "protonet",
        "prototypical network, warped": "protonet, warped",
        "prototypical network, mirrored": "protonet, mirrored",
        "pre-trained network, new linear head": "linear_head",
        "nearest centroid of pixels": "nearest_centroid",
        "from scratch": "scratch",
    }
    # of one cell each, in the docs
    left_out = {"fomaml, blank head", "imaml, plain gradient, fresh", "imaml, first order"}
    assert {row.method for row in results.rows} == set(names.values()) | left_out
    for label, method in names.items():
        ran = [row.setting for row in results.rows if row.method == method]
        scores = [f"{mean(results, method, 'accuracy', at):.1f}" if at in ran else "not run" for at in settings]
        told = [omniglot.PUBLISHED.get((plain_name(method), *setting.values())) for setting in settings]
        published = "" if None in told else ", ".join(map(str, told))
        assert f"| {label} | {' | '.join(scores)} | {published} |" in README
    apart = [mean(results, "maml", metric, settings[0]) for metric in ("accuracy", "accuracy, alone")]
    assert f"MAML has {apart[0] - apart[1]:.1f} points less" in README
    whole = {row.metric: row.mean for row in load(ROOT / "results/picture_training.full.json").rows}
    said = re.sub(r"\s+", " ", README)
    assert f"60,000 updates takes {whole['minutes in all']:.1f} minutes" in said
    assert f"and holds {whole['memory held']:.1f} GiB" in said


def test_updates_of_users():
    rows = load(ROOT / "results/cold_step.full.json").rows
    found = [
        row.mean
        for row in rows
        if row.metric == "ratio" and row.method == "traced, CUDA graph" and row.setting["against"] == "loop on cuda"
    ]
    assert len(found) == 4
    assert f"is {min(found):.0f} to {max(found):.0f} times as fast on an H200" in re.sub(r"\s+", " ", README)


def test_colour_pictures():
    results, said = load(ROOT / "results/tiny_imagenet.full.json"), re.sub(r"\s+", " ", README)
    at = {
        name: f"{mean(results, name, 'accuracy', {'way': 5, 'shot': 1}):.1f} %"
        for name in ("gem_head, warped", "maml, warped", "maml", "gem_head", "protonet", "abml")
    }
    assert f"pictures `gem_head` has {at['gem_head, warped']} and MAML {at['maml, warped']};" in said
    plain = f"MAML has {at['maml']}, `gem_head` {at['gem_head']}, prototypical networks {at['protonet']}"
    assert f"{plain} and ABML {at['abml']}." in said


def test_own_pictures():
    results, said = load(ROOT / "results/own_pictures.full.json"), re.sub(r"\s+", " ", README)

    def at(name, metric, warped):
        return mean(results, name, metric, {"classes": 100, "warped": warped})

    bent, plain = (
        {name: at(name, "accuracy", warped) for name in ("imaml_head", "gem_head", "protonet", "linear_head")}
        for warped in (True, False)
    )
    words = f"on {bent['imaml_head']:.1f} % by `imaml_head`, {bent['gem_head']:.1f} % by `gem_head` and"
    assert f"{words} {bent['protonet']:.1f} % by prototypical networks" in said
    losses = at("linear_head", "NLL", True), at("imaml_head", "NLL", True)
    head = (
        f"a new linear head has {bent['linear_head']:.1f} % but a log loss of {losses[0]:.2f} against {losses[1]:.2f}"
    )
    assert f"{head}, nearest centroids of pixels {at('nearest_centroid', 'accuracy', True):.1f} %" in said
    *first, last = (f"{value:.1f}" for value in plain.values())
    assert f"leaves out: {', '.join(first)} and {last} % then" in said


def test_what_an_update_costs():
    results = load(ROOT / "results/meta_step.full.json")

    def found(method, metric, device, workloads, **more):
        settings = [{"workload": workload, "device": device, **more} for workload in workloads]
        return [f"{mean(results, method, metric, setting):,.0f}" for setting in settings]

    maml, reptile, graph = ("maml, 1 step", "maml, 5 steps"), ("reptile, 5 Adam steps",), "fused, CUDA graph"
    took = found(graph, "microseconds", "cuda", maml)
    less = found(graph, "ratio", "cuda", maml, against="loop on cuda")
    first = found(graph, "first call", "cuda", maml)
    steps, whole = (found(way, "ratio", "cpu", maml, against="loop on cpu") for way in ("compiled", "compiled whole"))
    other = [*found("compiled", "ratio", "cpu", reptile, against="loop on cpu")]
    other += found("compiled whole", "ratio", "cpu", reptile, against="loop on cpu")
    said = re.sub(r"\s+", " ", README)
    assert (
        f"takes {took[0]} microseconds at one inner step and {took[1]} at five, {' and '.join(less)} times less" in said
    )
    assert f"after {' and '.join(first)} s of compiling" in said
    assert f"it is {' and '.join(steps)} times less compiled step by step, {' and '.join(whole)} compiled" in said
    assert f"Reptile's {' and '.join(other)} (" in said


def test_what_the_learners_of_users_reach():
    results = load(ROOT / "results/cold_ratings.full.json")
    setting, said = {"data": "ml-1m", "support": "80 %"}, re.sub(r"\s+", " ", README)
    names = ("reg_paml", "at_paml", "paml", "melu")
    plain, bare = (
        [f"{mean(results, f'{name}{kind}', 'MSE', setting):.3f}" for name in names] for kind in ("", ", content only")
    )
    told = [f"{error} (`{name}`)" for error, name in zip(plain, names, strict=True)]
    assert f"{', '.join(told[:3])} and {told[3]} at 80 %" in said
    assert f"by content alone {', '.join(bare[:3])} and {bare[3]}, where" in said
