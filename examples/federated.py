"""A server and clients learn one prior together and exchange nothing but posteriors, as safetensors files.

    python examples/federated.py --clients 4 --rounds 5 FOLDER

Every client is a process of its own with sines that only it sees. In each round it reads the prior,
infers its posteriors and writes them; the server checks and merges them and writes the next prior. At
the end the server says how far its prior is from the one that a single process with all data learns.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from warmstart.core import Task, functional
from warmstart.core.trees import add, concat, fill, leaves, named_leaves
from warmstart.engine.files import read_tensors, write_tensors
from warmstart.engine.meta import Feed, meta_update
from warmstart.engine.noise import generator, train_noise
from warmstart.learners import gem
from warmstart.learners.gem import Posteriors, check_posteriors, local_posterior, merge_posteriors
from warmstart.maths.mean_field import Gaussian
from warmstart.maths.outer import State
from warmstart.models.likelihoods import squared
from warmstart.models.mlp import MLP, seeded
from warmstart.tasks import sine

CONFIG = gem.Config(inner_steps=3, samples=4, inner_lr=3e-3)
PATIENCE = 120.0  # seconds that one waits for another's file


def model():
    """What all agree on beforehand: the network, whose first parameters are the first prior's mean."""
    with seeded(0):
        return functional(MLP(1, (20, 20), 1))


def private_data(client: int) -> Task:
    """One sine, 10 points shown and 10 to be judged by, that never leave the client."""
    return sine.draw(sine.DEFAULT, 1, 10, 10, generator(1, client))


def noise_of(client: int, round_: int) -> dict[str, Tensor]:
    learner = gem.build(model(), squared, CONFIG)
    drawn: dict[str, Tensor] = train_noise(learner.noise, 1, generator(2, client, round_))
    return drawn


def wait_for(path: Path) -> dict[str, Tensor]:
    """A file appears whole, because it is written beside its place and then renamed."""
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            sys.exit(f"{path.name} did not come within {PATIENCE:.0f} seconds")
        time.sleep(0.02)
    return read_tensors(path)[0]


def client(folder: Path, number: int, rounds: int) -> None:
    infer = local_posterior(model(), squared, CONFIG)
    state = gem.build(model(), squared, CONFIG).init(model().params)
    for round_ in range(rounds):
        prior = fill(state.theta, wait_for(folder / f"prior-{round_}.safetensors"))
        found = infer(state._replace(theta=prior), private_data(number), noise_of(number, round_))
        write_tensors(folder / f"posterior-{round_}-{number}.safetensors", named_leaves(found))


def server(folder: Path, clients: int, rounds: int) -> State:
    learner, merge = gem.build(model(), squared, CONFIG), merge_posteriors(CONFIG)
    state = learner.init(model().params)
    flat = torch.zeros(1, *state.theta["mean"].shape)
    like = Posteriors(Gaussian(flat, flat), Gaussian(flat, flat), torch.zeros(1, dtype=torch.int64))
    for round_ in range(rounds):
        write_tensors(folder / f"prior-{round_}.safetensors", named_leaves(state.theta))
        total = None
        for number in range(clients):
            found = fill(like, wait_for(folder / f"posterior-{round_}-{number}.safetensors"))
            check_posteriors(state, found, f"the posterior of client {number}")
            delta = merge(state, found)
            total = delta if total is None else add(total, delta)
        state = learner.update(state, total, torch.tensor(float(clients)))
    return state


def alone(clients: int, rounds: int) -> State:
    """The same in one process that sees all data."""
    learner = gem.build(model(), squared, CONFIG)
    update, state = meta_update(learner), learner.init(model().params)
    tasks = concat([private_data(number) for number in range(clients)])
    for round_ in range(rounds):
        noise = concat([noise_of(number, round_) for number in range(clients)])
        state, _ = update(state, Feed(tasks, noise))
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", type=int, help="be this client instead of the server")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.client is not None:
        client(given.folder, given.client, given.rounds)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    common = [sys.executable, __file__, str(given.folder), "--rounds", str(given.rounds), "--client"]
    processes = [subprocess.Popen([*common, str(number)]) for number in range(given.clients)]
    try:
        found = server(given.folder, given.clients, given.rounds)
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    for process in processes:
        process.wait()
    expected = alone(given.clients, given.rounds)
    pairs = zip(leaves(found.theta), leaves(expected.theta), strict=True)
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    print(f"{given.clients} clients, {given.rounds} rounds: within {apart:.1e} of one process that sees all data")


if __name__ == "__main__":
    main()
