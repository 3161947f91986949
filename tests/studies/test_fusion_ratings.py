"""The study of fused rating models on simulated ratings: what each side may see, every row, and the real archive."""

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.baselines.rating_networks import Training
from warmstart.core import InputError
from warmstart.estimators.model_fusion import WAYS
from warmstart.fusion import function_gp, weight_gp
from warmstart.studies import fusion_ratings, rating_zoo
from warmstart.studies.fusion_ratings import AUTO, BIAS, ERROR, HELD, ITEMS, META, META_LATENT, META_REFIT, RIDGE, USERS
from warmstart.studies.rating_zoo import cut, describe, split_items, split_users, train_pool, turn

ALIKE = pd.Index([str(k + 1) for k in range(121)], dtype=object)


@pytest.fixture
def ratings(simulated_ratings, monkeypatch):
    """120 users, of whom 90 are seen, and 60 items, of which 25 are context."""
    monkeypatch.setattr(rating_zoo, "SEEN", 90)
    monkeypatch.setattr(rating_zoo, "CONTEXT", 25)
    monkeypatch.setattr(rating_zoo, "FEWEST", 3)
    monkeypatch.setattr(rating_zoo, "TASTES", rating_zoo.replace(rating_zoo.TASTES, factors=3))
    made = simulated_ratings(users=120)
    items = made.items.rename(columns={"tags": "genre"})
    return made._replace(users=made.users.set_axis(ALIKE[:120]), items=items.set_axis(ALIKE[:61]))


@pytest.fixture
def tiny(ratings, monkeypatch, tmp_path):
    monkeypatch.setattr(fusion_ratings, "read_movielens_100k", lambda path: ratings)
    table = (fusion_ratings.Setting(USERS, "by number", 3), fusion_ratings.Setting(USERS, "by number", 4))
    settings = (*table, fusion_ratings.Setting(USERS, "drawn", 3), fusion_ratings.Setting(ITEMS, "drawn", 3))
    monkeypatch.setattr(fusion_ratings, "TABLE", table)
    size = fusion_ratings.Preset(settings, 3, 1, 2, Training(epochs=1, steps=5))
    monkeypatch.setitem(fusion_ratings.PRESETS, "quick", size)
    short = {"weight_gp": weight_gp.Config(rounds=1), "function_gp": function_gp.Config(steps=2)}
    for name, config in short.items():
        monkeypatch.setitem(WAYS, name, WAYS[name]._replace(config=config))
    return lambda **more: fusion_ratings.run(data=tmp_path, **more)


def test_every_row_is_there_paired_and_kept(tiny, tmp_path):
    outcome = tiny(seeds=[3], folder=tmp_path / "kept")
    rows = {(row.method, *row.setting.values(), row.metric): row for row in outcome.results.rows}
    names = [AUTO, *WAYS, META, META_LATENT, META_REFIT, BIAS, "mean of the item", "oracle CF", "cold CF"]
    for name in [*names, *(f"{n}{more}" for n in ("AutoRec", "NeuMF", "DeepFM") for more in ("", ", context alone"))]:
        row = rows[name, USERS, "by number", 3, ERROR]
        assert row.counts == (30,) and 0.2 < row.mean < 2 and not row.fresh_tasks
        if name != BIAS:
            paired = rows[name, USERS, "by number", 3, f"{ERROR} minus {BIAS}"].mean
            assert paired == pytest.approx(row.mean - rows[BIAS, USERS, "by number", 3, ERROR].mean)
    for setting in ((USERS, "by number", 4), (USERS, "drawn", 3), (ITEMS, "drawn", 3)):
        assert (AUTO, *setting, ERROR) in rows and (AUTO, *setting, f"{ERROR} minus {RIDGE}") in rows
    assert rows[AUTO, USERS, "drawn", 3, ERROR].fresh_tasks and ("AutoRec", USERS, "by number", 4, ERROR) not in rows
    # the choice is by left-out models
    held = {name: rows[name, USERS, "by number", 3, HELD].mean for name in WAYS}
    best = min(held, key=held.get)
    for metric in (ERROR, HELD):
        assert rows[AUTO, USERS, "by number", 3, metric].mean == rows[best, USERS, "by number", 3, metric].mean
    assert rows[META_LATENT, USERS, "by number", 4, ERROR].peer == "paper 1.16"
    assert "errs by" in outcome.verdict and len(outcome.sections) == 4
    again = tiny(seeds=[3], folder=tmp_path / "kept", only=["nearest"])  # all is kept, so nothing is run
    assert {(row.method, *row.setting.values(), row.metric): row for row in again.results.rows} == rows


def test_a_few_rows_are_run_alone_and_unknown_ones_refused(tiny):
    outcome = tiny(only=["cold CF", "nearest"])
    assert {row.method for row in outcome.results.rows} == {"cold CF", "nearest"} and "not held" in outcome.verdict
    told = tiny(only=[AUTO, BIAS]).verdict
    assert "errs by" in told and "oracle" not in told
    with pytest.raises(InputError, match="methods among"):
        tiny(only=["magic"])
    with pytest.raises(InputError, match="MovieLens-100K"):
        fusion_ratings.run()


def test_no_embedding_sees_context_or_unseen_users_and_no_descriptor_sees_what_is_asked(ratings):
    split = split_users(ratings)
    context = np.array([int(name) <= 25 for name in ratings.items.index])
    assert set(split.new.asked.users.index) == set(ALIKE[90:120]) == set(split.new.shown.users.index)
    assert not context[split.train.item].any() and not context[split.new.asked.item].any()
    assert context[split.meta.item].all() and context[split.new.shown.item].all()
    assert len(split.seen.value) + len(split.new.shown.value) + len(split.new.asked.value) == len(ratings.value)
    pool = train_pool(split, 3, 0)
    others = split.new._replace(asked=split.new.asked._replace(value=split.new.asked.value[::-1]))
    other = train_pool(split._replace(new=others), 3, 0)
    assert all(torch.equal(other.zoo.params[name], value) for name, value in pool.zoo.params.items())
    pd.testing.assert_frame_equal(other.known, pool.known)
    # descriptors of seen users know nothing of what their embeddings were trained on, and the reverse
    spoiled = split._replace(train=split.train._replace(value=5.0 - split.train.value))
    pd.testing.assert_frame_equal(describe(spoiled, (), 0)[0], describe(split, (), 0)[0])
    assert len(set(split_users(ratings, 1).new.asked.users.index) & set(ALIKE[90:120])) < 30


def test_a_model_of_the_pool_says_what_the_factorisation_says(ratings):
    split = split_users(ratings)
    pool = train_pool(split, 3, 0)
    weight, level = pool.zoo.params["0.weight"][4, 0], pool.zoo.params["0.bias"][4, 0]
    bias, vectors = pool.factors.bias, pool.factors.item
    mine = split.train.user == 4
    effect = (split.train.value - bias.centre - bias.item[split.train.item])[mine].sum() / (mine.sum() + 2.0)
    q = vectors[split.train.item[mine]]
    left = split.train.value[mine] - bias.centre - bias.item[split.train.item[mine]] - effect
    own = np.linalg.solve(q.T @ q + 2.0 * np.eye(3), q.T @ left)
    said = pool.inputs @ weight + level
    wanted = bias.centre + effect + bias.item + vectors @ own
    assert np.allclose(said.numpy(), wanted, atol=1e-4)


def test_items_are_tasks_when_the_table_is_turned(ratings):
    turned = turn(ratings)
    pairs = lambda user, item, value: set(zip(user.tolist(), item.tolist(), value.tolist(), strict=True))  # noqa: E731
    assert pairs(turned.item, turned.user, turned.value) == pairs(ratings.user, ratings.item, ratings.value)
    assert (np.diff(turned.user) >= 0).all()
    split = split_items(ratings, 0)
    late = np.array([int(name) > 90 for name in ratings.users.index])
    assert all(int(name) > 25 for name in (*split.train.users.index, *split.new.asked.users.index))
    assert late[split.meta.item].all() and late[split.new.shown.item].all()
    assert not late[split.train.item].any() and not late[split.new.asked.item].any()
    assert np.bincount(split.new.asked.user).min() >= 3
    pool = train_pool(split, 3, 0, ("year", "genre"))
    assert {"year", "genre", "taste 3"} <= set(pool.known.columns)


def test_of_tasks_with_one_descriptor_the_first_is_in_the_pool(ratings):
    """Users who rated no context item cannot be told apart."""
    split = split_users(ratings)
    silent = np.isin(split.meta.user, [3, 8])
    bare = split._replace(meta=rating_zoo.take_rows(split.meta, ~silent))
    names = train_pool(bare, 3, 0).zoo.names
    assert len(names) == 89 and split.train.users.index[3] in names and split.train.users.index[8] not in names


def test_the_oracle_is_asked_about_ratings_that_it_was_not_shown(ratings):
    """With every asked rating of the first user at 5, whoever saw them would say more than for a user without."""
    unseen = np.array([int(name) > 90 for name in ratings.users.index])
    split = cut(ratings, unseen, np.zeros(len(ratings.items), dtype=bool))  # no context: nothing is shown
    value = split.new.asked.value.copy()
    first = np.flatnonzero(split.new.asked.user == 0)
    single = rating_zoo.take_rows(split.new.asked._replace(value=value), first[:1])
    alone = split._replace(new=split.new._replace(asked=single))
    low, high = (
        fusion_ratings.oracle(
            alone._replace(new=alone.new._replace(asked=single._replace(value=np.array([v])))), None, 3, 0
        ).mean
        for v in (1.0, 5.0)
    )
    assert torch.equal(low, high)


def test_the_real_users_are_as_many_as_the_paper_has(shared_data):
    if not (shared_data / "ml-100k.zip").exists():
        pytest.skip("no ml-100k.zip")
    split = split_users(fusion_ratings.read_movielens_100k(shared_data))
    assert (len(split.train.users), len(split.new.asked.users)) == (800, 143)
    assert (len(split.train.value), len(split.new.shown.value), len(split.new.asked.value)) == (45322, 6853, 7615)
    told = fusion_ratings.plain(
        fusion_ratings.rating_means.fit, fusion_ratings.rating_means.Config(), split, None, 20, 0
    )
    assert float(fusion_ratings.errors(split.new, told.mean).mean()) == pytest.approx(0.9383, abs=1e-3)
