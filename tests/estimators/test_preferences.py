"""PreferenceLearner: users against the method's own steps, one event more against refitting, and the reasons."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from warmstart.baselines.rating_means import Bias, Config, fit_bias, on_scale
from warmstart.core import InputError
from warmstart.estimators.preference_contract import by_events
from warmstart.estimators.preference_evaluation import evaluate
from warmstart.estimators.preference_judging import mean_error, predictor, split_data
from warmstart.estimators.preference_learner import PreferenceLearner, with_item
from warmstart.estimators.preference_methods import METHODS, find
from warmstart.estimators.preference_networks import NETWORKS, network_method
from warmstart.estimators.preference_rivals import BASELINES
from warmstart.learners import preference_bayes
from warmstart.metrics.intervals import coverage
from warmstart.tasks.cold_start import first
from warmstart.tasks.ratings import read_ratings, take_users, to_batch, to_stack
from warmstart.tasks.roles import Roles
from warmstart.training.preferences import Schedule

ROLES = Roles("user", "rating", item="film", time="time")
SMALL = {"factors": 3, "sweeps": 4, "choices": 5}
FILES = ("config.json", "schema.json", "weights.safetensors", "card.md")


@pytest.fixture(params=["preference_bayes", "rating_means", "reg_paml"])
def model(request, preference_models):
    return preference_models[request.param]


@pytest.fixture
def events(cinema):
    """Six ratings of one user, in the order of time."""
    return cinema.ratings[cinema.ratings["user"] == "u00007"].head(6).drop(columns="user")


PROFILE = {"age": 33, "job": "doctor"}


def test_a_user_is_what_the_method_says_of_the_same_events(model, cinema, events):
    """Against the method's own steps on ratings that `read_ratings` makes of the whole table."""
    trained = model.fitted
    whole = read_ratings(cinema.ratings, ROLES, cinema.users, cinema.films, trained.scale)
    place = whole.users.index.get_loc("u00007")
    own = take_users(whole, np.array([place]))
    asked = own._replace(item=own.item[6:], user=own.user[6:], value=own.value[6:], time=own.time[6:])
    shown = own._replace(item=own.item[:6], user=own.user[:6], value=own.value[:6], time=own.time[:6])
    method = find(trained.name)
    adapted = method.finish(trained.state, shown, method.observe(trained.state, shown, None))
    wanted = method.score(trained.state, adapted, asked)
    said = model.adapt(events, cinema.users[cinema.users["user"] == "u00007"].drop(columns="user"))
    got = said.predict(pd.DataFrame({"film": whole.items.index[asked.item]}))
    assert torch.allclose(got.mean, wanted.mean) and said.events.tolist() == [6]
    if isinstance(wanted.variance, torch.Tensor):
        assert torch.allclose(got.variance, wanted.variance)


def test_one_more_event_is_an_update_that_equals_refitting(model, cinema, events):
    films = cinema.films[["film"]]
    whole = model.adapt(events, PROFILE)
    by_one = model.adapt(None, PROFILE)
    for row in range(6):
        by_one = by_one.observe(events.iloc[[row]])
    assert torch.allclose(by_one.predict(films).mean, whole.predict(films).mean, atol=1e-9)
    assert by_one.events.tolist() == [6] and model.adapt(None, PROFILE).events.tolist() == [0]
    before = model.adapt(events.head(5), PROFILE).predict(films).mean
    assert not torch.allclose(before, whole.predict(films).mean, atol=1e-4)


def test_a_repeated_rating_replaces_the_earlier_one(model, cinema, events):
    films = cinema.films[["film"]]
    changed = events.assign(rating=[5, *events["rating"].iloc[1:]])
    wanted = model.adapt(changed).predict(films).mean
    later = model.adapt(events).observe(events.head(1).assign(rating=5))
    assert torch.allclose(later.predict(films).mean, wanted) and later.events.tolist() == [6]
    assert "the last one was kept" in later.notes[-1]
    at_once = model.adapt(pd.concat([events, events.head(1).assign(rating=5, time=2_000_000_000)]))
    assert torch.allclose(at_once.predict(films).mean, wanted) and "the last one was kept" in at_once.notes[0]


def test_many_users_at_once_are_each_alone(model, cinema):
    names = cinema.users["user"].iloc[-7:].tolist()
    shown = cinema.ratings[cinema.ratings["user"].isin(names)].groupby("user").head(4)
    both = model.adapt(shown, cinema.users, users=names[::-1])
    assert both.names == names[::-1]
    found = both.recommend(3)
    for name in names[:2]:
        one = model.adapt(shown, cinema.users, users=[name]).recommend(3)
        mine = found.items[found.items["user"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, one.items, check_exact=False, rtol=1e-4)
        reason = found.reasons[found.reasons["user"] == name].iloc[0]
        assert reason["distance"] == pytest.approx(one.reasons["distance"][0], abs=2e-4)
        assert reason["level"] == one.reasons["level"][0]


def test_recommended_are_the_best_of_what_was_not_rated(model, cinema, events):
    user = model.adapt(events, PROFILE)
    rest = cinema.films[~cinema.films["film"].isin(events["film"])]
    table = user.frame(rest)
    found = user.recommend(5).items
    assert found["rank"].tolist() == [1, 2, 3, 4, 5] and not set(found["film"]) & set(events["film"])
    best = table.sort_values("prediction", ascending=False)
    assert np.allclose(found["prediction"], best["prediction"].head(5), atol=1e-5)
    told = table.set_index("film").loc[found["film"]]
    assert np.allclose(found[["low", "high"]], told[["low", "high"]], atol=1e-4)
    assert (found["low"] < found["prediction"]).all() and found[["low", "high"]].stack().between(1, 5).all()
    assert found["title"].tolist() == cinema.films.set_index("film").loc[found["film"], "title"].tolist()


def test_which_level_answers(preference_models, cinema):
    bayes, means = preference_models["preference_bayes"], preference_models["rating_means"]
    assert bayes.adapt(None, PROFILE).recommend(1).reasons["level"].tolist() == ["profile"]
    user = cinema.ratings["user"] == "u00007"
    assert means.adapt(cinema.ratings[user]).recommend(1).reasons["level"].tolist() == [
        "bias"
    ]  # an effect is all it has
    panel = pd.DataFrame({"film": cinema.films["film"].iloc[bayes.fitted.known.items]})
    levels = set()
    for name in bayes.fitted.split.test:
        own = cinema.ratings[cinema.ratings["user"] == name]
        user, before = bayes.adapt(own), bayes.adapt(users=[name])
        moved = (user.predict(panel).mean - before.predict(panel).mean).numpy()
        (level,) = user.recommend(1).reasons["level"]
        assert level == ("bias" if moved.mean() ** 2 >= moved.var() else "adapted")
        levels.add(level)
    assert levels == {"bias", "adapted"}


def test_nearest_known_users_are_those_predicted_alike(preference_models, cinema):
    model = preference_models["preference_bayes"]
    known = model.fitted.known
    name = known.names[3]
    own = cinema.ratings[cinema.ratings["user"] == name]
    about = cinema.users[cinema.users["user"] == name].drop(columns="user")
    twin = model.adapt(own.assign(user="twin"), about.assign(user="twin")).recommend(1).reasons.iloc[0]
    assert twin["nearest"][0] == name and twin["distance"][0] == pytest.approx(0, abs=1e-4)
    other = known.names.index(twin["nearest"][1])
    apart = np.sqrt(((known.said[other] - known.said[3]) ** 2).mean())
    assert twin["distance"][1] == pytest.approx(apart, abs=1e-3)
    itself = model.adapt(own, about.assign(user=name)).recommend(1).reasons.iloc[0]
    assert itself["nearest"][0] != name


def test_learning_rates_are_told_where_a_method_has_them(preference_models, events, monkeypatch):
    model = preference_models["rating_means"]
    rated = METHODS["rating_means"]._replace(rates=lambda state, adapted: np.array([0.25]))
    monkeypatch.setitem(METHODS, "rating_means", rated)
    assert model.adapt(events).recommend(1).reasons["rate"].tolist() == [0.25]


def test_intervals_hold_for_users_held_out(preference_models, cinema):
    model = preference_models["preference_bayes"]
    trained = model.fitted
    data = split_data(read_ratings(cinema.ratings, ROLES, cinema.users, cinema.films), 0, True)
    assert data.split == trained.split
    inside = []
    for size in (0, 5):
        some = first(data.test, size)
        said = predictor(trained.method, trained.state)(some)
        shown = np.bincount(some.shown.user, minlength=len(some.shown.users))[some.asked.user]
        ends = trained.interval(said.mean.numpy(), said.variance.numpy(), shown, 0.8)
        low, high = (to_stack(some.asked, torch.from_numpy(ends[end])) for end in ("low", "high"))
        inside.append(float(coverage(low, high, to_batch(some.asked)).mean()))
    assert 0.7 < np.mean(inside) < 0.93
    with pytest.raises(InputError, match="between 0 and 1"):
        model.adapt(None, PROFILE).recommend(1, level=1.0)


def test_auto_takes_the_method_that_validation_users_prefer(cinema, preference_models):
    auto = PreferenceLearner().fit(cinema.ratings, ROLES, cinema.users, cinema.films)
    values = {name: trials[0].value for name, trials in auto.trials_.items()}
    assert auto.fitted.name == min(values, key=values.get) and set(values) == {"preference_bayes", "rating_means"}
    data = split_data(read_ratings(cinema.ratings, ROLES, cinema.users, cinema.films), 0, True)
    means = PreferenceLearner("rating_means").fit(cinema.ratings, ROLES, cinema.users, cinema.films)
    assert means.fitted.value == pytest.approx(values["rating_means"])
    assert mean_error(predictor(find("rating_means"), means.fitted.state), data.validation) == means.fitted.value


@pytest.mark.parametrize(("usual", "rival", "sure"), [(4.5, 3.5, True), (3.5, 3.46, False)])
def test_auto_keeps_its_first_method_within_the_noise(cinema, monkeypatch, usual, rival, sure):
    """Two methods that say one number of everything, of which the second's is nearer to the mean."""

    def constant(said):
        def learn(train, stop, cfg, seed, device, report):
            return Bias(said, np.zeros(len(train.items)), np.inf, train.scale)

        predict = lambda bias, users: on_scale(users, bias, np.zeros(len(users.asked.value)))  # noqa: E731
        return by_events(Config(), {}, Bias, learn, predict)

    monkeypatch.setattr("warmstart.estimators.preference_learner.AUTO", {"squared": ("usual", "rival")})
    for name, said in (("usual", usual), ("rival", rival)):
        monkeypatch.setitem(METHODS, name, constant(said))
    model = PreferenceLearner().fit(cinema.ratings, ROLES)
    asked = split_data(read_ratings(cinema.ratings, ROLES), 0, True).validation.asked
    gain = np.bincount(asked.user, (asked.value - rival) ** 2 - (asked.value - usual) ** 2) / np.bincount(asked.user)
    assert gain.mean() < 0 and (gain.mean() + gain.std(ddof=1) / len(gain) ** 0.5 < 0) == sure
    assert model.fitted.name == ("rival" if sure else "usual") and bool(model.notes_) == (not sure)
    best = {name: trials[0].value for name, trials in model.trials_.items()}
    assert best["rival"] < best["usual"] and model.fitted.value == pytest.approx(best[model.fitted.name])


def test_a_marker_in_held_out_ratings_changes_nothing(cinema, preference_models):
    model = preference_models["preference_bayes"]
    held = cinema.ratings["user"].isin(model.fitted.split.test)
    spoiled = cinema.ratings.assign(rating=cinema.ratings["rating"].where(~held, 1))
    again = PreferenceLearner("preference_bayes", SMALL, scale=(1, 5)).fit(spoiled, ROLES, cinema.users, cinema.films)
    for one, other in zip(model.fitted.packed()[0].values(), again.fitted.packed()[0].values(), strict=True):
        assert torch.equal(one, other)


def test_saved_models_say_the_same(model, events, tmp_path):
    model.save(tmp_path / "model")
    again = PreferenceLearner.load(tmp_path / "model")
    one, other = (m.adapt(events, PROFILE).recommend(4) for m in (model, again))
    pd.testing.assert_frame_equal(one.items, other.items, check_dtype=False)
    assert one.reasons.equals(other.reasons) and again.fitted.split == model.fitted.split
    assert again.fitted.config == model.fitted.config
    assert {path.name for path in (tmp_path / "model").iterdir()} == set(FILES)
    assert "none of their ratings" in (tmp_path / "model" / "card.md").read_text()


def test_what_is_odd_about_users_is_said(preference_models, cinema, events):
    model = preference_models["preference_bayes"]
    notes = model.adapt(events, {"age": 30, "job": "astronaut"}).notes
    assert notes == ("'job' is 'astronaut', which no or few training users have: taken as unknown",)
    assert "'bob': neither events nor a profile" in model.adapt(users=["bob"]).notes[0]
    assert "'bob': no events: answered from the profile alone" in model.adapt(None, PROFILE, ["bob"]).notes[0]
    with pytest.raises(InputError, match=r"a column among .*age.* in the descriptor table"):
        model.adapt(events.assign(user="bob"), cinema.users.rename(columns=str.title).rename(columns={"User": "user"}))
    numbered = events.assign(user=7)
    for name in (7, "7", 7.0, " 7"):
        assert not model.adapt(numbered, PROFILE, [name]).notes
    table = model.adapt(events.assign(user="bob"), cinema.users)
    assert "'bob': no row in the table of profiles" in table.notes[0]
    odd = pd.concat([events.iloc[::-1], events.head(1).assign(film="f99999")])
    left = model.adapt(odd).notes
    assert "not in the order of time" in left[0] and "'f99999' first: their ratings were left out" in left[1]
    assert torch.equal(
        model.adapt(odd).predict(cinema.films[["film"]]).mean, model.adapt(events).predict(cinema.films[["film"]]).mean
    )


def test_an_unknown_item_is_answered_as_any_item(model, cinema, events):
    user = model.adapt(events)
    films = user.predict(cinema.films[["film"]])
    rows = pd.DataFrame({"film": ["f00003", "f99999"]})
    said = user.predict(rows)
    assert float(said.mean[0]) == pytest.approx(float(films.mean[3]))
    assert float(said.mean[1]) == pytest.approx(float(films.mean.mean()), abs=1e-5)
    if isinstance(films.variance, torch.Tensor):
        assert float(said.variance[1]) == pytest.approx(
            float(films.variance.mean() + films.mean.var(correction=0)), abs=1e-5
        )
    assert "'f99999' first" in user.unknown(rows)[0] and user.unknown(cinema.films[["film"]]) == ()


def test_users_who_have_rated_much(model, cinema):
    everything = pd.DataFrame({"film": cinema.films["film"], "rating": 3})
    with pytest.raises(InputError, match="all 40"):
        model.adapt(everything).recommend(1)
    found = model.adapt(everything.head(38)).recommend(5)
    assert set(found.items["film"]) == set(everything["film"].tail(2)) and "has 2 items left" in found.notes[0]


def test_users_with_one_rating_train_and_are_not_judged(cinema):
    lonely = pd.DataFrame({"user": ["v1", "v2"], "film": ["f00001", "f00002"], "rating": [5, 1], "time": [1, 2]})
    rows = pd.concat([cinema.ratings, lonely], ignore_index=True)
    model = PreferenceLearner("rating_means").fit(rows, ROLES)
    assert model.notes_ == ("2 users have one rating: they are trained on and not judged",)
    assert {"v1", "v2"} <= set(model.fitted.split.train)
    assert model.adapt(lonely.head(1)).recommend(1).reasons["events"].tolist() == [1]


def test_the_item_column_is_told_or_shared(cinema):
    assert with_item(cinema.ratings, Roles("user", "rating"), cinema.films).item == "film"
    with pytest.raises(InputError, match="--item COL"):
        with_item(cinema.ratings, Roles("user", "rating"), None)
    with pytest.raises(InputError, match="'film', 'year'"):
        with_item(cinema.ratings.assign(year=1), Roles("user", "rating"), cinema.films)


def test_bad_requests_are_refused(preference_models, cinema, events):
    model = preference_models["preference_bayes"]
    for call, words in (
        (lambda: PreferenceLearner().adapt(), "call fit first"),
        (lambda: PreferenceLearner("maml").fit(cinema.ratings, ROLES), "method for preferences among"),
        (lambda: PreferenceLearner("preference_baye").fit(cinema.ratings, ROLES), "did you mean preference_bayes"),
        (lambda: PreferenceLearner(settings={"factors": 2}).fit(cinema.ratings, ROLES), "auto"),
        (lambda: PreferenceLearner(trials=0).fit(cinema.ratings, ROLES), "at least 1"),
        (lambda: PreferenceLearner().fit(cinema.ratings.assign(rating=3), ROLES), "ratings that differ"),
        (lambda: PreferenceLearner(scale=(1, 4)).fit(cinema.ratings, ROLES), "'rating' of the ratings"),
        (lambda: model.adapt(events.assign(rating=6)), "scale 1 to 5 in column 'rating' of the support"),
        (lambda: model.adapt(events, {"height": 3}), "'height'"),
        (lambda: model.adapt(cinema.ratings.head(60), PROFILE), "one user for one profile"),
        (lambda: model.adapt(events).observe(events.assign(user="eve")), "users that were adapted"),
        (lambda: model.adapt(cinema.ratings.head(60)).predict(cinema.films[["film"]]), "column 'user' in the query"),
        (lambda: model.adapt(events).recommend(0), "at least one item"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def test_evaluation_judges_the_model_and_every_baseline_on_users_held_out(preference_models, cinema, monkeypatch):
    few = ("global mean", "bias", "item kNN")
    monkeypatch.setattr(
        "warmstart.estimators.preference_rivals.BASELINES",
        {"squared": {name: BASELINES["squared"][name] for name in few}},
    )
    model = preference_models["preference_bayes"]
    outcome = evaluate(model, cinema.ratings, cinema.users, cinema.films, trials=2)
    rows = {(row.method, row.metric, row.setting.get("samples", "80 %")): row for row in outcome.results.rows}
    data = split_data(read_ratings(cinema.ratings, ROLES, cinema.users, cinema.films), 0, True)
    trained = model.fitted
    said = predictor(trained.method, trained.state)(first(data.test, 2))
    wanted = ((said.mean.numpy() - data.test.asked.value) ** 2).astype(float)
    means = np.bincount(data.test.asked.user, wanted) / np.bincount(data.test.asked.user)
    assert rows["preference_bayes", "MSE", 2].mean == pytest.approx(means.mean())
    assert {method for method, _, _ in rows} == {"preference_bayes", *few}
    assert rows["bias", "MSE", 5].mean < rows["global mean", "MSE", 5].mean
    assert 0.6 < rows["preference_bayes", "coverage", 5].mean <= 1 and ("bias", "nDCG@3", "80 %") in rows
    assert "After 5 ratings of an unseen user, preference_bayes" in outcome.verdict
    with pytest.raises(InputError, match="tables that the model was fitted on"):
        evaluate(model, cinema.ratings.head(1500), cinema.users, cinema.films)


def test_states_of_methods_are_named_tuples_of_what_can_be_saved():
    assert preference_bayes.State in {method.saved for method in METHODS.values()}
    for method in METHODS.values():
        assert hasattr(method.saved, "_fields")


class Network(NamedTuple):
    """What a neural method would save."""

    theta: dict[str, Any]
    words: tuple[str, ...]
    effects: Bias


def test_a_network_of_ones_own_is_one_entry(cinema, tmp_path, monkeypatch):
    """It stops by validation users, saves weights, and works with what it makes of them and of its configuration."""
    told = []

    def learn(train, stop, cfg, seed, device, report):
        told.append((len(train.users), len(stop.shown.users), device.type))
        weights = {"net": {"body.0.weight": torch.full((2, 3), 0.5)}, "rates": {"w": torch.ones(1)}}
        return Network(weights, ("a", "b", "c"), fit_bias(train, cfg))

    def opened(cfg, saved):
        return saved.effects, float(saved.theta["net"]["body.0.weight"].sum()) * cfg.user_shrink

    def predict(state, users):
        return on_scale(users, state[0], np.full(len(users.asked.value), state[1] / 10))

    entry = by_events(
        Config(user_shrink=2.0),
        {},
        Network,
        learn,
        predict,
        lambda state, shown: np.full(len(shown.users), 0.1),
        opened,
    )
    monkeypatch.setitem(METHODS, "own", entry)
    model = PreferenceLearner("own", device="cpu").fit(cinema.ratings, ROLES, cinema.users, cinema.films)
    assert told == [(112, 16, "cpu")]
    model.save(tmp_path / "m")
    again = PreferenceLearner.load(tmp_path / "m")
    assert again.fitted.saved.words == ("a", "b", "c") and again.fitted.state[1] == 6.0
    events = cinema.ratings.head(5)
    one, other = (m.adapt(events).recommend(3) for m in (model, again))
    pd.testing.assert_frame_equal(one.items, other.items, check_dtype=False)
    assert one.reasons["rate"].tolist() == [0.1]


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.usefixtures("plain_preferences")
def test_a_network_is_saved_opened_and_tells_its_rates(name, monkeypatch, cinema, events, tmp_path):
    module, config = NETWORKS[name]
    short = network_method(module.build, config, {}, schedule=Schedule(epochs=2, look=1))
    monkeypatch.setitem(METHODS, name, short)
    model = PreferenceLearner(name, device="cpu").fit(cinema.ratings, ROLES, cinema.users, cinema.films)
    model.save(tmp_path / "m")
    again = PreferenceLearner.load(tmp_path / "m")
    one, other = (kept.adapt(events, PROFILE).recommend(3) for kept in (model, again))
    pd.testing.assert_frame_equal(one.items, other.items, check_dtype=False)
    film = cinema.films[["film"]].head(5)
    before, after = (model.adapt(shown, PROFILE).predict(film).mean for shown in (None, events))
    assert not torch.allclose(before, after)
    assert float(one.reasons["rate"][0]) > 0
