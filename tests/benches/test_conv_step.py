"""The picture bench: the loop it is held against takes the same meta-step."""

import torch

from warmstart.benches import peers
from warmstart.benches.conv_step import WORKLOADS, batches, network
from warmstart.core import functional
from warmstart.core.trees import take, tree_map
from warmstart.engine.stage import LOOPED, PLAIN, TRACED

CPU = torch.device("cpu")


def double(leaf):
    return leaf.double() if leaf.is_floating_point() else leaf


def test_the_loop_takes_our_meta_step():
    workload = WORKLOADS[1]
    few = tree_map(double, take(batches(CPU)[0].tasks, slice(0, 2)))
    module = network(CPU).double()
    model = functional(module)
    workload.peers["loop"](module, workload.config)(peers.separate(few))
    theirs = {name: value.grad for name, value in module.named_parameters()}
    for stage in (PLAIN, TRACED, LOOPED):
        learner = workload.build(model, workload.likelihood, workload.config, stage)
        delta, _ = learner.meta_grad(learner.init(model.params), few, ())
        for name, grad in delta.grad.items():
            torch.testing.assert_close(grad / 2, theirs[name], rtol=1e-8, atol=1e-10)


def test_pictures_are_those_of_five_classes():
    feed = batches(CPU)[0]
    assert feed.tasks.support.x["pixels"].shape == (32, 5, 1, 28, 28)
    assert feed.tasks.query.y.shape == (32, 75)
    assert feed.tasks.query.y.unique().tolist() == [0, 1, 2, 3, 4]
