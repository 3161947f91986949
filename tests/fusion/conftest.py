"""A pool whose functions are known: f_t(x) = sin(x) + t cos(x) + 0.3 t^2, by networks with shuffled hidden units."""

import pandas as pd
import pytest
import torch

from warmstart.fusion.alignment import permute, symmetries
from warmstart.fusion.network import make_network, make_pool
from warmstart.fusion.zoo import make_zoo
from warmstart.models.mlp import MLP

UNITS = 24


def truth(t, x):
    """[n, P] at t [n] and x [P]."""
    t = torch.as_tensor(t, dtype=x.dtype).reshape(-1, 1)
    return torch.sin(x) + t * torch.cos(x) + 0.3 * t**2


def known_stack(t, seed=0):
    """Networks that say f_t: ReLU units with knots over the range, the head by least squares.

    With a tiny ridge: one unit is silent over the whole range, and without it rounding would choose the solution.
    """
    draw = torch.Generator().manual_seed(seed)
    knots = torch.linspace(-3.5, 3, UNITS).double()
    x = torch.linspace(-3, 3, 200).double()
    phi = torch.cat([torch.relu(x[:, None] - knots), torch.ones(200, 1).double()], 1)
    gram = phi.T @ phi + 1e-6 * torch.eye(UNITS + 1).double()
    heads = torch.linalg.solve(gram, phi.T @ truth(t, x).T).T.float()
    n = len(heads)
    params = {
        "body.0.bias": (-knots).float().expand(n, -1),
        "body.0.weight": torch.ones(n, UNITS, 1),
        "head.bias": heads[:, -1:],
        "head.weight": heads[:, None, :-1],
    }
    (hidden,) = symmetries(MLP(1, (UNITS,), 1))
    return permute(params, hidden, torch.stack([torch.randperm(UNITS, generator=draw) for _ in range(n)]))


@pytest.fixture(scope="session")
def network():
    return make_network(MLP(1, (UNITS,), 1))


@pytest.fixture(scope="session")
def times():
    return torch.linspace(-1, 1, 30).double() ** 3 + torch.linspace(-1, 1, 30).double()


@pytest.fixture(scope="session")
def pool(network, times):
    at = (times / times.std())[:, None]
    return make_pool(network, known_stack(times), at, torch.linspace(-3, 3, 64)[:, None])


@pytest.fixture(scope="session")
def zoo(times):
    names = tuple(f"m{i:02d}" for i in range(len(times)))
    return make_zoo(names, known_stack(times), pd.DataFrame({"model": names, "t": times.numpy()}))


@pytest.fixture(scope="session")
def functions():
    return truth
