"""Ranking scores against loops over all orders, and against scikit-learn."""

import itertools
import math

import pytest
import torch
from sklearn.metrics import ndcg_score, roc_auc_score

from warmstart.core import Batch, InputError, make_batch
from warmstart.metrics.errors import log_loss
from warmstart.metrics.ranking import auc, ndcg, pooled_auc, weighted_entropy


def stack(y, mask=None):
    y = torch.tensor(y, dtype=torch.float64)
    return make_batch({}, y, mask=None if mask is None else torch.tensor(mask, dtype=torch.float64))


def by_all_orders(score, y, k):
    """The mean over all orders that sort the scores of sum gain / log2(1 + place)."""
    found = []
    for order in itertools.permutations(range(len(y))):
        if all(score[a] >= score[b] for a, b in itertools.pairwise(order)):
            found.append(sum((2 ** y[i] - 1) / math.log2(2 + place) for place, i in enumerate(order[:k])))
    best = sum((2**v - 1) / math.log2(2 + place) for place, v in enumerate(sorted(y, reverse=True)[:k]))
    return sum(found) / len(found) / best


@pytest.mark.parametrize("k", [1, 2, 3, 9])
@pytest.mark.parametrize("score", [[3, 3, 1, 3, 2], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5], [2, 1, 1, 2, 1]])
def test_ndcg_is_the_mean_over_all_orders_of_ties(score, k):
    y = [1.0, 4.0, 5.0, 2.0, 2.0]
    found = ndcg(torch.tensor([score], dtype=torch.float64), stack([y]), k)
    assert float(found) == pytest.approx(by_all_orders(score, y, k))


def test_ndcg_agrees_with_scikit_learn_without_ties():
    y, score = torch.randint(1, 6, (20, 8)).double(), torch.rand(20, 8).double()
    found = ndcg(score, make_batch({}, y), 4)
    theirs = [ndcg_score((2**a - 1)[None], b[None], k=4) for a, b in zip(y.numpy(), score.numpy(), strict=True)]
    assert found.tolist() == pytest.approx(theirs)


def test_padding_changes_nothing_and_single_items_are_not_judged():
    y = [[5.0, 1.0, 3.0], [5.0, 0.0, 0.0], [2.0, 4.0, 0.0]]
    mask = [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    score = torch.tensor([[1.0, 2.0, 3.0], [1.0, 9.0, 9.0], [2.0, 1.0, 9.0]], dtype=torch.float64)
    found = ndcg(score, stack(y, mask), 2)
    assert float(found[0]) == pytest.approx(by_all_orders([1, 2, 3], [5, 1, 3], 2))
    assert found[1].isnan() and float(found[2]) == pytest.approx(by_all_orders([2, 1], [2, 4], 2))
    assert ndcg(torch.rand(1, 3), stack([[0.0, 0.0, 0.0]]), 2).isnan()  # nothing liked, nothing to order
    with pytest.raises(InputError, match="at least one place"):
        ndcg(score, stack(y, mask), 0)


def test_auc_within_and_over_users():
    y = (torch.rand(6, 9) > 0.6).double()
    y[0] = 1.0
    score = torch.randint(0, 4, (6, 9)).double()  # with ties
    mask = torch.ones(6, 9).double()
    mask[2, 5:] = 0
    batch = make_batch({}, y, mask=mask)
    found = auc(score, batch)
    assert found[0].isnan()
    for i in range(1, 6):
        kept = mask[i] > 0
        assert float(found[i]) == pytest.approx(roc_auc_score(y[i][kept], score[i][kept]))
    assert pooled_auc(score, batch) == pytest.approx(roc_auc_score(y[mask > 0], score[mask > 0]))


def test_weighted_entropy_is_a_hand_written_loop_and_log_loss_at_equal_weights():
    batch = Batch({}, torch.tensor([[1.0, 0.0, 1.0]]), torch.ones(1, 3), torch.tensor([[1.0, 1.0, 0.0]]))
    p = torch.tensor([[0.7, 0.4, float("nan")]])
    expected = (-0.9 * math.log(0.7) - 0.1 * math.log(0.6)) / 2
    assert float(weighted_entropy(p, batch)) == pytest.approx(expected, rel=1e-5)
    assert float(weighted_entropy(p, batch, (1.0, 1.0))) == pytest.approx(float(log_loss(p, batch)), rel=1e-6)
    assert torch.isfinite(weighted_entropy(torch.zeros(1, 3), batch)).all()
