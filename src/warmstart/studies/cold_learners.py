"""The learners of tasks among the rows of `cold_ratings`: with item identity, by content alone as in Yu et al. (2021),
and at that paper's own settings; its sweep of gamma, its failure case, and what its figures show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from warmstart.estimators.preference_networks import COMMON, NETWORKS, STEPS
from warmstart.learners import at_paml, melu, meta_sgd, paml, pretrain, reg_paml
from warmstart.report import Row, differences, make_row
from warmstart.report.figures import group_bars
from warmstart.report.page import Section
from warmstart.report.rows import mean_interval
from warmstart.report.spreads import points, split_histograms, violins
from warmstart.report.svg import looks
from warmstart.training.preferences import Fitted, Network, Schedule, fit

CONTENT, PAPER = "content only", "paper's settings"
RATE, EMBEDDING = "rate", "embedding"  # among the scores of a learner: of each test user
MAJOR, MINOR = "major users", "minor users"
AGAINST = "MSE minus reg_paml"
ERROR = "MSE, 80 %"

Judged = Mapping[str, Mapping[int, Mapping[str, Tensor]]]  # method -> seed -> scores of test users


class Learnt(NamedTuple):
    """A row: how it is fitted, where its search begins, and what the search may try."""

    fit: Callable[..., Fitted]
    config: Any
    space: Mapping[str, Sequence[Any]] = {}
    learns: bool = True  # takes validation users and a device


SCHEDULE = Schedule()
BARE = Network(identity=False, hidden=(64,))
AS_PUBLISHED = Network(identity=False, hidden=(320, 192))
TWENTY = Schedule(epochs=20, patience=10, fewer=0.0, sizes=(), decay=False)
FAMILIES: dict[str, tuple[Any, Any]] = {
    **NETWORKS,
    "meta_sgd": (meta_sgd, meta_sgd.Config(inner_lr=0.05, **STEPS)),
    "transfer": (pretrain, pretrain.Config(inner_lr=0.03, test_steps=5, shrink=8.0, **COMMON)),
}
# With item identity, where validation users prefer others. Training on the rows of all users tells one taste of all and
# factors of items along it alone, so those of transfer learning, by which users differ, come from a factorisation.
IDENTIFIED: dict[str, tuple[Any, Network]] = {
    "meta_sgd": (replace(FAMILIES["meta_sgd"][1], relative=True), Network()),
    "transfer": (replace(FAMILIES["transfer"][1], outer_lr=1e-3, weight_decay=0.01), Network(factorised=True)),
}
# Table 7 and D.2 of the paper, which gives Meta-SGD and transfer learning no settings of their own
PUBLISHED: dict[str, Any] = {
    "melu": melu.Config(inner_lr=1e-5, outer_lr=5e-5),
    "paml": paml.Config(rate=1e-3, outer_lr=5e-6),
    "at_paml": at_paml.Config(rate=1e-3, warm_rate=5e-4, memory_lr=5e-5, compound=True, outer_lr=5e-5),
    "reg_paml": reg_paml.Config(rate=1e-3, outer_lr=5e-5),
    "meta_sgd": meta_sgd.Config(inner_lr=5e-4, outer_lr=5e-5),
    "transfer": pretrain.Config(inner_lr=5e-4, test_steps=1, outer_lr=5e-5),
}
GAMMAS = (1e-5, 1e-4, 1e-3, 1e-2)
FAILURE = "at_paml, outer rate 5e-4"
PAPER_SAYS: dict[str, dict[str, float]] = {
    "melu": {"MSE": 1.451, "nDCG@3": 0.793, "nDCG@5": 0.800},
    "paml": {"MSE": 1.520, "nDCG@3": 0.787, "nDCG@5": 0.809},
    "at_paml": {"MSE": 1.322, "nDCG@3": 0.788, "nDCG@5": 0.806},
    "reg_paml": {"MSE": 1.210, "nDCG@3": 0.779, "nDCG@5": 0.803},
    "meta_sgd": {"MSE": 1.340, "nDCG@3": 0.773, "nDCG@5": 0.794},
    "transfer": {"MSE": 1.308, "nDCG@3": 0.778, "nDCG@5": 0.796},
    "reg_paml, gamma 1e-05": {"MSE": 1.509, "nDCG@3": 0.773, "nDCG@5": 0.799},
    "reg_paml, gamma 0.0001": {"MSE": 1.227, "nDCG@3": 0.779, "nDCG@5": 0.803},
    "reg_paml, gamma 0.001": {"MSE": 1.210, "nDCG@3": 0.791, "nDCG@5": 0.814},
    "reg_paml, gamma 0.01": {"MSE": 1.191, "nDCG@3": 0.777, "nDCG@5": 0.803},
    FAILURE: {"MSE": 2.127, "nDCG@3": 0.782, "nDCG@5": 0.792},
}


def learnt(module: Any, config: Any, network: Network, schedule: Schedule = SCHEDULE, tuned: bool = True) -> Learnt:
    """A row of such a learner, on ratings or on clicks."""
    fitted = partial(fit, module.build, network=network, schedule=schedule)
    return Learnt(fitted, config, {**module.SPACE, "shrink": melu.SPACE["shrink"]} if tuned else {})


ENTRIES: dict[str, Learnt] = {
    **{name: learnt(module, *IDENTIFIED.get(name, (config, Network()))) for name, (module, config) in FAMILIES.items()},
    **{f"{name}, {CONTENT}": learnt(module, config, BARE) for name, (module, config) in FAMILIES.items()},
    **{
        f"{name}, {PAPER}": learnt(FAMILIES[name][0], config, AS_PUBLISHED, TWENTY, False)
        for name, config in PUBLISHED.items()
    },
    **{
        f"reg_paml, gamma {gamma:g}": learnt(reg_paml, replace(FAMILIES["reg_paml"][1], gamma=gamma), BARE, tuned=False)
        for gamma in GAMMAS
    },
    FAILURE: learnt(at_paml, replace(PUBLISHED["at_paml"], outer_lr=5e-4), AS_PUBLISHED, TWENTY, False),
}


def paper(name: str, metric: str) -> str:
    """What the paper reports for a row."""
    found = PAPER_SAYS.get(name, PAPER_SAYS.get(name.split(",")[0], {})).get(metric)
    return "" if found is None or name in FAMILIES else f"paper {found:.3f}"


def rows(judged: Judged, major: Mapping[int, Tensor], setting: Mapping[str, Any]) -> list[Row]:
    """Mean rates of major and of minor users, and differences to REG-PAML of the same kind, user by user."""
    found = []
    for name, by_seed in judged.items():
        told = {seed: scores[RATE] for seed, scores in by_seed.items() if RATE in scores}
        for group, kept in ((MAJOR, True), (MINOR, False)):
            if told:
                each = {seed: rate[major[seed] == kept].double() for seed, rate in told.items()}
                found.append(make_row(name, setting, f"rate, {group}", each, fresh_tasks=True))
        kind = f", {CONTENT}" if name.endswith(CONTENT) else f", {PAPER}" if name.endswith(PAPER) else ""
        rival = f"reg_paml{kind}"
        if name in ENTRIES and name != rival and rival in judged and name.removesuffix(kind) in FAMILIES:
            pair = [{seed: scores[ERROR] for seed, scores in judged[one].items()} for one in (name, rival)]
            found.append(make_row(name, setting, AGAINST, differences(*pair), fresh_tasks=True))
    return found


def sections(judged: Judged, major: Mapping[int, Tensor], baselines: Sequence[str]) -> list[Section]:
    """The paper's Figures 3, 4, 6 to 11, of the first seed."""
    names = [name for name in judged if name in ENTRIES]
    if not names:
        return []
    seed = next(iter(judged[names[0]]))
    scores, common = {name: judged[name][seed] for name in judged}, major[seed].numpy()
    errors = {name: scores[name][ERROR].numpy() for name in (*baselines, *names)}
    style = looks(list(errors), baselines)
    shown = [name for name in errors if name in (*baselines, *FAMILIES) or name.endswith(CONTENT)]
    bars = {
        name: [mean_interval(part[np.isfinite(part)]) for part in (error, error[common], error[~common])]
        for name, error in ((name, errors[name]) for name in shown)
    }
    found = [
        Section("Error of common and unusual users", svg=group_bars(["all", MAJOR, MINOR], bars, style, y_label="MSE")),
        Section("Error of single users", svg=violins(errors, style, "MSE of a user")),
    ]
    rates = {name: scores[name][RATE].numpy() for name in names if RATE in scores[name]}
    panels = {name: {MAJOR: rate[common], MINOR: rate[~common]} for name, rate in rates.items() if np.ptp(rate) > 0}
    if panels:
        found.append(Section("Learning rates", svg=split_histograms(panels, "learning rate")))
    for name in names:
        if EMBEDDING in scores[name] and name.startswith("reg_paml") and "gamma" not in name:
            places = plane(scores[name][EMBEDDING].numpy(), seed)
            groups = {MAJOR: places[common], MINOR: places[~common]}
            found.append(Section(f"Users of {name}", svg=points(groups, "t-SNE of user embeddings")))
    return found


def plane(vectors: Any, seed: int) -> Any:
    """By t-SNE, started from the two main directions."""
    from sklearn.manifold import TSNE  # imported here: loading it takes seconds

    perplexity = min(30.0, (len(vectors) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(vectors)
