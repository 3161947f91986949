"""What every learner must do. A new one is a line in LEARNERS."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

from warmstart.baselines import protonet
from warmstart.core import Batch, Learner, Likelihood, functional, make_batch, make_task
from warmstart.core.trees import add, dense, fill, flatten, leaves, named_leaves, scale, take, tree_map
from warmstart.engine import native
from warmstart.engine.capture import capture
from warmstart.engine.files import finite, read_tensors, write_tensors
from warmstart.engine.kernels import FUSED
from warmstart.engine.meta import Feed, meta_update, predict_stack, sum_meta_grad
from warmstart.engine.noise import adapt_noise, generator, train_noise
from warmstart.engine.stage import COMPILED, LOOPED, PLAIN, TRACED, _direct

from warmstart.learners import abml, at_paml, bmaml, empirical_bayes, gem, gem_head, gem_mixture, imaml, kl_chaser  # isort: skip
from warmstart.learners import llama, maml, melu, meta_sgd, paml, pmaml, pretrain, reg_paml, reptile, scratch  # isort: skip
from warmstart.models.likelihoods import binary, multiclass, squared
from warmstart.models.mlp import MLP

pytestmark = pytest.mark.usefixtures("float64")
TASKS, ROWS, INPUTS, KNOWN = 5, 4, 2, 3
LOADED = cache(native.load)  # programs in C++ by their text
LIKELIHOODS = {"squared": squared, "binary": binary, "multiclass": multiclass}


class Case(NamedTuple):
    build: Callable[..., Learner]
    config: Any
    likelihoods: str = "squared binary multiclass"
    fast: str = "*"
    prior: bool = False  # learns from the descriptor too
    described: bool = False  # its model describes tasks
    zero_shot: bool = True  # a task without support rows teaches something
    placed: bool = False  # noise belongs to rows by their place among the task's, so moving rows moves it


class Described(MLP):
    described = 2  # numbers that tell of a task
    decide = MLP.forward

    def __init__(self, *shape, activation):
        super().__init__(*shape, activation=activation)
        self.encoder, self.about = torch.nn.Linear(INPUTS, INPUTS), torch.nn.Linear(KNOWN, self.described)

    def encode(self, x):
        return torch.tanh(self.encoder(x))

    def forward(self, x):
        return self.decide(self.encode(x))

    def describe(self, descriptor):
        return torch.tanh(self.about(descriptor))


def prototypes(model, likelihood, cfg, stage=PLAIN):
    return protonet.build(model, 3, cfg, stage)


descent = {"inner_lr": 0.07, "inner_steps": 3, "test_steps": 2, "outer_lr": 0.03}
newton = {**descent, "inner_lr": 1.0, "inner": "newton", "prox": 0.8, "halvings": 2}
inferred = {**descent, "samples": 2, "predictions": 3, "sd": 0.2, "noise": 0.7, "kl_weight": 0.8}
stein = {**descent, "particles": 3, "recompute": True}
laplace = {**descent, "noise": 0.4, "samples": 3, "recompute": True}
local = {"inner_steps": 2, "shrink": 0.5, "outer_lr": 0.03, "weight_decay": 0.1}
own_rate = {"rate": 0.3, "rate_hidden": (4, 3)}
mind = {"memory": 6, "neighbours": 2, "sharpness": 0.7, "warm_up": 1, "memory_lr": 0.5, "ways": 2}
LEARNERS = {
    "scratch": Case(scratch.build, scratch.Config(inner_lr=0.1, test_steps=3)),
    "pretrain": Case(pretrain.build, pretrain.Config(inner_lr=0.1, test_steps=3, inner="momentum", weight_decay=0.1)),
    "pretrain-shrink": Case(pretrain.build, pretrain.Config(inner_lr=0.1, test_steps=2, shrink=0.5), "squared"),
    "maml": Case(maml.build, maml.Config(**descent, weight_decay=0.1)),
    "maml-momentum": Case(maml.build, maml.Config(**descent, inner="momentum", outer_decay=7), "squared"),
    "maml-adam": Case(maml.build, maml.Config(**descent, inner="adam", recompute=True), "squared binary"),
    "fomaml": Case(maml.build, maml.Config(**descent, first_order=True), "squared multiclass"),
    "anil": Case(maml.build, maml.Config(**descent), "squared multiclass", fast="head.*"),
    "reptile": Case(reptile.build, reptile.Config(**descent, outer_decay=7)),
    "imaml": Case(imaml.build, imaml.Config(**descent, prox=0.8, solve_steps=3)),
    "imaml-newton": Case(imaml.build, imaml.Config(**newton, inner_solve=3, solve_steps=3, curvature="gauss_newton")),
    "imaml-head": Case(imaml.build, imaml.Config(**newton, solve_steps=2), "squared multiclass", fast="head.*"),
    "imaml-halvings": Case(imaml.build, imaml.Config(**descent, solve_steps=0, halvings=3), "squared"),
    "meta_sgd": Case(meta_sgd.build, meta_sgd.Config(**descent, inner="adam")),
    "meta_sgd-head": Case(meta_sgd.build, meta_sgd.Config(**descent, shrink=2.0, relative=True), "binary", "head.*"),
    "empirical_bayes": Case(empirical_bayes.build, empirical_bayes.Config(components=2, rank=1, evidence=0.6)),
    "empirical_bayes-prior": Case(empirical_bayes.build, empirical_bayes.Config(components=3), "squared", prior=True),
    "gem": Case(gem.build, gem.Config(**inferred)),
    "gem-all": Case(gem.build, gem.Config(**inferred, plus=False, joint=True, natural=False, inner="adam"), "squared"),
    "gem-newton": Case(gem.build, gem.Config(**inferred, inner="newton", joint=True)),
    "gem-newton-onward": Case(gem.build, gem.Config(**inferred, inner="newton", plus=False, widths=False), "squared"),
    "gem-local": Case(gem.build, gem.Config(**inferred, estimator="local", per_row=True), placed=True),
    "gem-flipout": Case(gem.build, gem.Config(**inferred, estimator="flipout", joint=True), "multiclass", placed=True),
    "gem_head": Case(gem_head.build, gem_head.Config(outer_lr=0.03, spread=0.6, noise=0.3), "squared binary"),
    "gem_head-classes": Case(gem_head.build, gem_head.Config(weight_decay=0.1, dof=9.0), "multiclass", zero_shot=False),
    "gem_head-all": Case(gem_head.build, gem_head.Config(objective="all", rank=3, dof=6.0), "squared", fast="head.*"),
    "gem_mixture-newton": Case(gem_mixture.build, gem_mixture.Config(**inferred, inner="newton", joint=True)),
    "gem_mixture": Case(gem_mixture.build, gem_mixture.Config(**inferred, components=2, anneal=5, temperature=9.0)),
    "bmaml": Case(bmaml.build, bmaml.Config(**stein, leader_steps=2, noise=0.6, spread=0.3)),
    "bmaml-query": Case(bmaml.build, bmaml.Config(**stein, loss="query", bandwidth=2.0, inner="adam"), "multiclass"),
    "bmaml-hyper": Case(bmaml.build, bmaml.Config(**stein, hyper=True, weight_precision=0.3), "squared binary"),
    "llama": Case(llama.build, llama.Config(**laplace, eta=0.3, prior_precision=5.0)),
    "llama-diagonal": Case(llama.build, llama.Config(**laplace, curvature="diagonal"), "squared", fast="head.*"),
    "llama-kronecker": Case(llama.build, llama.Config(**laplace, curvature="kronecker"), "squared multiclass"),
    "llama-evidence": Case(llama.build, llama.Config(**laplace, objective="evidence", rank=3), zero_shot=False),
    "abml": Case(abml.build, abml.Config(**inferred)),
    "abml-query": Case(abml.build, abml.Config(**inferred, objective="query", recompute=True), "squared"),
    "abml-difference": Case(abml.build, abml.Config(**inferred, objective="difference", inner="adam"), "squared"),
    "abml-local": Case(abml.build, abml.Config(**inferred, estimator="local"), "binary", placed=True),
    "pmaml": Case(pmaml.build, pmaml.Config(**inferred), "squared multiclass"),
    "pmaml-joint": Case(pmaml.build, pmaml.Config(**inferred, joint=True, recompute=True, inner="adam"), "squared"),
    "platipus": Case(pmaml.build, pmaml.Config(**inferred, algorithm="platipus", shift_lr=0.05)),
    "kl_chaser": Case(kl_chaser.build, kl_chaser.Config(**inferred, leader_steps=2), "squared binary"),
    "kl_chaser-joint": Case(kl_chaser.build, kl_chaser.Config(**inferred, joint=True, recompute=True), "squared"),
    "melu": Case(melu.build, melu.Config(**local, inner_lr=0.07), "multiclass", "[bh]*", described=True),
    "paml": Case(paml.build, paml.Config(**local, **own_rate), "squared", "[bh]*", described=True),
    "paml-alike": Case(paml.build, paml.Config(**local, **own_rate), "binary"),
    "reg_paml": Case(
        reg_paml.build, reg_paml.Config(**local, **own_rate, gamma=0.3), "binary", "[bh]*", described=True
    ),
    "at_paml": Case(at_paml.build, at_paml.Config(**local, **own_rate, **mind), "squared", "[bh]*", described=True),
    "protonet": Case(prototypes, protonet.Config(outer_lr=0.03, weight_decay=0.1), "multiclass", zero_shot=False),
}
PAIRS = [(id, case, name) for id, case in LEARNERS.items() for name in case.likelihoods.split()]
EVERY = [pytest.param(case, LIKELIHOODS[name], id=f"{id}-{name}") for id, case, name in PAIRS]
ONCE = [pytest.param(case, LIKELIHOODS[case.likelihoods.split()[0]], id=id) for id, case in LEARNERS.items()]
INNER = [
    pytest.param(case._replace(config=replace(case.config, inner=inner)), LIKELIHOODS[name], id=f"{id}-{inner}-{name}")
    for id, case in LEARNERS.items()
    if "inner" in {field.name for field in fields(case.config)}
    for inner in sorted({"sgd", "momentum", "adam"} - {case.config.inner})
    for name in case.likelihoods.split()[:1]
]
ANYWHERE = [param for param in EVERY if not param.values[0].placed]
every, once, anywhere = (pytest.mark.parametrize(("case", "likelihood"), cases) for cases in (EVERY, ONCE, ANYWHERE))


@cache
def build(case: Case, likelihood: Likelihood, stage=PLAIN) -> tuple[Learner, Any]:
    """The learner and a state two updates away from the first one, so that every part of it counts."""
    torch.manual_seed(1)
    network = Described if case.described else MLP
    model = functional(network(INPUTS, (4,), 3 if likelihood is multiclass else 1, activation="tanh"), fast=case.fast)
    extra = {"prior": functional(MLP(KNOWN, (3,), 1, activation="tanh"))} if case.prior else {}
    learner = case.build(model, likelihood, case.config, **extra, stage=stage)
    if stage is not PLAIN:
        return learner, build(case, likelihood)[1]
    state = learner.init(model.params)
    for seed in (11, 12):
        state, _ = meta_update(learner)(state, Feed(tasks(likelihood, seed), train(learner, TASKS)))
    return learner, state


def labels(likelihood, *shape):
    if likelihood is multiclass:
        return torch.randint(3, shape)
    return torch.randn(shape) if likelihood is squared else torch.randint(2, shape).to(torch.get_default_dtype())


def tasks(likelihood, seed=0):
    """Tasks of 0 to 4 support and 1 to 4 query rows, padded and weighted."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)

        def rows(lengths):
            mask = (torch.arange(ROWS) < torch.tensor(lengths)[:, None]).to(torch.get_default_dtype())
            y = labels(likelihood, TASKS, ROWS)
            return make_batch(torch.randn(TASKS, ROWS, INPUTS), y, w=torch.rand(TASKS, ROWS) + 0.3, mask=mask)

        return make_task(rows([4, 2, 0, 3, 1]), rows([3, 4, 2, 1, 4]), torch.randn(TASKS, KNOWN), torch.arange(TASKS))


def train(learner, count):
    return train_noise(learner.noise, count, generator(5))


def predicted(learner, state, batch, steps=None, chunk=None, noise=None):
    given = adapt_noise(learner.noise, len(batch.key), steps or learner.steps, generator(6)) if noise is None else noise
    return predict_stack(learner, state, batch, given, steps, chunk)


def check(found, expected, tolerance=1e-9):
    assert flatten(found)[1] == flatten(expected)[1]
    for left, right in zip(leaves(dense(found)), leaves(dense(expected)), strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def real(prediction, mask):
    """The predictions of rows that are there."""
    return tree_map(lambda leaf: leaf[mask.bool()], (prediction.mean, prediction.variance))


def with_garbage(batch: Batch, likelihood) -> Batch:
    """Rows that do not count, before, between and behind those that do."""
    extra = make_batch(
        1e3 * torch.randn(TASKS, 3, INPUTS),
        labels(likelihood, TASKS, 3) * (1 if likelihood is multiclass else 1000),
        w=torch.full((TASKS, 3), 50.0),
        mask=torch.zeros(TASKS, 3),
    )
    order = torch.tensor([4, 0, 1, 5, 2, 3, 6])
    return tree_map(lambda a, b: torch.cat([a, b], 1)[:, order], batch, extra)


@every
def test_padding_changes_nothing(case, likelihood):
    learner, state = build(case, likelihood)
    batch = tasks(likelihood)
    padded = batch._replace(
        support=with_garbage(batch.support, likelihood), query=with_garbage(batch.query, likelihood)
    )
    noise = train(learner, TASKS)
    check(learner.meta_grad(state, padded, noise), learner.meta_grad(state, batch, noise))
    found, expected = predicted(learner, state, padded), predicted(learner, state, batch)
    check(real(found, padded.query.mask), real(expected, batch.query.mask))


@every
def test_a_stack_of_uneven_tasks_is_each_task_alone(case, likelihood):
    learner, state = build(case, likelihood)
    batch = tasks(likelihood)
    noise, total = train(learner, TASKS), None
    together = predicted(learner, state, batch)
    given = adapt_noise(learner.noise, TASKS, learner.steps, generator(6))
    for i in range(TASKS):
        place = slice(i, i + 1)
        cut = lambda rows: take(take(rows, place), (slice(None), rows.mask[place][0].bool()))  # noqa: B023, E731
        alone = take(batch, place)._replace(support=cut(batch.support), query=cut(batch.query))
        part = learner.meta_grad(state, alone, take(noise, place))
        total = part if total is None else add(total, part)
        found = predicted(learner, state, alone, noise=take(given, place))
        check(real(found, alone.query.mask), real(take(together, place), batch.query.mask[place]))
    check(total, learner.meta_grad(state, batch, noise))


@every
def test_permuted_tasks_give_permuted_predictions_and_the_same_sum(case, likelihood):
    learner, state = build(case, likelihood)
    batch, order = tasks(likelihood), torch.tensor([3, 0, 4, 1, 2])
    noise = train(learner, TASKS)
    check(learner.meta_grad(state, take(batch, order), take(noise, order)), learner.meta_grad(state, batch, noise))
    given = adapt_noise(learner.noise, TASKS, learner.steps, generator(6))
    found = predicted(learner, state, take(batch, order), noise=take(given, order))
    check(found, take(predicted(learner, state, batch), order))


@anywhere
def test_permuted_rows_change_nothing(case, likelihood):
    learner, state = build(case, likelihood)
    batch, order = tasks(likelihood), torch.tensor([2, 0, 3, 1])
    turned = batch._replace(
        support=take(batch.support, (slice(None), order)), query=take(batch.query, (slice(None), order))
    )
    noise = train(learner, TASKS)
    check(learner.meta_grad(state, turned, noise), learner.meta_grad(state, batch, noise))
    found, expected = predicted(learner, state, turned), predicted(learner, state, batch)
    moved = take(expected._replace(samples=()), (slice(None), order))
    check(real(found, turned.query.mask), real(moved, turned.query.mask))


@pytest.mark.parametrize("rows", ["masked", "absent"])
@pytest.mark.parametrize(("case", "likelihood"), [*EVERY, *INNER])
def test_an_empty_support_set_is_the_zero_shot_model_with_a_finite_meta_gradient(case, likelihood, rows):
    learner, state = build(case, likelihood)
    batch = tasks(likelihood)
    if rows == "masked":
        empty = batch._replace(support=batch.support._replace(mask=torch.zeros(TASKS, ROWS)))
    else:
        empty = batch._replace(support=take(batch.support, (slice(None), slice(0))))
    adapted, zero_shot = predicted(learner, state, empty), predicted(learner, state, batch, steps=0)
    check(adapted, zero_shot, 1e-12)
    delta, info = learner.meta_grad(state, empty, train(learner, TASKS))
    assert finite(named_leaves(delta)) and finite(named_leaves(info))
    learnt = any(leaf.abs().sum() > 0 for leaf in leaves(delta))
    assert learnt == (case.zero_shot and len(leaves(delta)) > 0)


@every
def test_chunks_add_up(case, likelihood):
    learner, state = build(case, likelihood)
    feed = Feed(tasks(likelihood), train(learner, TASKS))
    whole = sum_meta_grad(learner, state, feed)
    for chunk in (1, 2, 9):
        check(sum_meta_grad(learner, state, feed, chunk), whole)
    check(meta_update(learner, 2)(state, feed), meta_update(learner)(state, feed))
    check(predicted(learner, state, feed.tasks, chunk=2), predicted(learner, state, feed.tasks))


@every
def test_an_update_takes_the_mean_over_tasks(case, likelihood):
    learner, state = build(case, likelihood)
    delta, _ = learner.meta_grad(state, tasks(likelihood), train(learner, TASKS))
    expected = learner.update(state, delta, torch.tensor(5.0))
    check(learner.update(state, scale(delta, 3.0), torch.tensor(15.0)), expected)


@once
def test_a_state_keeps_its_kinds_of_number_and_its_shapes(case, likelihood):
    """Or else a captured graph, a recording and a checkpoint would not know it again."""
    torch.set_default_dtype(torch.float32)
    learner, state = build.__wrapped__(case, likelihood)
    single = tasks(likelihood)
    new, info = meta_update(learner)(state, Feed(single, train(learner, TASKS)))
    kinds = lambda tree: {name: (leaf.shape, leaf.dtype) for name, leaf in named_leaves(tree).items()}  # noqa: E731
    assert kinds(new) == kinds(state)
    assert {leaf.dtype for leaf in leaves((new, info)) if leaf.is_floating_point()} == {torch.float32}
    assert predicted(learner, new, single).mean.dtype == torch.float32


@anywhere
def test_a_weight_of_two_is_the_row_twice(case, likelihood):
    learner, state = build(case, likelihood)
    batch = tasks(likelihood)
    doubled = lambda rows: rows._replace(w=rows.w * torch.tensor([2.0, 1.0, 1.0, 1.0]))  # noqa: E731
    twice = lambda rows: take(rows, (slice(None), torch.tensor([0, 0, 1, 2, 3])))  # noqa: E731
    noise = train(learner, TASKS)
    heavy, long = (batch._replace(support=f(batch.support), query=f(batch.query)) for f in (doubled, twice))
    check(learner.meta_grad(state, heavy, noise), learner.meta_grad(state, long, noise))
    found, expected = (predicted(learner, state, rows)._replace(samples=()) for rows in (heavy, long))
    check(found, take(expected, (slice(None), torch.tensor([0, 2, 3, 4]))))
    shown = batch._replace(support=doubled(batch.support))
    moved = (predicted(learner, state, shown).mean - predicted(learner, state, batch).mean).abs().sum((0, 1))
    assert (moved > 1e-6).all()  # and the weight does count


@every
def test_nothing_is_written_to(case, likelihood):
    learner, state = build(case, likelihood)
    batch, noise = tasks(likelihood), train(learner, TASKS)
    given = (state, batch, noise)
    kept = tree_map(torch.clone, given)
    first = predicted(learner, state, batch), learner.meta_grad(state, batch, noise)
    learner.update(state, first[1][0], torch.tensor(5.0))
    again = predicted(learner, state, batch), learner.meta_grad(state, batch, noise)
    check(again, first, 0)
    check(given, kept, 0)


@every
def test_a_saved_state_adapts_and_predicts_the_same_bits(case, likelihood, tmp_path):
    learner, state = build(case, likelihood)
    batch = tasks(likelihood)
    write_tensors(tmp_path / "state.safetensors", named_leaves(state))
    fresh = tree_map(torch.zeros_like, state)
    loaded = fill(fresh, read_tensors(tmp_path / "state.safetensors")[0])
    check(predicted(learner, loaded, batch), predicted(learner, state, batch), 0)
    feed = Feed(batch, train(learner, TASKS))
    check(meta_update(learner)(loaded, feed), meta_update(learner)(state, feed), 0)


def stages_agree(case, likelihood, stage):
    plain, state = build(case, likelihood)
    fast, _ = build(case, likelihood, stage)
    feed = Feed(tasks(likelihood), train(plain, TASKS))
    for _ in range(2):  # the second time it runs what it has recorded
        check(fast.meta_grad(state, *feed), plain.meta_grad(state, *feed))
    check(meta_update(fast, None, stage)(state, feed), meta_update(plain)(state, feed))


@once
def test_traced_is_plain(case, likelihood):
    stages_agree(case, likelihood, TRACED)


@once
def test_looped_is_plain(case, likelihood):
    stages_agree(case, likelihood, LOOPED)


@pytest.mark.parametrize(("case", "likelihood"), [param for param in ONCE if "-" not in param.id])
def test_compiled_is_plain(case, likelihood, monkeypatch):
    """C++ unoptimised, each text once; what it does not take runs as recorded: inductor is slow (see the GPU test)."""
    monkeypatch.setattr(native, "FLAGS", ["-O0", *native.FLAGS[1:]])
    monkeypatch.setattr(native, "load", LOADED)
    monkeypatch.setattr("warmstart.engine.stage._inductor", _direct)
    plain, state = build(case, likelihood)
    fast, _ = build(case, likelihood, COMPILED)
    feed = Feed(tasks(likelihood), train(plain, TASKS))
    check(meta_update(fast, None, COMPILED)(state, feed), meta_update(plain)(state, feed))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a CUDA device")
@pytest.mark.parametrize("stage", [PLAIN, TRACED, COMPILED, FUSED], ids=["plain", "traced", "compiled", "fused"])
@once
def test_a_captured_update_is_the_plain_one(case, likelihood, stage):
    plain, state = build(case, likelihood)
    if not plain.capturable:
        pytest.skip("the method says that no graph can replay it")
    fast, _ = build(case, likelihood, stage)
    there = tree_map(lambda leaf: leaf.cuda(), state)
    replay = capture(meta_update(fast, None, stage), there)
    for seed in range(3):
        feed = Feed(tasks(likelihood, seed), train(plain, TASKS))
        state, info = meta_update(plain)(state, feed)
        there, told = replay(there, tree_map(lambda leaf: leaf.cuda(), feed))
        check(tree_map(lambda leaf: leaf.cpu(), (there, told)), (state, info), 1e-8)
