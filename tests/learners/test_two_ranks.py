"""Data-parallel meta-updates: of the conformance suite's learners, and of a whole training."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from warmstart.engine.files import read_tensors

SCRIPT = """
import sys
from pathlib import Path
import numpy as np, pandas as pd, torch
sys.path.insert(0, {folder!r})
from warmstart.core.trees import named_leaves, take
from warmstart.engine.files import write_tensors
from warmstart.engine.meta import Feed, meta_update
from warmstart.engine.ranks import join_ranks
from warmstart.estimators.meta_learner import MetaLearner
from warmstart.tasks.roles import Roles
from warmstart.training.train import Plan
import test_conformance as suite

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
built = {{param.id: (param.values[1], *suite.build(*param.values)) for param in suite.ONCE}}  # alone, as all are
rank, ranks = join_ranks()
part = [slice(0, 2), slice(2, None)][rank] if ranks == 2 else slice(None)
ended = {{}}
for name, (likelihood, learner, state) in built.items():
    feed = suite.tasks(likelihood), suite.train(learner, suite.TASKS)
    ended[name] = meta_update(learner)(state, Feed(*take(feed, part)))
write_tensors(Path({out!r}) / f"update {{rank}} of {{ranks}}", named_leaves(ended))

draw = np.random.default_rng(0)
user = np.repeat(np.arange(30), 9)
x = draw.normal(size=len(user))
rows = pd.DataFrame({{"user": user, "x": x, "y": np.repeat(draw.normal(size=30), 9) * x}})
plan = Plan(steps=4, every=2, tasks=7, support=4, query=4)
model = MetaLearner("maml", plan=plan, trials=1, device="cpu").fit(rows, Roles("user", "y"))
write_tensors(Path({out!r}) / f"training {{rank}} of {{ranks}}", named_leaves(model.fitted.state.theta))
if ranks == 2:
    torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With what one process wrote, and each of two ranks."""
    found = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = SCRIPT.format(folder=str(Path(__file__).parent), out=str(found))
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    places = [{"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    started = [subprocess.Popen([sys.executable, "-c", script], env=common | place) for place in [*places, {}]]
    assert [process.wait(timeout=300) for process in started] == [0, 0, 0]
    return found


@pytest.mark.parametrize(("what", "parts"), [("update", 40), ("training", 4)])
def test_two_ranks_are_one_process(folder, what, parts):
    """Every learner in turn: ranks with two and three of the tasks end, both, with the state of one process with all
    five. A training, whose meta-batches of seven tasks ranks divide."""
    expected, _ = read_tensors(folder / f"{what} 0 of 1")
    assert len({name.split("/")[0] for name in expected}) > parts  # learners, or tensors
    for rank in range(2):
        found, _ = read_tensors(folder / f"{what} {rank} of 2")
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
