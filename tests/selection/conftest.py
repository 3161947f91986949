"""Planted transfers: sources that follow the target's rule, and sources that contradict it."""

import pytest
import torch

from warmstart.tasks.transfer import Rows, make_transfer


def planted(helpful=4, harmful=2, rows=300, size=5, seed=0, classes=2):
    """Linear rules; a harmful source has the opposite one. Unequal lengths, two groups, an asymmetric target."""
    draw = torch.Generator().manual_seed(seed)
    rule = torch.randn(size, classes, generator=draw)
    lean = torch.linspace(0.5, 0.0, classes)

    def sample(count, sign):
        x = torch.randn(count, size, generator=draw)
        noise = 0.5 * torch.randn(count, classes, generator=draw)
        y = (sign * x @ rule + lean + noise).argmax(-1)
        group = (x[:, 0] > 0.5).long()
        return Rows(x, y.float() if classes == 2 else y, group)

    sources = [sample(rows + 10 * i, 1.0) for i in range(helpful)] + [sample(rows, -1.0) for _ in range(harmful)]
    kind = "binary" if classes == 2 else "multiclass"
    return make_transfer(sources, sample(40, 1.0), sample(400, 1.0), sample(600, 1.0), kind, classes)


@pytest.fixture(scope="session")
def make_planted():
    return planted
