"""Search in a memory of users: time, recall and error of a rate against the number of entries, by every search.

Vectors like the user embeddings of the preference model: four features of which each has few values, embedded at
random, with a little noise, 32 queries at a time, 20 neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from warmstart.benches.timing import Contender, Plan, describe, interleave, one_thread
from warmstart.benches.updates import TIME
from warmstart.core import InputError, check_names
from warmstart.engine.device import choose_device
from warmstart.engine.loop import Report, silent
from warmstart.engine.noise import generator
from warmstart.maths.memory import EMPTY, SEARCHES, Memory, check_search, entries, filled_memory, kernel_mean, nearest
from warmstart.report import Column, Results, Row, called, make_results, make_row, table
from warmstart.report.page import Section

SIZES = (1_000, 10_000, 100_000)
QUERIES, NEIGHBOURS, SHARPNESS, FLOOR = 32, 20, 2.0, 1e-5
VALUES, WIDTHS = (2, 7, 21, 500), (4, 9, 23, 32)
RECALL, ERROR = "recall", "error of the rate"


def make_memory(size: int, device: torch.device) -> tuple[Memory, torch.Tensor]:
    """Entries and queries from the same users' distribution."""
    draw = generator(0, size)
    tables = [0.3 * torch.randn(values, width, generator=draw) for values, width in zip(VALUES, WIDTHS, strict=True)]
    count = size + QUERIES
    parts = [part[torch.randint(len(part), (count,), generator=draw)] for part in tables]
    vector = torch.cat(parts, 1) + 0.02 * torch.randn(count, sum(WIDTHS), generator=draw)
    rate = torch.sigmoid(vector[:, :3].sum(1, keepdim=True))
    entry = torch.cat([vector, rate], 1).to(device)
    place = torch.arange(size, device=device)
    return filled_memory(place, entry[:size], torch.zeros(size, device=device)), entry[size:, :-1]


def run(
    device: str = "auto",
    progress: Callable[[str], Report] | None = None,
    only: Sequence[str] = (),
    plan: Plan = Plan(rounds=3, repeats=3),
    sizes: Sequence[int] = SIZES,
) -> Results:
    """`only` names searches. The tree is built for every search, as entries are trained in between."""
    check_names(only, SEARCHES, "searches")
    where, bar = choose_device(device), progress or (lambda label: silent)
    rows: list[Row] = []
    with one_thread():
        for size in sizes:
            rows += measure(
                size, where, plan, bar(f"{size:,} entries"), [s for s in SEARCHES if s in (only or SEARCHES)]
            )
    return make_results("neighbours", "full", describe(where), called(), rows)


def measure(size: int, device: torch.device, plan: Plan, progress: Report, searches: Sequence[str]) -> list[Row]:
    memory, query = make_memory(size, device)
    nobody = torch.full((QUERIES,), EMPTY, device=device)
    distance = torch.cdist(query.double(), memory.entry[:, :-2].double())
    true = distance.topk(NEIGHBOURS, largest=False).indices
    exact = kernel_mean(query, *entries(memory, true), torch.ones(true.shape, device=device), SHARPNESS, FLOOR)
    found, contenders = [], []
    for how in searches:
        try:
            check_search(how)
        except InputError:
            found.append(make_row(how, {"entries": size}, TIME, {0: float("nan")}, "us", "not installed"))
            continue
        place, real = nearest(memory, query, nobody, NEIGHBOURS, how)
        hit = (place[:, :NEIGHBOURS, None] == true[:, None]).any(-1).double().mean(-1)
        rate = kernel_mean(query, *entries(memory, place), real, SHARPNESS, FLOOR)
        found.append(make_row(how, {"entries": size}, RECALL, {0: hit.cpu()}))
        found.append(make_row(how, {"entries": size}, ERROR, {0: (rate - exact).abs().cpu()}))

        def begin(how: str = how) -> Callable[[], object]:
            return lambda: nearest(memory, query, nobody, NEIGHBOURS, how)

        contenders.append(Contender(how, device, begin))
    medians = interleave(contenders, plan, progress)
    for one, took in zip(contenders, medians, strict=True):
        each = {i: value * 1e6 / QUERIES for i, value in enumerate(took)}
        found.append(make_row(one.name, {"entries": size}, TIME, each, "us"))
    return found


def sections(results: Results) -> list[Section]:
    sizes = list(dict.fromkeys(int(row.setting["entries"]) for row in results.rows))
    found = []
    for heading, metric, digits in (("Microseconds a query", TIME, 0), ("Recall", RECALL, 3), ("Error", ERROR, 6)):
        columns = [Column(f"{size:,}", metric, {"entries": size}, digits) for size in sizes]
        found.append(Section(heading, table=table(results, columns=columns)))
    return found
