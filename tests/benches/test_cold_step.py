"""The loop that the stack of users is timed against takes the same step; what a memory costs is told."""

import pytest
import torch

from warmstart.benches import cold_step, neighbours, peers
from warmstart.benches.cold_step import (
    FITTED,
    KNOWN,
    MEMORY,
    SHARE,
    STATE,
    WORKLOADS,
    as_fitted,
    batches,
    memory,
    network,
    run,
    share,
)
from warmstart.benches.timing import Plan
from warmstart.benches.updates import RATIO, TIME, stepwise
from warmstart.core import functional
from warmstart.core.trees import leaves
from warmstart.engine.meta import meta_update
from warmstart.engine.stage import COMPILED, PLAIN
from warmstart.learners import paml
from warmstart.maths.rated import first_rates
from warmstart.models.likelihoods import squared
from warmstart.models.preference import FAST

CPU, ONCE = torch.device("cpu"), Plan(rounds=1, repeats=1, seconds=0.0)


@pytest.mark.usefixtures("float64")
def test_the_loop_has_the_gradient_of_the_learner():
    module, tasks = network(CPU, torch.float64), batches(CPU, torch.float64, 3)[0].tasks
    cfg = paml.Config(rate=0.3, outer_lr=1e-3, seed=2)
    update = peers.paml_loop(module, cfg)
    weights = first_rates(module.described, cfg.rate_hidden, torch.zeros(()), cfg.seed)
    with torch.no_grad():
        for i, layer in enumerate(module.rate):
            layer.weight.copy_(weights[f"weight{i}"].T)
            layer.bias.copy_(weights[f"bias{i}"])
    update(peers.separate(tasks))
    model = functional(network(CPU, torch.float64), FAST)
    learner = paml.build(model, squared, cfg)
    delta, _ = learner.meta_grad(learner.init(model.params), tasks, ())
    found = {name: value.grad for name, value in module.named_parameters() if not name.startswith("rate.")}
    for name, slope in delta.grad["params"].items():
        torch.testing.assert_close(slope / 3, found[name], rtol=1e-8, atol=1e-10)
    for i, layer in enumerate(module.rate):
        torch.testing.assert_close(delta.grad["rates"][f"weight{i}"].T / 3, layer.weight.grad)


def test_a_stack_of_users_beats_a_loop_over_them(monkeypatch):
    monkeypatch.setattr(cold_step, "ways", lambda device: {"plain": stepwise(PLAIN)})
    results = run("cpu", plan=ONCE, workloads=WORKLOADS[1:2], only=["paml"])
    (ratio,) = [row for row in results.rows if row.metric == RATIO]
    assert (ratio.method, ratio.peer) == ("plain", "loop") and ratio.mean > 2


def test_updates_of_users_are_timed_compiled_too():
    assert set(cold_step.ways(CPU)) == {"plain", "traced", "compiled", "compiled whole"}
    assert set(cold_step.ways(torch.device("cuda"))) == {"plain", "traced"}


def test_a_compiled_update_is_the_plain_one():
    """Of at_paml, its memory included."""
    workload = WORKLOADS[-1]
    (feed,) = batches(CPU, users=3)[:1]
    found = []
    for stage in (PLAIN, COMPILED):
        model = functional(network(CPU), FAST)
        learner = workload.build(model, squared, workload.config, stage)
        found.append(meta_update(learner, stage=stage)(learner.init(model.params), feed)[0])
    for one, other in zip(*map(leaves, found), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_memory_grows_with_users_and_a_regulariser_does_not(monkeypatch):
    monkeypatch.setattr(cold_step, "TRACED", PLAIN)
    held = {(r.method, r.setting["users"]): r.mean for r in memory(CPU) if r.metric == STATE}
    assert held["reg_paml", KNOWN[0]] == held["reg_paml", KNOWN[1]]
    assert held["at_paml", KNOWN[1]] > held["at_paml", KNOWN[0]] + 1
    told = share(CPU, ONCE, lambda *words: None, MEMORY, WORKLOADS)
    assert {row.metric for row in told} == {SHARE} and len(told) == len(WORKLOADS) - 1
    told = share(CPU, ONCE, lambda *words: None, FITTED, [as_fitted(one) for one in WORKLOADS[1::2]])
    assert {row.setting["workload"] for row in told} == {FITTED}
    assert {as_fitted(one).config.inner_steps for one in WORKLOADS} == {3}
    state = functional(network(CPU), FAST).params
    assert all(leaf.dtype == torch.float32 for leaf in leaves(state))


def test_what_a_memory_costs_may_be_asked_for_alone(monkeypatch):
    monkeypatch.setattr(cold_step, "TRACED", PLAIN)
    monkeypatch.setattr(cold_step, "WORKLOADS", WORKLOADS[1::2])
    found = run("cpu", plan=ONCE, only=[FITTED]).rows
    assert {(row.method, row.setting["workload"], row.metric) for row in found} == {(WORKLOADS[-1].name, FITTED, SHARE)}


def test_every_search_is_timed_and_judged():
    results = neighbours.run("cpu", plan=ONCE, sizes=(1000,), only=["exact", "tree"])
    recall = {row.method: row.mean for row in results.rows if row.metric == neighbours.RECALL}
    assert recall == {"exact": 1.0, "tree": 1.0}
    assert {row.method for row in results.rows if row.metric == TIME} == {"exact", "tree"}
    assert len(neighbours.sections(results)) == 3
