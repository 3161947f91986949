"""Fitting one method, or choosing among several, on pools of tasks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from warmstart.core import Columns, InputError, Learner, Likelihood, Prediction, Task
from warmstart.core.trees import leaves, named_leaves, to_device
from warmstart.engine.files import same_tensors
from warmstart.engine.loop import LOG, Report, silent
from warmstart.engine.meta import predict_stack
from warmstart.engine.ranks import join_ranks
from warmstart.engine.stage import TRACED, Stage
from warmstart.estimators.judging import held_out, join_pool, join_task, mean_error, sizes_up_to
from warmstart.estimators.methods import Network, assemble, configure, find
from warmstart.tasks.pool import Pool
from warmstart.training.search import Trial, search
from warmstart.training.sources import from_pool
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


class Fitted(NamedTuple):
    """A trained method."""

    name: str
    config: Any
    learner: Learner
    state: Any
    value: float  # on the validation tasks
    trials: dict[str, list[Trial]]  # of each method, best first


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
    record: Callable[[int, dict[str, float]], None] | None = None,
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
    source = from_pool(pool, plan.tasks, plan.support, plan.query, seed, learner.noise, rank)
    judged = to_device(held_out(problem.validation, plan.support, plan.query, seed), device)
    sizes = [size for size in sizes_up_to(plan.support) if size in (0, 2, 5, 10, 20) or size == plan.support]

    def validate(state: Any) -> float:
        return mean_error(predictor(name, learner, state, joined), judged, problem.likelihood, sizes)

    if name == "scratch":  # nothing to train
        return learner, Trained(state, validate(state), 0)
    if record is not None and folder is not None:
        replay(folder, record)
    return learner, train(
        learner, state, source, plan, validate, stage=stage, folder=folder, progress=progress, record=record
    )


def replay(folder: Path, record: Callable[[int, dict[str, float]], None]) -> None:
    """Record what an earlier part of this run has logged."""
    for line in (folder / LOG).read_text("utf-8").splitlines() if (folder / LOG).exists() else ():
        with suppress(ValueError):  # half a line that a killed run left
            figures = json.loads(line)
            record(figures.pop("step"), figures)


def tune_method(
    name: str,
    default: Any,
    problem: Problem,
    plan: Plan,
    trials: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    network: Network = Network(),
    folder: Path | None = None,
    progress: Report = silent,
) -> list[Trial]:
    """Search a method's space by its validation error; best first. With a folder, it can be resumed."""

    begun = count()

    def run(cfg: Any) -> float:
        kept, number = None if folder is None else folder / run_id(name, cfg), next(begun)

        def report(done: int, of: int, words: str) -> None:
            progress(number * of + done, trials * of, f"trial {number + 1}, {words}")

        try:
            return fit_method(
                name,
                cfg,
                problem,
                plan,
                seed=seed,
                device=device,
                network=network,
                folder=kept,
                progress=report,
            )[1].value
        except InputError:  # diverged
            return float("inf")

    store = None if folder is None else folder / f"trials-{name}.json"
    return search(run, default, find(name).space, trials, seed, store)


def choose(
    names: Sequence[str],
    settings: Mapping[str, Any],
    problem: Problem,
    plan: Plan,
    trials: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    network: Network = Network(),
    warm: Any = None,
    folder: Path | None = None,
    progress: Callable[[str], Any] | None = None,
    record: Callable[[int, dict[str, float]], None] | None = None,
) -> Fitted:
    """Tune each method with the same number of trials, train the best one, and say what was tried.

    A folder may be shared by runs on other data or with other plans: each resumes only itself. The best
    trial's checkpoint is the finished training.
    """
    bar = progress or (lambda label: silent)
    if folder is not None:
        folder = folder / fingerprint(problem, plan, seed, network, warm)
    possible = [name for name in names if problem.likelihood.name in find(name).kinds]
    tried: dict[str, list[Trial]] = {}
    for name in possible:
        default = configure(find(name).config, settings if len(names) == 1 else {})
        if len(possible) == 1 and trials <= 1:
            tried[name] = [Trial(default, float("nan"))]
            continue
        tried[name] = tune_method(
            name,
            default,
            problem,
            plan,
            trials,
            seed=seed,
            device=device,
            network=network,
            folder=folder,
            progress=bar(f"tuning {name}"),
        )
    best = min(tried, key=lambda name: (tried[name][0].value != tried[name][0].value, tried[name][0].value))
    cfg = tried[best][0].config
    learner, trained = fit_method(
        best,
        cfg,
        problem,
        plan,
        seed=seed,
        device=device,
        network=network,
        warm=warm,
        folder=None if folder is None else folder / run_id(best, cfg),
        progress=bar(f"training {best}"),
        record=record,
    )
    tried[best][0] = Trial(cfg, trained.value)
    return Fitted(best, cfg, learner, trained.state, trained.value, tried)


def run_id(name: str, cfg: Any) -> str:
    """The folder of one configuration's training."""
    text = json.dumps(dataclasses.asdict(cfg), sort_keys=True)
    return f"{name}-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


def fingerprint(problem: Problem, plan: Plan, seed: int, network: Network, warm: Any) -> str:
    """A name that changes with anything but the method that changes a run, so that a resumed run is the same run."""
    words = [dataclasses.asdict(plan), seed, network, problem.likelihood.name, problem.classes]
    digest = hashlib.blake2b(json.dumps(words, sort_keys=True).encode(), digest_size=6)
    own = () if problem.module is None else dict(problem.module.state_dict())
    for leaf in leaves((tuple(problem.train), tuple(problem.validation), warm or (), own)):
        digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
