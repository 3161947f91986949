"""Final training: candidate sets of sources as one stack, the one that validation rows prefer.

A model is trained on target and sources together, then on the target alone at a small rate. Validation
differences are noisy, so a preferred candidate stands unless another is surely better: 95 %, over all the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params, Tree
from warmstart.core.trees import take
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator
from warmstart.metrics.intervals import z_score
from warmstart.selection.measures import Measure
from warmstart.selection.training import Config as Training
from warmstart.selection.training import outputs, shares, train_models
from warmstart.tasks.transfer import Rows, Transfer

DRAWS = 100  # of the validation rows, for a standard error
SURE = 0.95  # that the best of the others is better, as many as they are (Bonferroni)
NETWORK = "network"


@dataclass(frozen=True)
class Config:
    training: Training = Training(steps=1500, batch=512)
    tuning: int = 200  # steps on the target alone, after the others
    tuning_lr: float = 0.001


class Kept(NamedTuple):
    """What the outputs can be made from again: a model's kind and form in plain values, and its tensors."""

    form: dict[str, Any]
    tensors: dict[str, Tensor]


class Fitted(NamedTuple):
    """What every method that uses sources ends in."""

    outputs: Callable[[Tree], Tensor]  # rows [n, ...] -> [n, out]
    members: Tensor  # [k] the sources it was trained with
    value: float  # of the measure on the validation rows
    trials: int
    kept: Kept


def train_sets(
    transfer: Transfer, members: Tensor, cfg: Config = Config(), seed: int = 0, progress: Report = silent
) -> Params:
    """One model [m, ...] for each set of sources [m, k]."""
    training = cfg.training
    members = members.to(transfer.pool.y.device)
    share = shares(transfer, members, training.balance)
    phi = train_models(transfer, share, training, seed, progress=progress)
    return tune(transfer, phi, cfg, seed)


def tune(transfer: Transfer, phi: Params, cfg: Config, seed: int) -> Params:
    """Models [m, ...] trained on with the target's own rows."""
    if not cfg.tuning:
        return phi
    training = replace(cfg.training, steps=cfg.tuning, lr=cfg.tuning_lr)
    count = len(next(iter(phi.values())))
    alone = shares(transfer, torch.zeros(count, transfer.sources, device=transfer.pool.y.device))
    return train_models(transfer, alone, training, seed, start=phi)


def choose(
    transfer: Transfer,
    members: Tensor,
    measure: Measure,
    cfg: Config = Config(),
    seed: int = 0,
    preferred: int | None = None,
    progress: Report = silent,
) -> Fitted:
    """Train every set and keep the best on the validation rows."""
    phi = train_sets(transfer, members, cfg, seed, progress)
    return keep_best(transfer, phi, members, measure, cfg, preferred)


def keep_best(
    transfer: Transfer, phi: Params, members: Tensor, measure: Measure, cfg: Config, preferred: int | None = None
) -> Fitted:
    """Of trained models [m, ...] the one that the validation rows prefer."""
    out = outputs(transfer, cfg.training, phi, transfer.validation.x)
    values = measure(out, transfer.validation)
    best = int(values.argmin())
    if preferred is not None and best != preferred:
        error = standard_error(measure, out[[preferred, best]], transfer.validation)
        enough = z_score(1 - (1 - SURE) / (len(values) - 1)) * error
        best = preferred if float(values[preferred] - values[best]) <= enough else best
    kept, training = take(phi, [best]), cfg.training
    form = {
        "model": NETWORK,
        "hidden": list(training.hidden),
        "own_heads": training.own_heads,
        "text": None if training.text is None else asdict(training.text),
    }
    return Fitted(
        lambda x: outputs(transfer, training, kept, x)[0],
        members[best].bool().cpu(),
        float(values[best]),
        len(members),
        Kept(form, kept),
    )


def standard_error(measure: Measure, out: Tensor, rows: Rows, draws: int = DRAWS, seed: int = 0) -> float:
    """Of the difference of a measure between two models [2, n, out], over rows drawn again.

    Within groups and labels, so that no draw leaves a measure undefined.
    """
    source, index = generator(seed, 23), torch.arange(len(rows.y))
    kinds = list(zip(rows.group.tolist(), rows.y.tolist(), strict=True))
    groups = [index[torch.tensor([one == kind for one in kinds])] for kind in dict.fromkeys(kinds)]
    found = []
    for _ in range(draws):
        again = torch.cat([own[torch.randint(len(own), (len(own),), generator=source)] for own in groups])
        first, second = measure(out[:, again], Rows((), rows.y[again], rows.group[again])).tolist()
        found.append(first - second)
    return float(torch.tensor(found).std())


def top_sets(scores: Tensor, trials: int) -> Tensor:
    """Sets [m, k] of the sources with the lowest scores: `trials` sizes, evenly from none to all."""
    sources = len(scores)
    sizes = torch.tensor(sorted({round(i * sources / max(1, trials - 1)) for i in range(trials)}))
    rank = torch.empty(sources, dtype=torch.long)
    rank[scores.cpu().argsort(stable=True)] = torch.arange(sources)
    chosen: Tensor = rank < sizes[:, None]
    return chosen.float()
