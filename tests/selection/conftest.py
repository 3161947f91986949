"""Planted transfers: sources that follow the target's rule, and sources that contradict it."""

import numpy as np
import pytest
import torch

from warmstart.tasks.labelled_texts import TextRows
from warmstart.tasks.text_tasks import TextTask, make_text_transfer
from warmstart.tasks.transfer import Rows, make_transfer
from warmstart.tasks.words import words


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


def texts(rows, seed, flip=False):
    """A text is good when its first two words come in order, which no count of words says."""
    draw = np.random.default_rng(seed)
    found, labels = [], []
    for _ in range(rows):
        first, fill = bool(draw.random() < 0.4), draw.choice(["so", "it", "is", "then"], draw.integers(1, 4))
        found.append(" ".join(["sun rain" if first else "rain sun", *fill]))
        labels.append("good" if first != flip else "bad")
    return TextRows(tuple(found), tuple(labels))


@pytest.fixture(scope="session")
def written():
    """Transfers of texts: two sources that help and two that contradict."""

    def make(apart=False, rows=60):
        tasks = {f"source {i}": TextTask(texts(rows + 5 * i, 10 + i, flip=i > 1)) for i in range(4)}
        tasks["target"] = TextTask(texts(20, 3), texts(80, 4), texts(90, 5))
        return make_text_transfer(tasks, "target", words, apart)

    return make
