"""The baselines of every report on preferences, tuned like the method they are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from warmstart.baselines import autorec, click_means, click_trees, rating_als, rating_items, rating_means, rating_trees
from warmstart.engine.loop import Report, silent
from warmstart.estimators.preference_chances import fit_chances, put_right_by
from warmstart.estimators.preference_judging import CALIBRATED, Data, Predictor, mean_error
from warmstart.tasks.ratings import Ratings
from warmstart.training.search import search


class Rival(NamedTuple):
    fit: Callable[[Ratings, Any, int], Predictor]
    config: Any
    space: Mapping[str, Sequence[Any]] = {}


BASELINES = {
    "squared": {
        "global mean": Rival(rating_means.fit, rating_means.GLOBAL_MEAN),
        "user mean": Rival(rating_means.fit, rating_means.USER_MEAN),
        "item mean": Rival(rating_means.fit, rating_means.ITEM_MEAN),
        "bias": Rival(rating_means.fit, rating_means.Config(), rating_means.SPACE),
        "als": Rival(rating_als.fit, rating_als.Config(), rating_als.SPACE),
        "item kNN": Rival(rating_items.fit_neighbours, rating_items.Neighbours(), rating_items.NEIGHBOURS_SPACE),
        "ease": Rival(rating_items.fit_ease, rating_items.Ease(), rating_items.EASE_SPACE),
        "autorec": Rival(autorec.fit, autorec.Config(), autorec.SPACE),
        "boosted trees": Rival(rating_trees.fit, rating_trees.Config(), rating_trees.SPACE),
    },
    "binary": {
        "click rate": Rival(click_means.fit, click_means.CLICK_RATE),
        "user's click rate": Rival(click_means.fit, click_means.USER_RATE),
        "item's click rate": Rival(click_means.fit, click_means.ITEM_RATE),
        "bias": Rival(click_means.fit, click_means.Config(), click_means.SPACE),
        "boosted trees": Rival(click_trees.fit, click_trees.Config(), click_trees.SPACE),
    },
}


def fit_baselines(
    data: Data, trials: int, seed: int, progress: Callable[[str], Report] | None = None
) -> dict[str, Predictor]:
    """Each with the best of `trials` configurations, by the error that chooses the method; chances put right too."""
    found: dict[str, Predictor] = {}
    kind = data.train.kind
    for name, rival in BASELINES[kind].items():
        report = silent if progress is None else progress(f"baseline {name}")
        config = rival.config
        if trials > 1 and rival.space:

            def value(cfg: Any, rival: Rival = rival) -> float:
                return mean_error(rival.fit(data.train, cfg, seed), data.validation)

            config = search(value, config, rival.space, trials, seed, progress=report)[0].config
        found[name] = rival.fit(data.train, config, seed)
        if kind == "binary":
            found[name] = put_right_by(found[name], fit_chances(found[name], data.validation, CALIBRATED))
    return found
