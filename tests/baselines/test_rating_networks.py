"""NeuMF and DeepFM: what they say by hand, and new users against ridge regression."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.testing import assert_close

from warmstart.baselines import deepfm, neumf
from warmstart.baselines.rating_networks import Rows, Training, join

USERS, ITEMS, D = 5, 7, 3


@pytest.fixture
def draw():
    return torch.Generator().manual_seed(4)


def moved(shared, draw):
    """Weights away from where they start, so that none is 0 or 1."""
    return {name: value + 0.3 * torch.randn(value.shape, generator=draw) for name, value in shared.items()}


def layers(shared, x):
    """A hidden layer and a head, by numpy."""
    parts = {name.removeprefix("deep."): value.numpy() for name, value in shared.items() if name.startswith("deep.")}
    hidden = np.maximum(parts["body.0.weight"] @ x + parts["body.0.bias"], 0)
    return (parts["head.weight"] @ hidden + parts["head.bias"])[0]


def test_neumf_is_a_product_and_a_network(draw):
    say, shared = neumf.network(ITEMS, neumf.Config(D, (4,)), seed=1)
    shared, own = moved(shared, draw), torch.randn(USERS, 2 * D, generator=draw)
    item = torch.tensor([0, 6, 3, 3, 1])
    said = say(shared, own, torch.zeros(USERS, 0), item)
    for u, i in enumerate(item):
        product = sum(float(own[u, k] * shared["product"][i, k] * shared["weight"][k]) for k in range(D))
        pair = np.concatenate([own[u, D:], shared["items"][i]])
        assert float(said[u]) == pytest.approx(product + layers(shared, pair), rel=1e-4)


def test_deepfm_is_every_pair_of_features_and_a_network(draw):
    content, about = torch.randn(ITEMS, 2, generator=draw), torch.randn(USERS, 4, generator=draw)
    say, shared = deepfm.network(content, 4, deepfm.Config(D, (4,)), seed=1)
    shared, own = moved(shared, draw), torch.randn(USERS, 1 + D, generator=draw)
    item = torch.tensor([0, 6, 3, 3, 1])
    said = say(shared, own, about, item)
    for u, i in enumerate(item):
        x = np.concatenate([[1.0, 1.0], about[u], content[i]])
        w = np.concatenate([own[u, :1], shared["item_w"][i, None], shared["profile_w"], shared["content_w"]])
        v = np.concatenate([own[u, None, 1:], shared["item_v"][i, None], shared["profile_v"], shared["content_v"]])
        pairs = sum(x[f] * x[g] * (v[f] @ v[g]) for f in range(len(x)) for g in range(f))
        fields = [(x[part, None] * v[part]).sum(0) for part in (slice(1), slice(1, 2), slice(2, 6), slice(6, 8))]
        assert float(said[u]) == pytest.approx(w @ x + pairs + layers(shared, np.concatenate(fields)), rel=1e-4)


@pytest.mark.parametrize("kind", ["neumf", "deepfm"])
def test_without_layers_a_new_user_is_a_ridge_regression(draw, kind):
    content, about = torch.randn(ITEMS, 2, generator=draw), torch.randn(2, 4, generator=draw)
    if kind == "neumf":
        say, shared = neumf.network(ITEMS, neumf.Config(D, ()), seed=1)
        own = 2 * D
    else:
        say, shared = deepfm.network(content, 4, deepfm.Config(D, ()), seed=1)
        own = 1 + D
    shared = moved(shared, draw)
    middle = torch.randn(1, own, generator=draw).expand(2, -1)
    user, item = torch.tensor([0, 0, 0, 0, 0, 1, 1]), torch.tensor([0, 2, 3, 5, 6, 1, 3])
    rows = Rows(user, item, torch.randn(7, generator=draw))
    found = join(say, shared, middle, about, rows, Training(rate=3e-2, ridge=0.7, steps=400))
    for u in range(2):
        mine = item[user == u]
        base = say(shared, torch.zeros(len(mine), own), about[u].expand(len(mine), -1), mine)
        unit = [say(shared, row.expand(len(mine), -1), about[u].expand(len(mine), -1), mine) for row in torch.eye(own)]
        x = torch.stack(unit, 1) - base[:, None]
        left = rows.left[user == u] - base - x @ middle[u]
        step = Ridge(0.7, fit_intercept=False).fit(x.double().numpy(), left.double().numpy()).coef_
        assert_close(found[u].double(), middle[u].double() + torch.from_numpy(step), rtol=1e-3, atol=2e-3)
