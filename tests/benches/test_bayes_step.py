"""The loop that GEM is timed against takes the same step, and the stack is the faster one."""

import torch

from warmstart.benches import bayes_step, peers
from warmstart.benches.bayes_step import CONFIG, WORKLOADS, run
from warmstart.benches.meta_step import batches, network
from warmstart.benches.timing import Plan
from warmstart.benches.updates import RATIO, stepwise
from warmstart.core import functional
from warmstart.core.trees import pack, tree_map
from warmstart.engine.noise import generator, train_noise
from warmstart.engine.stage import TRACED
from warmstart.learners import gem
from warmstart.models.likelihoods import squared

CPU = torch.device("cpu")


def test_the_loop_has_the_gradient_of_the_learner():
    module, tasks = network(CPU, torch.float64), batches(CPU, torch.float64)[0].tasks
    model = functional(network(CPU, torch.float64))
    learner = gem.build(model, squared, CONFIG, TRACED)
    noise = tree_map(torch.Tensor.double, train_noise(learner.noise, len(tasks.key), generator(3)))
    delta, _ = learner.meta_grad(learner.init(model.params), tasks, noise)

    # the same numbers in the order in which the loop asks for them: task, posterior, step, draw, parameter
    draws = torch.stack([noise["support"], noise["query"]], 1).reshape(-1)
    taken = 0

    def normal(like):
        nonlocal taken
        taken += like.numel()
        return draws[taken - like.numel() : taken].reshape(like.shape)

    peers.gem_loop(module, CONFIG, normal)(peers.separate(tasks))
    assert taken == len(draws)
    found = [parameter.grad for parameter in module.parameters()]
    half = len(found) // 2
    for part, expected in ((found[:half], delta.grad["mean"]), (found[half:], delta.grad["log_sd"])):
        torch.testing.assert_close(pack(part), expected / len(tasks.key), rtol=1e-10, atol=1e-10)


def test_a_stack_of_tasks_and_draws_beats_a_loop_over_them(monkeypatch):
    monkeypatch.setattr(bayes_step, "ways", lambda device: {"traced": stepwise(TRACED)})
    results = run("cpu", plan=Plan(rounds=1, repeats=2, seconds=0.0), workloads=WORKLOADS)
    (ratio,) = [row for row in results.rows if row.metric == RATIO]
    assert (ratio.method, ratio.peer) == ("traced", "loop") and ratio.mean > 6
