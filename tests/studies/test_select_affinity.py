"""The study of affinities on a planted transfer, where half of the sources contradict the target."""

import torch

from warmstart.selection import task_model, training
from warmstart.studies.select_affinity import (
    AVERAGE,
    ERROR,
    OURS,
    OVERLAP,
    RANK,
    SIGN,
    SIZES,
    Preset,
    convergence,
    helps,
)
from warmstart.tasks.transfer import Rows, make_transfer


def planted():
    draw = torch.Generator().manual_seed(0)
    rule = torch.randn(4, generator=draw)

    def sample(count, sign):
        x = torch.randn(count, 4, generator=draw)
        y = (sign * (x @ rule) + 0.5 * torch.randn(count, generator=draw) > 0.3).float()
        return Rows(x, y, torch.zeros(count, dtype=torch.long))

    sources = [sample(200, sign) for sign in (1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0)]
    return make_transfer(sources, sample(40, 1.0), sample(400, 1.0), sample(50, 1.0))


def test_signs_and_ranks_are_found_where_sources_differ():
    short = training.Config(hidden=(8,), steps=60, batch=64, balance=0.0)
    cfg = task_model.Config(size=3, starts=1, held_out=8, training=short)
    chosen = Preset(8, 6, (6, 20), cfg)
    found = helps(planted(), chosen, 0)
    assert set(found) == {(name, metric, size) for name in (OURS, AVERAGE) for metric in (SIGN, RANK) for size in SIZES}
    assert sum(found[OURS, SIGN, size] for size in SIZES) / 4 > 0.7
    assert sum(found[OURS, RANK, size] for size in SIZES) / 4 > 0.7
    more = convergence(planted(), chosen, 0)
    assert more[OURS, OVERLAP, 20] == 7.0  # there are seven sources
    assert more[OURS, ERROR, 20] < more[OURS, ERROR, 6] and more[OURS, f"{RANK}, five sources", 20] > 0.7
