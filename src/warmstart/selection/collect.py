"""f_t of subsets as jobs: kept in a store, here, in processes or on many machines.

A job is one subset with one seed; a chunk of jobs is one stacked program. The store belongs to one
configuration and one table, and what it holds is never trained again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.engine.jobs import run_jobs
from warmstart.engine.loop import Report, silent
from warmstart.metrics.groups import SMALLEST
from warmstart.selection.measures import named
from warmstart.selection.task_model import Config, Evaluate, evaluator
from warmstart.tasks.transfer import Transfer

CHUNK = 50  # subsets at most that one worker trains as one program


def in_jobs(
    transfer: Transfer,
    cfg: Config,
    measure: str = "cross-entropy",
    pair: tuple[int, int] = (0, 1),
    smallest: int = SMALLEST,
    *,
    store: Path | None = None,
    engine: str = "here",
    workers: int | None = None,
    chunk: int = CHUNK,
    progress: Report = silent,
) -> Evaluate:
    """Where `task_model.estimate` gets f from; what f is, is told as to `measures.named`.

    A subset that failed again and again is an error that names it.
    """
    config = {
        "training": dataclasses.asdict(cfg.training),
        "measure": [measure, *pair, smallest],
        "data": fingerprint(transfer),
    }
    work = partial(train_subsets, transfer, cfg, (measure, pair, smallest))

    def evaluate(members: Tensor, seed: int) -> Tensor:
        subsets = [row.nonzero().flatten().tolist() for row in members]
        jobs = {f"{','.join(map(str, subset))} seed {seed}": [subset, seed] for subset in subsets}
        share = chunk if engine == "here" else min(chunk, -(-len(jobs) // (workers or os.cpu_count() or 1)))
        done = run_jobs(
            work,
            jobs,
            store=store,
            config=config,
            engine=engine,
            workers=workers,
            chunk=share,
            progress=progress,
        )
        if done.failed:
            key, reason = next(iter(done.failed.items()))
            raise InputError(f"{len(jobs)} trained subsets", f"{len(done.failed)} failed, {key}: {reason}", "run again")
        try:
            return torch.tensor([float(value) for value in done.values.values()])
        except (TypeError, ValueError):
            raise InputError(f"numbers in the job store {store}", "something else", "name another folder") from None

    return evaluate


def train_subsets(
    transfer: Transfer, cfg: Config, measure: tuple[str, tuple[int, int], int], jobs: Sequence[Any]
) -> list[float]:
    """Jobs are pairs of a subset and a seed."""
    find = evaluator(transfer, named(*measure), cfg)
    members = torch.zeros(len(jobs), transfer.sources)
    for row, (subset, _) in enumerate(jobs):
        members[row, subset] = 1.0
    seeds = torch.tensor([seed for _, seed in jobs])
    found = torch.zeros(len(jobs))
    for seed in set(seeds.tolist()):
        found[seeds == seed] = find(members[seeds == seed], seed).float()
    return [float(value) for value in found]


def fingerprint(transfer: Transfer) -> str:
    """Of the rows: the same table, split and order."""
    pool = transfer.pool
    total = hashlib.blake2b(digest_size=16)
    held = transfer.validation
    parts = [pool.offsets, pool.y, *pool.x.values(), held.y, held.group, *held.x.values()]
    for part in parts:
        total.update(part.cpu().numpy().tobytes())
    return total.hexdigest()
