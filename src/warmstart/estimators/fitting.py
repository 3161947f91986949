"""Fitting methods on pools of tasks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from warmstart.core import Columns, Learner, Likelihood, Prediction, Task
from warmstart.core.trees import leaves, named_leaves, to_device
from warmstart.engine.files import same_tensors
from warmstart.engine.loop import Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.ranks import join_ranks
from warmstart.engine.stage import TRACED, Stage
from warmstart.estimators.choosing import Record, Run, replay
from warmstart.estimators.judging import held_out, join_pool, join_task, mean_error, sizes_up_to
from warmstart.estimators.methods import Method, Network, assemble, find
from warmstart.tasks.pool import Pool
from warmstart.training.sources import divided, from_pool
from warmstart.training.train import Plan, Trained, train


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is to be learned: pools of tasks and what their tensors mean."""

    train: Pool
    validation: Pool
    columns: Columns
    descriptor: Columns
    likelihood: Likelihood
    classes: int = 0
    module: nn.Module | None = None  # a user's own network; None: one made for the table

    @property
    def tabular(self) -> bool:
        return self.module is None


def sees_descriptor_in_rows(name: str, problem: Problem) -> bool:
    return problem.tabular and name != "empirical_bayes"


def predictor(
    name: str, learner: Learner, state: Any, joined: bool, chunk: int = 256, steps: int | None = None
) -> Callable[[Task], Prediction]:
    """The trained method as a function from a stack of tasks to predictions of their query rows."""
    return lambda task: predict_stack(learner, state, join_task(task) if joined else task, steps=steps, chunk=chunk)


def fit_method(
    name: str,
    cfg: Any,
    problem: Problem,
    plan: Plan,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    stage: Stage | None = None,
    network: Network = Network(),
    warm: Any = None,
    folder: Path | None = None,
    progress: Report = silent,
    record: Record | None = None,
) -> tuple[Learner, Trained]:
    """Train one configuration with early stopping on the validation tasks. `warm` is a theta to start from."""
    stage = stage or TRACED
    if hasattr(cfg, "outer_decay") and cfg.outer_decay == 0:
        cfg = dataclasses.replace(cfg, outer_decay=plan.steps)
    learner, state = assemble(
        name,
        cfg,
        problem.columns,
        problem.descriptor,
        problem.likelihood,
        problem.classes,
        stage,
        seed,
        network,
        problem.module,
    )
    if warm is not None:
        same_tensors(named_leaves(warm), named_leaves(state.theta), Path("the model to start from"))
        state = state._replace(theta=warm)
    rank, world = join_ranks()
    if folder is not None and world > 1:
        folder = folder / f"rank{rank}"
    state = to_device(state, device)
    joined = sees_descriptor_in_rows(name, problem)
    pool = (join_pool(problem.train) if joined else problem.train).to(device)
    source = divided(from_pool(pool, plan.tasks, plan.support, plan.query, seed, learner.noise), rank, world)
    judged = to_device(held_out(problem.validation, plan.support, plan.query, seed), device)
    sizes = [size for size in sizes_up_to(plan.support) if size in (0, 2, 5, 10, 20) or size == plan.support]

    def validate(state: Any) -> float:
        return mean_error(predictor(name, learner, state, joined), judged, problem.likelihood, sizes)

    if name == "scratch":  # nothing to train
        return learner, Trained(state, validate(state), 0, state)
    if record is not None and folder is not None:
        replay(folder, record)
    return learner, train(
        learner, state, source, plan, validate, stage=stage, folder=folder, progress=progress, record=record
    )


def runner(
    problem: Problem,
    plan: Plan,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    network: Network = Network(),
    warm: Any = None,
) -> Run:
    """What `choose` and `tune` call to train a configuration on this problem."""

    def run(name: str, cfg: Any, folder: Path | None, progress: Report, record: Record | None = None) -> Trained:
        return fit_method(
            name,
            cfg,
            problem,
            plan,
            seed=seed,
            device=device,
            network=network,
            warm=warm,
            folder=folder,
            progress=progress,
            record=record,
        )[1]

    return run


def possible(names: Sequence[str], problem: Problem) -> dict[str, Method]:
    """Those of the methods that know the target's kind."""
    return {name: find(name) for name in names if problem.likelihood.name in find(name).kinds}


def fingerprint(problem: Problem, plan: Plan, seed: int, network: Network, warm: Any) -> str:
    """A name that changes with anything but the method that changes a run, so that a resumed run is the same run."""
    words = [dataclasses.asdict(plan), seed, network, problem.likelihood.name, problem.classes, problem.train.ordered]
    digest = hashlib.blake2b(json.dumps(words, sort_keys=True).encode(), digest_size=6)
    own = () if problem.module is None else dict(problem.module.state_dict())
    for leaf in leaves((tuple(problem.train)[:-1], tuple(problem.validation)[:-1], warm or (), own)):
        digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
