"""Label models: expectation-maximisation against one written with loops, and functions whose accuracy is known."""

import builtins

import numpy as np
import pytest

from warmstart.baselines import label_model
from warmstart.core import InputError

BALANCE = np.array([0.5, 0.3, 0.2])


def votes_of(rows=400, accuracy=(0.9, 0.75, 0.6, 0.85, 0.4), cover=0.6, seed=0):
    """Functions that are right so often, else wrong at random, and vote on a share of the rows."""
    draw = np.random.default_rng(seed)
    truth = draw.choice(3, rows, p=BALANCE)
    votes = np.full((rows, len(accuracy)), -1)
    for j, share in enumerate(accuracy):
        wrong = (truth + draw.integers(1, 3, rows)) % 3
        vote = np.where(draw.random(rows) < share, truth, wrong)
        votes[:, j] = np.where(draw.random(rows) < cover, vote, -1)
    return truth, votes


def by_loops(votes, balance, smooth, sweeps):
    """The same model, row by row and function by function."""
    rows, functions = votes.shape
    classes = len(balance)
    q = np.zeros((rows, classes))
    for i in range(rows):
        counts = [list(votes[i]).count(c) for c in range(classes)]
        for c in range(classes):
            q[i, c] = (counts[c] == max(counts)) / counts.count(max(counts))
    for _ in range(sweeps):
        tables = [[dict.fromkeys(range(-1, classes), smooth) for _ in range(classes)] for _ in range(functions)]
        for j in range(functions):
            for c in range(classes):
                for i in range(rows):
                    tables[j][c][votes[i, j]] += q[i, c]
                whole = sum(tables[j][c].values())
                tables[j][c] = {v: count / whole for v, count in tables[j][c].items()}
        for i in range(rows):
            chance = [
                balance[c] * np.prod([tables[j][c][votes[i, j]] for j in range(functions)]) for c in range(classes)
            ]
            q[i] = np.array(chance) / sum(chance)
    return q, tables


def test_expectation_maximisation_is_that_of_the_loops():
    _, votes = votes_of(40)
    q, tables = label_model.fit(votes, BALANCE, label_model.Config(smooth=0.3, sweeps=4))
    expected, cells = by_loops(votes, BALANCE, 0.3, 4)
    np.testing.assert_allclose(q, expected, atol=1e-10)
    for j in range(votes.shape[1]):
        for c in range(3):
            np.testing.assert_allclose(tables[j, c], [cells[j][c][v] for v in range(-1, 3)], atol=1e-10)


def test_it_learns_whom_to_trust():
    truth, votes = votes_of(4000)
    q, tables = label_model.fit(votes, BALANCE)
    right = np.array([[tables[j, c, 1 + c] / (1 - tables[j, c, 0]) for c in range(3)] for j in range(5)]).mean(1)
    np.testing.assert_allclose(right, [0.9, 0.75, 0.6, 0.85, 0.4], atol=0.06)
    assert (q.argmax(1) == truth).mean() > (label_model.majority(votes, 3).argmax(1) == truth).mean() + 0.03


def test_majority_by_hand():
    votes = np.array([[0, 0, 1], [1, 2, -1], [-1, -1, -1]])
    expected = [[1, 0, 0], [0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(label_model.majority(votes, 3), expected)


def test_snorkel_agrees_where_functions_are_good():
    pytest.importorskip("snorkel")
    truth, votes = votes_of(1500, accuracy=(0.9, 0.85, 0.8, 0.9))
    said = label_model.metal(votes, BALANCE).argmax(1)
    ours = label_model.fit(votes, BALANCE)[0].argmax(1)
    covered = (votes >= 0).any(1)
    assert (said == truth)[covered].mean() > 0.85 and (said == ours)[covered].mean() > 0.9


def test_without_snorkel_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name.startswith("snorkel"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InputError, match=r"warmstart\[weak\]"):
        label_model.metal(votes_of(10)[1], BALANCE)


def test_votes_of_unknown_classes_are_refused():
    with pytest.raises(InputError, match="votes from -1 to 2"):
        label_model.fit(np.array([[3]]), BALANCE)
