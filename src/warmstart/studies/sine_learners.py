"""Learners that see the data of other tasks, beside fusion, which does not: MAML and Per-FedAvg on sines.

Per-FedAvg (Fallah, Mokhtari and Ozdaglar, 2020), first order: a round sends the start w to some clients, each takes
`LOCAL` steps of its own, and what comes back is averaged:

    phi = w_t - inner * grad L(w_t; rows),   w_t <- w_t - outer * grad L(phi; other rows)

Tasks and rows are drawn afresh from the family all the time, which is more than the pool's tasks. How many steps of
which rate adapt a start to rows of a new task is chosen on the pool's tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from warmstart.core import Params, functional
from warmstart.core.trees import expand, tree_map
from warmstart.engine.noise import generator
from warmstart.estimators.model_fusion import relative_error
from warmstart.fusion import few_shot
from warmstart.fusion.network import Network, make_network, run_models
from warmstart.learners import maml
from warmstart.models.mlp import MLP, seeded
from warmstart.studies import sines
from warmstart.studies.sine_zoo import SPAN, UNITS
from warmstart.tasks import sine

MAML, MAML_DEEP, FEDERATED = "maml [1-100-1]", "maml [1-40-40-1]", "per_fedavg [1-100-1]"
HIDDEN: dict[str, tuple[int, ...]] = {MAML: (UNITS,), MAML_DEEP: (40, 40), FEDERATED: (UNITS,)}
SHOT, CLIENTS, LOCAL, RATE = 10, 25, 5, 0.01
OUTER = 0.003  # of the clients; with 0.01 the training of seed 3 diverged
TRIALS = tuple((lr, steps) for lr in (1e-3, 3e-3, 1e-2, 3e-2) for steps in (1, 5, 20, 100))
_PAPER = {
    MAML: (0.446, 0.281, 0.161, 0.149, 0.142),
    MAML_DEEP: (0.258, 0.022, 0.014, 0.014, 0.012),
    FEDERATED: (0.356, 0.146, 0.046, 0.045, 0.032),
}
PUBLISHED = {(name, 10 * k): f"paper {error:.3f}" for name, each in _PAPER.items() for k, error in enumerate(each)}


class Start(NamedTuple):
    """Where a new task begins."""

    network: Network
    params: Params


def learn_start(name: str, family: sine.Family, seed: int, iterations: int) -> Start:
    """By `iterations` meta-updates, or as many local steps of each client."""
    with seeded(seed):
        module = MLP(1, HIDDEN[name], 1)
    network = make_network(module)
    if name == FEDERATED:
        return Start(network, average_clients(network, functional(module).params, family, seed, iterations // LOCAL))
    training = sines.Training(family, SHOT, iterations, CLIENTS, SHOT, HIDDEN[name])
    cfg = maml.Config(inner_lr=RATE, inner_steps=1)
    return Start(network, sines.fit(maml.build, cfg, training, seed, torch.device("cpu"))[1].theta)


def average_clients(network: Network, start: Params, family: sine.Family, seed: int, rounds: int) -> Params:
    draw = generator(seed, 60)

    def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return (network.apply(params, x).squeeze(-1) - y).square().mean()

    gradient = torch.func.grad(loss)

    def local(params: Params, x: Tensor, y: Tensor) -> Params:
        """x [LOCAL, 2, SHOT, 1]: rows for the inner and for the outer step."""
        for k in range(LOCAL):
            inner = gradient(params, x[k, 0], y[k, 0])
            phi = {name: value - RATE * inner[name] for name, value in params.items()}
            outer = gradient(phi, x[k, 1], y[k, 1])
            params = {name: value - OUTER * outer[name] for name, value in params.items()}
        return params

    for _ in range(rounds):
        tasks = sine.parameters(family, CLIENTS, draw)
        x = SPAN[0] + (SPAN[1] - SPAN[0]) * torch.rand(CLIENTS, LOCAL * 2 * SHOT, generator=draw)
        shape = (CLIENTS, LOCAL, 2, SHOT)
        parts = x.reshape(*shape, 1), sine.curve(tasks, x).reshape(shape)
        start = tree_map(lambda value: value.mean(0), torch.func.vmap(local, (None, 0, 0))(start, *parts))
    return {name: value.detach() for name, value in start.items()}


def judge_learners(
    names: Sequence[str],
    family: sine.Family,
    seen: Tensor,
    unseen: Tensor,
    asked: Mapping[int, tuple[Tensor, Tensor]],
    seed: int,
    iterations: int,
    say: Callable[[str], None],
) -> dict[tuple[str, int], Tensor]:
    """Learner and shots -> relative error of each unseen task; `asked` has the rows by shots."""
    x = torch.linspace(*SPAN, 200)[:, None]
    scores = {}
    for name in names:
        say(name)
        start = learn_start(name, family, seed, iterations)
        for shots, (inputs, told) in asked.items():
            trial = choose_trial(start, seen, shots, seed) if shots else (0.0, 0)
            scores[name, shots] = relative_error(tune(start, inputs, told, trial, x), _truth(unseen, x))
    return scores


def choose_trial(start: Start, seen: Tensor, shots: int, seed: int) -> tuple[float, int]:
    """Rate and steps that would have served the seen tasks best."""
    x = torch.linspace(*SPAN, 50)[:, None]
    rows = SPAN[0] + (SPAN[1] - SPAN[0]) * torch.rand(len(seen), shots, 1, generator=generator(seed, 61, shots))
    told, truth = sine.curve(seen, rows[..., 0]), _truth(seen, x)

    def error(trial: tuple[float, int]) -> float:
        found = float(relative_error(tune(start, rows, told, trial, x), truth).mean())
        return found if found == found else float("inf")

    return min(TRIALS, key=error)


def tune(start: Start, asked: Tensor, told: Tensor, trial: tuple[float, int], x: Tensor) -> Tensor:
    """[tasks, P, 1] what is said of x after rows asked [tasks, k, 1] and told [tasks, k]."""
    lr, steps = trial
    begin: Params = expand(start.params, len(asked))
    return run_models(start.network, few_shot.fine_tune(start.network, begin, asked, told[..., None], steps, lr), x)


def _truth(tasks: Tensor, x: Tensor) -> Tensor:
    return sine.curve(tasks, x[:, 0].expand(len(tasks), -1)).double()[..., None]
