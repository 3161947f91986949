"""What choosing among many sources costs: by their number, up to a thousand simulated ones.

Eight subsets of five for every source, 300 steps each, and a surrogate with its intervals. Subsets are drawn and the
surrogate is fitted in whole; steps all cost the same, so that some of them tell the rest of the trainings. In
processor time of one thread, since what others run at the time must not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from warmstart.benches.timing import describe, one_thread, seconds
from warmstart.core import check_names
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.page import Section
from warmstart.selection import surrogate
from warmstart.selection.subsets import indicators, sample_subsets
from warmstart.selection.task_model import Config
from warmstart.selection.training import shares, train_models
from warmstart.tasks.transfer import Rows, Transfer, make_transfer

COUNTS = (125, 250, 500, 1000)
TIMES = 8  # subsets for every source
ROWS, FEATURES = 1000, 20
MODELS, STEPS = 50, 20  # of the trainings that are measured
DRAW, TRAIN, FIT, WHOLE = "drawing subsets", "training them", "the surrogate and its intervals", "in all"
PARTS = (DRAW, TRAIN, FIT, WHOLE)
EACH, GROWTH = "a source", "of the cost of a source among the fewest"


def simulated(sources: int, device: torch.device) -> Transfer:
    """Noise with labels of a linear rule that every source shifts."""
    draw = torch.Generator().manual_seed(sources)
    rule = torch.randn(FEATURES, generator=draw)

    def sample() -> Rows:
        x = torch.randn(ROWS, FEATURES, generator=draw)
        own = rule + 0.5 * torch.randn(FEATURES, generator=draw)
        return Rows(x, (x @ own > 0).float(), torch.zeros(ROWS, dtype=torch.long))

    return make_transfer([sample() for _ in range(sources)], sample(), sample(), sample()).to(device)


def cost(sources: int, device: torch.device, seed: int, models: int = MODELS, steps: int = STEPS) -> dict[str, float]:
    """Seconds of each part."""
    transfer, cfg = simulated(sources, device), Config()
    count = TIMES * sources
    found = {DRAW: seconds(lambda: sample_subsets(sources, cfg.size, count, seed), device, processor=True)}
    members = indicators(sample_subsets(sources, cfg.size, count, seed), sources)
    share = shares(transfer, members[:models].to(device), cfg.training.balance)
    short = partial(train_models, transfer, share, replace(cfg.training, steps=steps), seed)
    short()  # recording a step is paid once
    each = seconds(short, device, processor=True) / (models * steps)
    found[TRAIN] = each * cfg.training.steps * count
    f = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    found[FIT] = seconds(lambda: surrogate.fit(members, f, cfg.surrogate, seed), device, processor=True)
    return found | {WHOLE: sum(found.values())}


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    only: Sequence[str] = (),
    counts: Sequence[int] = COUNTS,
    rounds: int = 2,
    models: int = MODELS,
    steps: int = STEPS,
) -> Results:
    """On the CPU, where processor time tells."""
    check_names(only, PARTS, "parts")
    place = choose_device("cpu" if device == "auto" else device)
    report = (progress or (lambda label: silent))("numbers of sources")
    found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with one_thread():
        for turn in range(rounds):
            for number, count in enumerate(counts):
                found[count].append(cost(count, place, turn, models, steps))
                report(turn * len(counts) + number + 1, rounds * len(counts), f"{count} sources")
    rows: list[Row] = []
    for part in PARTS:
        if part not in (only or PARTS):
            continue
        for count, turns in found.items():
            each = {i: 1000 * turn[part] / count for i, turn in enumerate(turns)}
            first = {i: 1000 * turn[part] / counts[0] for i, turn in enumerate(found[counts[0]])}
            rows.append(make_row(part, {"sources": count}, EACH, each, unit="ms"))
            rows.append(make_row(part, {"sources": count}, GROWTH, {i: each[i] / first[i] for i in each}))
    command = called()
    return make_results("source_count", "full", describe(place), command, rows)


def sections(results: Results) -> list[Section]:
    counts = list(dict.fromkeys(int(row.setting["sources"]) for row in results.rows))
    found = []
    for metric, digits in ((EACH, 2), (GROWTH, 2)):
        columns = [Column(f"{count} sources", metric, {"sources": count}, digits, "lower") for count in counts]
        found.append(Section(metric, table=table(results, None, columns)))
    whole = {int(row.setting["sources"]): row.mean for row in results.rows if (row.method, row.metric) == (WHOLE, EACH)}
    if whole:
        told = ", ".join(f"{count} sources {each * count / 1000:.0f} s" for count, each in whole.items())
        found[0] = found[0]._replace(prose=f"{TIMES} subsets a source, 300 steps each, on one thread: {told}")
    return found
