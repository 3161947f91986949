"""The page of a model says what was shown, to which tasks, and what that changed."""

import math
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.estimators.evaluation import evaluate
from warmstart.estimators.judging import held_out
from warmstart.estimators.meta_learner import MetaLearner, split_pools
from warmstart.estimators.rivals import fit_baselines
from warmstart.tasks.pool import limit_support
from warmstart.tasks.roles import Roles
from warmstart.training.train import Plan

PLAN = Plan(steps=6, every=3, tasks=8, query=4)  # 20 rows to show, as by default


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Without the baselines that take long."""
    few = partial(fit_baselines, names=("global_mean", "task_mean"))
    monkeypatch.setattr("warmstart.estimators.evaluation.fit_baselines", few)


def table(lengths, seed=0):
    draw = np.random.default_rng(seed)
    user = np.repeat([f"u{i:03d}" for i in range(len(lengths))], lengths)
    x, own = draw.normal(size=len(user)), np.repeat(draw.normal(size=len(lengths)), lengths)
    town = np.repeat(draw.choice(["oslo", "rome"], len(lengths)), lengths)
    return pd.DataFrame({"user": user, "x": x, "y": own + x, "town": town})


def report(rows, **roles):
    model = MetaLearner("pretrain", plan=PLAN, trials=1, device="cpu").fit(rows, Roles("user", "y", **roles))
    outcome = evaluate(model, rows, trials=1)
    return model, outcome, {section.heading: section for section in outcome.sections}


def test_no_column_for_samples_that_nobody_showed():
    model, outcome, sections = report(table([10] * 24))  # 7 rows can be shown
    assert sections["Unseen tasks, learned from a few samples"].table.head == ("method", "0", "1", "2", "5")
    assert sections["How sure it is"].table.head == ("method", "0", "1", "2", "5")
    assert {row.setting["samples"] for row in outcome.results.rows} == {0, 1, 2, 5}
    assert model.fitted.calibration.sizes.tolist() == [0, 1, 2, 5]
    assert outcome.verdict.startswith("After 5 samples")
    assert {row.setting["group"] for row in outcome.results.rows} == {"all"}, "all tasks have the same number of rows"
    assert "By number of rows" not in sections and "By group" not in sections


@pytest.mark.parametrize(("tasks", "endless"), [(24, True), (120, False)])
def test_intervals_without_end_are_told_from_good_ones(tasks, endless):
    _, outcome, sections = report(table([10] * tasks))
    held = {row.mean for row in outcome.results.rows if row.metric == "coverage"}
    assert (held == {1.0}) == endless == ("without end" in sections["How sure it is"].table.caption)


def test_tasks_of_two_rows_are_judged_after_one():
    _, outcome, sections = report(table([2] * 24))
    assert sections["Unseen tasks, learned from a few samples"].table.head == ("method", "0", "1")
    assert outcome.verdict.startswith("After 1 samples")


def test_columns_are_of_the_tasks_that_showed_as_many_and_groups_of_like_ones():
    rows = table(np.resize([4, 12, 40], 60))  # 3, 8 and 20 rows to show
    model, outcome, sections = report(rows)
    lengths = rows["user"].value_counts()
    held = lengths[list(model.fitted.schema.split.test)]
    told = {(row.setting["samples"], row.setting["group"]): row.n for row in outcome.results.rows}
    counts = {size: sum(held * 2 // 3 + (held == 4) >= size) for size in (0, 1, 2, 5, 10, 20)}
    assert {size: n for (size, group), n in told.items() if group == "all"} == counts
    assert counts[10] < counts[5] < counts[0]
    assert f"{counts[10]} with 10" in sections["Unseen tasks, learned from a few samples"].prose
    groups = {group: n for (size, group), n in told.items() if size == 5 and group != "all"}
    assert groups == {f"{size} rows (n={sum(held == size)})": sum(held == size) for size in (12, 40)}
    drawn = sections["By number of rows"].svg
    assert [drawn.index(name) for name in groups] == sorted(drawn.index(name) for name in groups)


def test_a_group_column_comes_first():
    _, outcome, sections = report(table(np.resize([9, 12, 40], 60)), group="town")
    assert {row.setting["group"].split()[0] for row in outcome.results.rows} == {"all", "oslo", "rome"}
    assert "By group" in sections and "By number of rows" not in sections


@pytest.mark.parametrize("classes", [("no", "yes"), ("bad", "fair", "good")], ids=len)
def test_adaptations_of_classes_are_drawn(classes):
    rows = table(np.resize([2, 12, 12], 36))
    rows["y"] = pd.qcut(rows["y"], len(classes), labels=classes).astype(str)
    model, _, sections = report(rows)
    drawn = sections["A few adaptations"].svg
    names = model.fitted.schema.split.test
    long = [i for i, name in enumerate(names) if (rows["user"] == name).sum() == 12]
    assert [int(i) for i in re.findall(r">task (\d+)<", drawn)] == [i + 1 for i in long[:4]], "tasks that can show 5"
    means = re.findall(r"mean ([\d.]+) → ([\d.]+)", drawn)
    assert len(means) == len(long[:4]) and any(before != after for before, after in means)
    assert all(f">{name}<" in drawn for name in classes) and "probability of the true class" in drawn


@pytest.mark.parametrize("classes", [("no", "yes"), ("bad", "fair", "good")], ids=len)
def test_probabilities_of_classes_are_held_against_how_often_they_come_true(classes):
    """By hand, row by row, of the tasks that can show as many."""
    rows = table(np.resize([2, 12, 12], 60))
    rows["y"] = pd.qcut(rows["y"], len(classes), labels=classes).astype(str)
    model, outcome, sections = report(rows)
    assert "<svg" in sections["How sure it is"].svg
    fitted = model.fitted
    named = fitted.schema.transform(rows)
    task = held_out(split_pools(fitted.schema, named)[2], PLAN.support, PLAN.query, model.seed)
    for size in (0, 5):
        bins = {}
        said = fitted.predict(limit_support(task, size)).mean
        for t, n in (task.query.mask * (task.support.mask.sum(-1) >= size)[:, None]).nonzero().tolist():
            chances = said[t, n] if said.dim() > 2 else torch.stack([1 - said[t, n], said[t, n]])
            sure, guess = chances.max(0)
            bins.setdefault(math.ceil(10 * float(sure)), []).append(
                (float(sure), int(guess) == int(task.query.y[t, n]))
            )
        gaps = [(len(one), abs(np.mean([sure - came for sure, came in one]))) for one in bins.values()]
        at = {
            row.metric: row.mean
            for row in outcome.results.rows
            if (row.method, row.setting["samples"]) == ("pretrain", size)
        }
        assert at["ECE"] == pytest.approx(sum(n * gap for n, gap in gaps) / sum(n for n, _ in gaps), abs=1e-5)
        assert at["MCE"] == pytest.approx(max(gap for n, gap in gaps if n >= 10), abs=1e-5)
