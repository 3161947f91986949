"""Fusion of rating models: an embedding for an unseen user of MovieLens-100K, from the embeddings of other users.

Tables 2 and 5 of *Model fusion for personalized learning*: users after number 800 are unseen, items up to number 300
are context, which describes users and which no embedding was trained on. Beside it other draws of unseen users, and
unseen items, which the unseen users describe. RMSE of each unseen task; every row is kept on the scale of ratings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from warmstart.baselines import autorec, deepfm, neumf, rating_als, rating_means
from warmstart.baselines.rating_networks import Training
from warmstart.core import Params, Prediction, check_names
from warmstart.engine.files import read_tensors, write_tensors
from warmstart.engine.loop import Report, silent
from warmstart.estimators.model_fusion import WAYS, ModelFusion
from warmstart.fusion import hypernetwork, meta_model
from warmstart.fusion.network import run_models
from warmstart.fusion.zoo import encode_descriptor
from warmstart.metrics.errors import squared_error
from warmstart.report import Column, Results, Row, called, differences, make_results, make_row, table
from warmstart.report.page import Outcome, Section
from warmstart.studies.rating_zoo import RatingPool, Split, split_items, split_users, train_pool
from warmstart.tasks.cold_start import Users
from warmstart.tasks.data_folder import given
from warmstart.tasks.movielens import read_movielens_100k
from warmstart.tasks.ratings import Ratings, join_ratings, take_rows, to_batch, to_stack

ERROR, HELD = "RMSE", "error of left-out models"
AUTO, RIDGE, BIAS, MEAN = "auto", "weight_ridge", "item + context bias", "mean of the item"
META, META_LATENT, META_REFIT = "meta_model", "meta_model, latent order", "meta_model, refit"
COLD, ORACLE, ALONE = "cold CF", "oracle CF", "context alone"
AGAINST = (BIAS, RIDGE)
USERS, ITEMS, NUMBERED, DRAWN = "users", "items", "by number", "drawn"
ABOUT_ITEMS = ("year", "genre")
FOLDS = 5  # of what the oracle is asked

Scores: TypeAlias = dict[tuple[str, str], Tensor]  # method, metric -> one number per task
Baseline: TypeAlias = Callable[[Split, RatingPool, int, int], Prediction]  # split, pool, dims, seed


class Setting(NamedTuple):
    new: str
    split: str
    dims: int


class Preset(NamedTuple):
    settings: tuple[Setting, ...]
    hyper: int  # steps of the hypernetwork
    epochs: int  # of the meta-model
    refit: int
    training: Training  # of NeuMF and DeepFM


TABLE = tuple(Setting(USERS, NUMBERED, dims) for dims in (20, 30, 40))
PRESETS = {
    "quick": Preset(TABLE[:1], 100, 2, 50, Training(epochs=1, steps=20)),
    "full": Preset((*TABLE, Setting(USERS, DRAWN, 20), Setting(ITEMS, DRAWN, 20)), 400, 12, 400, Training()),
}
PUBLISHED: dict[str, Sequence[str]] = {
    META_LATENT: ("1.16", "1.16", "1.22"),
    "nearest": ("1.26", "1.29", "1.28"),
    COLD: ("1.59", "2.02", "1.58"),
    f"AutoRec, {ALONE}": ("1.55", "1.55", "1.55"),
    f"NeuMF, {ALONE}": ("1.55", "1.51", "1.43"),
    f"DeepFM, {ALONE}": ("1.47", "1.55", "1.51"),
    ORACLE: ("0.97", "1.05", "1.01"),
}


def cold(split: Split, pool: RatingPool, dims: int, seed: int) -> Prediction:
    """Vectors of a factorisation of the unseen users' context ratings alone, beside the pool's items: another basis."""
    cfg, shown, asked = rating_als.Config(factors=dims), split.new.shown, split.new.asked
    own = rating_als.factorise(shown, cfg, seed)
    level = own.bias.centre + rating_means.user_effects(own.bias, shown)
    vectors, items = rating_als.fold_in(own, shown, cfg), pool.factors
    told = level[asked.user] + items.bias.item[asked.item] + (vectors[asked.user] * items.item[asked.item]).sum(1)
    return Prediction(torch.from_numpy(np.clip(told, *shown.scale)))


def oracle(split: Split, pool: RatingPool, dims: int, seed: int) -> Prediction:
    """All ratings of seen tasks, and of the unseen ones all but the fifth that is asked."""
    predict = rating_als.fit(split.seen, rating_als.Config(factors=dims), seed)
    asked = split.new.asked
    fold = np.random.default_rng(seed).permutation(len(asked.value)) % FOLDS
    told = torch.zeros(len(fold), dtype=torch.float64)
    for k in range(FOLDS):
        shown = join_ratings(split.new.shown, take_rows(asked, fold != k))
        part = Users(shown, take_rows(asked, fold == k), np.zeros(len(shown.value), dtype=np.int64))
        told[torch.from_numpy(fold == k)] = predict(part).mean
    return Prediction(told)


def plain(fit: Callable[..., Any], cfg: Any, split: Split, pool: RatingPool, dims: int, seed: int) -> Prediction:
    """A baseline that reads all ratings of seen tasks."""
    found: Prediction = fit(split.seen, cfg, seed)(split.new)
    return found


def network(fit: Any, cfg: Any, alone: bool, split: Split, pool: RatingPool, dims: int, seed: int) -> Prediction:
    """A network, of so many dimensions where it has factors; `alone` leaves it the ratings on context."""
    sized = replace(cfg, factors=dims) if hasattr(cfg, "factors") else cfg
    found: Prediction = fit(split.meta if alone else split.seen, sized, seed)(split.new)
    return found


def baselines(size: Preset, setting: Setting) -> dict[str, Baseline]:
    """Those in which dimensions play no part are in the first column alone: context holds nothing that is asked."""
    found: dict[str, Baseline] = {
        MEAN: partial(plain, rating_means.fit, rating_means.ITEM_MEAN),
        BIAS: partial(plain, rating_means.fit, rating_means.Config()),
        ORACLE: oracle,
    }
    if setting not in TABLE:
        return found
    networks: dict[str, tuple[Any, Any]] = {
        "NeuMF": (neumf.fit, neumf.Config(training=size.training)),
        "DeepFM": (deepfm.fit, deepfm.Config(training=size.training)),
    }
    if setting == TABLE[0]:
        networks["AutoRec"] = autorec.fit, autorec.Config(epochs=2 * size.training.epochs)
        found |= {f"{name}, {ALONE}": partial(network, *pair, True) for name, pair in networks.items()}
    return found | {name: partial(network, *pair, False) for name, pair in networks.items()} | {COLD: cold}


def run(
    preset: str = "quick",
    seeds: Sequence[int] = (0,),
    only: Sequence[str] = (),
    data: Path | None = None,
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    folder: Path | None = None,
) -> Outcome:
    """On the CPU. With a folder, an interrupted run goes on."""
    size = PRESETS[preset]
    check_names(only, [AUTO, *WAYS, META, *baselines(size, TABLE[0])])
    ratings, began = read_movielens_100k(given(data, "MovieLens-100K")), time.perf_counter()
    found: dict[Setting, dict[int, Scores]] = {setting: {} for setting in size.settings}
    for seed in seeds:
        for setting in size.settings:
            label = f"{setting.new} {setting.split}, {setting.dims} dimensions, seed {seed}"
            kept = None if folder is None else folder / f"{label}.safetensors"
            if kept is not None and kept.exists():
                stored = read_tensors(kept)[0].items()
                found[setting][seed] = {(key.split("; ")[0], key.split("; ")[1]): part for key, part in stored}
                continue
            say = partial((progress or (lambda label: silent))(label), 0, 1)
            found[setting][seed] = scores = judge(ratings, setting, size, seed, only, say)
            if kept is not None:
                write_tensors(kept, {"; ".join(key): part for key, part in scores.items()})
    rows = rows_of(found)
    results = make_results("fusion_ratings", preset, "cpu", called(), rows)
    return Outcome(results, sections(results), verdict(rows, time.perf_counter() - began))


def judge(
    ratings: Ratings, setting: Setting, size: Preset, seed: int, only: Sequence[str], say: Callable[[str], None]
) -> Scores:
    """Every row on one split."""
    items = setting.new == ITEMS
    drawn = seed if setting.split == DRAWN else None
    split = split_items(ratings, seed) if items else split_users(ratings, drawn)
    pool = train_pool(split, setting.dims, seed, ABOUT_ITEMS if items else ())
    scores: Scores = {}
    ways = {name: way for name, way in WAYS.items() if not only or name in only or AUTO in only}
    if "hypernetwork" in ways:
        ways["hypernetwork"] = WAYS["hypernetwork"]._replace(config=hypernetwork.Config(steps=size.hyper))
    if ways or META in only:
        model = ModelFusion(ways={**ways, "function_gp": WAYS["function_gp"]}, seed=seed)
        model.fit(pool.zoo, "relu", pool.compared, say)
        at = encode_descriptor(pool.zoo.columns, pool.known)
        made = {n: way.build(model.network_, way.config).zero_shot(model.states_[n], at) for n, way in ways.items()}
        if not items and (not only or META in only):
            say(META)
            made |= meta_models(model, at, size, seed)
        for name, params in made.items():
            scores[name, ERROR] = errors(split.new, ratings_by(model, params, pool, split.new.asked))
            if name in model.errors_:
                scores[name, HELD] = model.errors_[name]
        if not only or AUTO in only:
            scores |= {(AUTO, metric): scores[model.chosen_, metric].clone() for metric in (ERROR, HELD)}
    for name, baseline in baselines(size, setting).items():
        if not only or name in only:
            say(name)
            scores[name, ERROR] = errors(split.new, baseline(split, pool, setting.dims, seed).mean)
    return scores


def meta_models(model: ModelFusion, at: Tensor, size: Preset, seed: int) -> dict[str, Params]:
    """The paper's, as it is (nothing has to be aligned), with its permuted latent coordinates, and refitted."""
    length = math.sqrt(at.shape[1])  # as far as two tasks are apart
    every = max(1, size.epochs // 3)
    cfg = meta_model.Config(samples=4, epochs=size.epochs, every=every, length=length, seed=seed)
    first = meta_model.fit(model.network_, cfg, model.pool_)
    states = {
        META: first,
        META_LATENT: meta_model.fit(model.network_, replace(cfg, alignment="latent"), model.pool_),
        META_REFIT: meta_model.refit(model.network_, replace(cfg, refit=size.refit), model.pool_, first),
    }
    return {name: meta_model.zero_shot(state, at)[0] for name, state in states.items()}


def ratings_by(model: ModelFusion, params: Params, pool: RatingPool, asked: Ratings) -> Tensor:
    """What models [tasks, ...] say of the events asked about, on the scale."""
    said = run_models(model.network_, params, pool.inputs)[..., 0]
    return said[torch.from_numpy(asked.user), torch.from_numpy(asked.item)].clamp(*asked.scale)


def errors(new: Users, told: Tensor) -> Tensor:
    """RMSE of each unseen task that is asked about anything."""
    found = squared_error(to_stack(new.asked, told.double()), to_batch(new.asked)).sqrt()
    return found[~found.isnan()]


def rows_of(found: Mapping[Setting, Mapping[int, Scores]]) -> list[Row]:
    rows: list[Row] = []
    for setting, by_seed in found.items():
        where, fresh = setting._asdict(), setting.split == DRAWN
        for name, metric in next(iter(by_seed.values())):
            values = {seed: scores[name, metric] for seed, scores in by_seed.items()}
            published = PUBLISHED.get(name, ()) if setting in TABLE and metric == ERROR else ()
            peer = f"paper {published[TABLE.index(setting)]}" if published else ""
            rows.append(make_row(name, where, metric, values, peer=peer, fresh_tasks=fresh))
            for other in AGAINST if metric == ERROR else ():
                if other != name and (other, ERROR) in next(iter(by_seed.values())):
                    theirs = {seed: scores[other, ERROR] for seed, scores in by_seed.items()}
                    paired = differences(values, theirs)
                    rows.append(make_row(name, where, f"{ERROR} minus {other}", paired, fresh_tasks=fresh))
    return rows


def sections(results: Results) -> list[Section]:
    settings = list(dict.fromkeys(Setting(*row.setting.values()) for row in results.rows))  # type: ignore[arg-type]
    methods = list(dict.fromkeys(row.method for row in results.rows))
    others = [name for name in methods if name != AUTO and name not in WAYS and not name.startswith(META)]
    told = {
        ERROR: "RMSE of an unseen user or item, mean over them, no rating of theirs but those on context; "
        "of unseen items, read user for item in the names of baselines",
        HELD: "RMSE over the range of a seen model, each left out in turn: what the choice is made by",
        **{f"{ERROR} minus {other}": f"Task by task, less that of {other}" for other in AGAINST},
    }
    found = []
    for metric, caption in told.items():
        shown = [name for name in methods if any((row.method, row.metric) == (name, metric) for row in results.rows)]
        columns = [
            Column(f"{new}, {split}, {dims}", metric, {"new": new, "split": split, "dims": dims}, 3, "lower")
            for new, split, dims in settings
        ]
        if shown:
            made = table(results, shown, columns, [n for n in others if n in shown], [ORACLE], caption=caption)
            found.append(Section(metric, table=made))
    return found


def verdict(rows: Sequence[Row], seconds: float) -> str:
    first = rows[0].setting
    at = {row.method: row.mean for row in rows if row.metric == ERROR and row.setting == first}
    if AUTO not in at or BIAS not in at:
        return "The automatic choice was not held against the effects."
    told = f"The automatic choice errs by {at[AUTO]:.3f} on unseen users, {BIAS} by {at[BIAS]:.3f}"
    told += f", the oracle by {at[ORACLE]:.3f}" if ORACLE in at else ""
    return f"{told} ({seconds:.0f} s)."
