"""Fit, adapt, predict, save: what comes back is what went in, whatever the method."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.baselines import pooled
from warmstart.core import Batch, InputError
from warmstart.core.trees import leaves, take, tree_map
from warmstart.estimators import judging
from warmstart.estimators.adapted import AdaptedModel
from warmstart.estimators.evaluation import evaluate
from warmstart.estimators.fitting import Problem, fingerprint
from warmstart.estimators.judging import mean_error
from warmstart.estimators.meta_learner import MetaLearner, extend_split
from warmstart.estimators.methods import Network
from warmstart.models.likelihoods import squared
from warmstart.tasks.roles import Roles
from warmstart.tasks.schema import Schema
from warmstart.tasks.split import split_tasks
from warmstart.training import sources


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def test_save_load_adapt_is_exact(fitted, new_task, tmp_path, method):
    support, query, known = new_task
    model = fitted(method)
    ours = model.adapt(support, known)
    model.save(tmp_path / "model")
    loaded = MetaLearner.load(tmp_path / "model")
    theirs = loaded.adapt(support, known)
    assert same(ours.adapted, theirs.adapted) and (loaded.method, loaded.plan) == (method, model.plan)
    pd.testing.assert_frame_equal(ours.frame(query, 0.6), theirs.frame(query, 0.6), check_exact=True)
    ours.save(tmp_path / "adapted")
    alone = AdaptedModel.load(tmp_path / "adapted")
    assert alone.shown == 5
    pd.testing.assert_frame_equal(ours.frame(query, 0.6), alone.frame(query, 0.6), check_exact=True)
    assert np.isfinite(ours.frame(query, 0.6)).all(axis=None)


def test_the_card_of_a_model_loads_it(fitted, tmp_path):
    fitted("pretrain").save(tmp_path / "model")
    text = (tmp_path / "model" / "card.md").read_text()
    assert "inner_lr" in text and "14 to train, 2 to validate, 4 held out" in text
    names = {}
    exec(text.split("```python\n")[1].split("```")[0].replace("this folder", str(tmp_path / "model")), names)
    assert same(names["model"].fitted.state.theta, fitted("pretrain").fitted.state.theta)


def test_predicting_changes_nothing(fitted, new_task, method):
    support, query, known = new_task
    model = fitted(method)
    adapted = model.adapt(support, known)
    theta, phi = (tree_map(torch.clone, tree) for tree in (model.fitted.state.theta, adapted.adapted))
    first = adapted.frame(query, 0.6)
    adapted.predict_interval(query, 0.5)
    model.adapt(support.tail(2), known).predict(query)
    model.adapt(None).predict(query)
    assert same(theta, model.fitted.state.theta) and same(phi, adapted.adapted)
    pd.testing.assert_frame_equal(first, adapted.frame(query, 0.6), check_exact=True)


def test_zero_shot_is_the_learner_before_any_step(fitted, new_task, method):
    support, query, known = new_task
    model = fitted(method)
    state, learner = model.fitted.state, model.fitted.learner
    about = model.fitted.schema.transform_descriptor(known)
    nothing = Batch((), *[torch.zeros(0)] * 3)
    start = learner.finish(state, learner.start(state, take(about, 0)), nothing)
    zero = model.adapt(None, known)
    assert zero.shown == 0 and all(map(torch.allclose, leaves(zero.adapted), leaves(start)))
    assert not np.allclose(zero.predict(query).mean, model.adapt(support, known).predict(query).mean)
    other = model.adapt(None, known | {"known": 3.0})
    assert not np.allclose(zero.predict(query).mean, other.predict(query).mean), "the descriptor says nothing"


@pytest.mark.parametrize("name", ["maml", "empirical_bayes"])
def test_rows_count_by_their_weight(tables, new_task, plan, name):
    rows, _ = tables
    model = MetaLearner(name, plan=plan, trials=1).fit(rows.assign(w=1.0), Roles("user", "y", weight="w"))
    support, query, _ = new_task
    weighted = model.adapt(support.assign(w=[2.0, 1.0, 1.0, 0.0, 0.0])).predict(query).mean
    repeated = model.adapt(support.iloc[[0, 0, 1, 2]].assign(w=1.0)).predict(query).mean
    np.testing.assert_allclose(weighted, repeated, rtol=1e-4)
    plain = model.adapt(support.head(3)).predict(query).mean  # without the column every row counts once
    assert not np.allclose(weighted, plain)
    nothing = model.adapt(support.assign(w=0.0)).predict(query).mean
    np.testing.assert_allclose(nothing, model.adapt(None).predict(query).mean, rtol=1e-4)


@pytest.mark.parametrize("named", [lambda i: float(i), lambda i: f" {i} ", lambda i: i], ids=["3.0", "' 3 '", "3"])
def test_tasks_are_split_by_the_names_the_tables_use(tables, plan, named):
    rows, about = (table.assign(user=table["user"].str[1:].astype(int).map(named)) for table in tables)
    model = MetaLearner("pretrain", plan=plan, trials=1).fit(rows, Roles("user", "y"), about)
    assert model.fitted.schema.split == split_tasks([str(i) for i in range(24)])


def test_going_on_from_a_model_keeps_its_tasks_apart(tables, plan, fitted):
    rows, about = tables
    old = fitted("reptile")
    new = MetaLearner(plan=plan, network=old.network._replace(hidden=(3,))).fit(rows, None, about, start=old)
    before, after = old.fitted.schema.split, new.fitted.schema.split
    assert all(set(a) <= set(b) for a, b in zip(before, after, strict=True))
    assert {name for part in after for name in part} == set(rows["user"])
    assert dataclasses.replace(new.fitted.schema, split=before) == old.fitted.schema
    assert new.method == "auto" and new.fitted.name == "reptile" and new.fitted.network == old.network
    still = MetaLearner(plan=plan, settings={"outer_lr": 1e-7}).fit(rows, None, about, start=old)
    for ours, theirs in zip(leaves(still.fitted.state.theta), leaves(old.fitted.state.theta), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert not same(new.fitted.state.theta, old.fitted.state.theta)


def test_split_of_new_tasks():
    old = split_tasks([f"a{i}" for i in range(10)])
    names = [f"a{i}" for i in range(5)] + [f"b{i}" for i in range(10)]
    new = extend_split(old, names, seed=0)
    fresh = split_tasks([f"b{i}" for i in range(10)])
    assert [set(part) for part in new] == [set(a) | set(b) for a, b in zip(old, fresh, strict=True)]
    assert extend_split(old, names[:5], seed=0) == old


def interrupted(monkeypatch, at):
    """Ctrl-C at the given look at the validation tasks; a list that grows with every look."""
    looks = []

    def look(*arguments):
        looks.append(None)
        if len(looks) == at:
            raise KeyboardInterrupt
        return mean_error(*arguments)

    monkeypatch.setattr("warmstart.estimators.fitting.mean_error", look)
    return looks


def test_interrupted_fit_goes_on_where_it_stopped(tables, plan, tmp_path, monkeypatch):
    rows, about = tables

    def fit(folder, told):
        model = MetaLearner("pretrain", plan=dataclasses.replace(plan, steps=24), trials=2, device="cpu")
        record = None if told is None else lambda step, figures: told.append((step, figures["loss"]))
        return model.fit(rows, Roles("user", "y"), about, folder=folder, record=record)

    whole, parts = [], []
    reference = fit(None, whole)
    looks = interrupted(monkeypatch, 6)  # two trials of four looks: in the middle of the second
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, None)
    resumed = fit(tmp_path, parts)
    assert len(looks) == 6 + 3, "three looks were left, the interrupted one among them"
    assert [step for step, _ in parts] == [step for step, _ in whole] == [6, 12, 18, 24]
    assert same(resumed.fitted.state.theta, reference.fitted.state.theta)
    assert resumed.trials_ == reference.trials_
    fit(tmp_path, None)
    assert len(looks) == 9, "a finished run is not run again"


def test_only_the_same_run_is_resumed(tables, plan):
    rows, about = tables

    def run(rows=rows, plan=plan, seed=0, hidden=(64,), warm=None):
        schema = Schema.fit(rows, Roles("user", "y"), about)
        pool = schema.transform(rows, about).pool
        problem = Problem(pool, pool, schema.columns, schema.descriptor_columns, squared)
        return fingerprint(problem, plan, seed, Network(hidden), warm)

    others = [
        run(rows=rows.assign(x=rows["x"] ** 2)),
        run(plan=dataclasses.replace(plan, steps=13)),
        run(seed=1),
        run(hidden=(65,)),
        run(warm={"w": torch.zeros(1)}),
    ]
    assert run() == run() and len({run(), *others}) == 6


@pytest.mark.parametrize("settings", [{"steps": 0}, {"tasks": -1}, {"support": 0}, {"every": 0}])
def test_a_plan_needs_positive_numbers(tables, plan, settings):
    model = MetaLearner("pretrain", plan=dataclasses.replace(plan, **settings))
    with pytest.raises(InputError, match=next(iter(settings))):
        model.fit(tables[0], Roles("user", "y"))


def test_a_folder_with_other_files_is_never_replaced(fitted, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "precious.txt").write_text("kept")
    with pytest.raises(InputError, match="precious"):
        fitted("pretrain").save(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "kept"


def test_unfitted_models_say_so(tmp_path):
    for call in (lambda m: m.adapt(), lambda m: m.save(tmp_path / "m"), lambda m: m.fit(pd.DataFrame({"a": [1]}))):
        with pytest.raises(InputError, match="expected"):
            call(MetaLearner())
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("count", [1, 2])
def test_going_on_with_one_or_two_new_tasks(tables, plan, fitted, count):
    rows, about = tables
    old = fitted("maml")
    new = MetaLearner(plan=plan).fit(rows[rows["user"] < f"u{20 + count:03d}"], None, about, start=old)
    before, after = old.fitted.schema.split, new.fitted.schema.split
    assert set(after.train) - set(before.train) == {f"u{20 + i:03d}" for i in range(count)}
    assert after[1:] == before[1:]
    with pytest.raises(InputError, match="at least 3 new ones"):
        MetaLearner(plan=plan).fit(rows[rows["user"] == "u021"], None, about, start=old)


def test_an_adapted_model_holds_nothing_of_others(fitted, new_task, tmp_path):
    """Neither the weights that its own replaced nor the names of the tasks that it was fitted on."""
    support, _, known = new_task
    for method in ("maml", "meta_sgd", "anil", "empirical_bayes"):
        model = fitted(method)
        model.save(tmp_path / method / "model")
        model.adapt(support, known).save(tmp_path / method / "adapted")
        kept = {
            part: (tmp_path / method / part / "weights.safetensors").stat().st_size for part in ("model", "adapted")
        }
        if method in ("maml", "anil"):
            assert kept["adapted"] < 1.1 * kept["model"] + 500
        schema = (tmp_path / method / "adapted" / "schema.json").read_text()
        assert not any(name in schema for part in model.fitted.schema.split for name in part)


def test_a_support_is_of_one_task(fitted, new_task):
    support = new_task[0].assign(user="somebody")
    support.loc[support.index[0], "user"] = "somebody else"
    with pytest.raises(InputError, match="one task, got several"):
        fitted("pretrain").adapt(support, new_task[2])


def test_a_model_predicts_new_tasks_at_once(fitted, new_task):
    support, rows, known = new_task
    model = fitted("maml")
    for given in ({}, {"support": support, "descriptor": known}):
        adapted = model.adapt(**given)
        assert torch.equal(model.predict(rows, **given).mean, adapted.predict(rows).mean)
        for ours, theirs in zip(
            model.predict_interval(rows, 0.5, **given), adapted.predict_interval(rows, 0.5), strict=True
        ):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("how", ["time", "first", "random"])
def test_with_time_no_row_is_judged_by_later_ones(tables, plan, monkeypatch, how):
    """Rows say when they were; in every episode of fitting, calibrating and judging all that is shown comes first."""
    day = tables[0].groupby("user").cumcount().astype(float)
    rows = tables[0][["user", "x"]].assign(day=day, y=day)  # so that targets tell the time
    seen = []
    for module in (sources, judging, pooled):

        def watch(*args, drawn=module.episodes):
            task = drawn(*args)
            last = torch.where(task.support.mask > 0, task.support.y, -torch.inf).amax(-1)
            seen.append(bool((last < torch.where(task.query.mask > 0, task.query.y, torch.inf).amin(-1)).all()))
            return task

        monkeypatch.setattr(module, "episodes", watch)
    roles = {"time": {"time": "day"}, "first": {"first": True}, "random": {}}[how]
    table = rows.sample(frac=1, random_state=3) if how == "time" else rows
    model = MetaLearner("maml", plan=plan, trials=1, device="cpu").fit(table, Roles("user", "y", **roles))
    evaluate(model, table, trials=1)
    assert len(seen) > 10 and all(seen) == (how != "random")


def test_the_log_of_the_training_stays_with_the_model(tables, plan, tmp_path):
    rows, about = tables
    model = MetaLearner("maml", plan=plan, trials=2, device="cpu")
    model.fit(rows, Roles("user", "y"), about, folder=tmp_path / "run").save(tmp_path / "model")
    lines = [json.loads(line) for line in (tmp_path / "model" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [6, 12] and all("validation" in line for line in lines)
    assert min(line["validation"] for line in lines) == pytest.approx(model.fitted.value)
    MetaLearner.load(tmp_path / "model").save(tmp_path / "again")
    assert (tmp_path / "again" / "log.jsonl").read_text() == (tmp_path / "model" / "log.jsonl").read_text()
