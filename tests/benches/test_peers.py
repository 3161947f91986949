"""Every peer makes the same meta-update as ours, so that their times can be compared."""

import copy
from dataclasses import replace

import pytest
import torch

from warmstart.benches import peers
from warmstart.benches.meta_step import WORKLOADS, batches, network
from warmstart.core import functional
from warmstart.engine.meta import sum_meta_grad
from warmstart.learners import maml, reptile
from warmstart.models.likelihoods import squared

OFF_NEUTRAL = {maml.Config: {"inner_lr": 0.07}, reptile.Config: {"inner_lr": 0.03, "outer_lr": 0.4}}
CASES = [pytest.param(w, name, id=f"{w.name}, {name}") for w in WORKLOADS for name in w.peers]


def problem():
    place = torch.device("cpu"), torch.float64
    return network(*place), batches(*place)[1]


@pytest.mark.parametrize(("workload", "name"), CASES)
def test_a_peer_takes_our_meta_step(workload, name):
    if name != "loop":
        pytest.importorskip(name)
    cfg = replace(workload.config, **OFF_NEUTRAL[type(workload.config)])
    module, feed = problem()
    model = functional(module)
    learner = workload.build(model, squared, cfg)
    state = learner.init(model.params)
    delta, _ = sum_meta_grad(learner, state, feed)

    theirs = copy.deepcopy(module)
    workload.peers[name](theirs, cfg)(peers.separate(feed.tasks))
    if workload.build is maml.build:
        found = {key: value.grad for key, value in theirs.named_parameters()}
        expected = {key: value / len(feed.tasks.key) for key, value in delta.grad.items()}
    else:
        found = {key: value.detach() for key, value in theirs.named_parameters()}
        expected = learner.update(state, delta, torch.tensor(25.0, dtype=torch.float64)).theta
    assert max(value.abs().max() for value in expected.values()) > 1e-2
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["loop", "higher", "torchopt"])
def test_a_maml_peer_takes_adams_step(name):
    if name != "loop":
        pytest.importorskip(name)
    cfg = maml.Config(outer_lr=0.02)
    module, feed = problem()
    before = copy.deepcopy(module)
    WORKLOADS[0].peers[name](module, cfg)(peers.separate(feed.tasks))
    for old, new in zip(before.parameters(), module.parameters(), strict=True):
        # Adam's first step has the length of the rate wherever there is a gradient
        torch.testing.assert_close(new - old, -0.02 * new.grad / (new.grad.abs() + 1e-8), rtol=1e-9, atol=1e-12)


def test_installed_gives_the_version_or_nothing():
    assert peers.installed("torch").split("+")[0] == torch.__version__.split("+")[0]
    assert peers.installed("no-such-package") == ""
