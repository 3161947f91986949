"""First-order affinities, measured along one joint training: gradient cosine and task affinity grouping.

    cosine      score_j = -mean over looks of cos(grad L_j, grad L_t)
    tag         score_j = -mean over looks of 1 - L_t(phi - eta grad L_j) / L_t(phi)

The gradients of all tasks at a look are one call; the looks are spread over the training. Fifty et al., 2021, for both.
The number of sources is chosen on validation rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, vmap

from warmstart.core import Batch, Params, task_loss
from warmstart.core.trees import dot, take
from warmstart.engine.noise import generator
from warmstart.maths.optim import descend
from warmstart.selection.final import Config, Fitted, choose, top_sets
from warmstart.selection.measures import Measure
from warmstart.selection.training import LIKELIHOODS, network, shares, train_models
from warmstart.selection.training import Config as Training
from warmstart.tasks.transfer import Transfer

LOOKS = 8
ROWS = 256  # of each task at a look


def looks(transfer: Transfer, training: Training, seed: int, rate: float) -> tuple[Tensor, Tensor]:
    """Scores [k] by cosine and by lookahead with that rate, averaged over a joint training."""
    model, device, tasks = network(transfer, training, seed), transfer.pool.y.device, len(transfer.names)
    loss = task_loss(model, LIKELIHOODS[transfer.kind])
    joint = shares(transfer, torch.ones(1, transfer.sources, device=device), training.balance)
    found: list[tuple[Tensor, Tensor]] = []

    def look(phi: Params) -> None:
        now, rows = take(phi, 0), _rows(transfer, seed, len(found))
        slopes = vmap(grad(loss), in_dims=(None, 0))(now, rows)
        own, others = take(slopes, tasks - 1), take(slopes, slice(0, tasks - 1))
        norms = vmap(dot)(slopes, slopes).sqrt()
        cosine = vmap(dot, in_dims=(0, None))(others, own) / (norms[:-1] * norms[-1]).clamp(min=1e-12)
        target = take(rows, tasks - 1)
        moved = [loss(descend(now, take(others, j), rate), target) for j in range(tasks - 1)]
        found.append((-cosine.cpu(), (torch.stack(moved) / loss(now, target) - 1).cpu()))

    train_models(transfer, joint, training, seed, look=look, every=max(1, training.steps // LOOKS))
    cosines, aheads = zip(*found, strict=True)
    return torch.stack(cosines).mean(0), torch.stack(aheads).mean(0)


def _rows(transfer: Transfer, seed: int, look: int) -> Batch:
    """As many rows of every task [k + 1, ROWS]."""
    pool = transfer.pool
    u = torch.rand(len(transfer.names), ROWS, generator=generator(seed, 31, look)).to(pool.y.device)
    lengths = pool.lengths[:, None]
    index = pool.offsets[:-1, None] + torch.minimum((u * lengths).long(), lengths - 1)
    x, y, w = take((pool.x, pool.y, pool.w), index)
    x["head"] = torch.arange(len(index), device=index.device)[:, None].expand_as(index)
    return Batch(x, y, w, torch.ones_like(w))


def fit_cosine(
    transfer: Transfer,
    measure: Measure,
    cfg: Config,
    trials: int,
    seed: int,
    training: Training = Training(balance=0.0),
) -> Fitted:
    ranked = looks(transfer, training, seed, 0.1)[0]
    return choose(transfer, top_sets(ranked, trials), measure, cfg, seed)


def fit_tag(
    transfer: Transfer,
    measure: Measure,
    cfg: Config,
    trials: int,
    seed: int,
    training: Training = Training(balance=0.0),
    rate: float = 0.1,
) -> Fitted:
    ranked = looks(transfer, training, seed, rate)[1]
    return choose(transfer, top_sets(ranked, trials), measure, cfg, seed)
