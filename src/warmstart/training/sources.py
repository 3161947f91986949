"""Where meta-batches come from: functions of the step's number, so that a run can be resumed exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from warmstart.core import InputError, Noise, Task
from warmstart.core.trees import take, tree_map
from warmstart.engine.meta import Feed
from warmstart.engine.noise import generator, train_noise
from warmstart.tasks.pool import Pool, buckets, episodes

Source: TypeAlias = Callable[[int], Feed]


def divided(source: Source, rank: int, ranks: int) -> Source:
    """Of every meta-batch the tasks of one process; together the processes have all, so that they train as one."""
    if ranks == 1:
        return source

    def part(step: int) -> Feed:
        feed = source(step)
        if len(feed.tasks.key) < ranks:
            raise InputError(f"{ranks} tasks in a meta-batch", f"{len(feed.tasks.key)}", "start fewer processes")
        return Feed(*take(tuple(feed), slice(rank, None, ranks)))

    return part


def from_pool(
    pool: Pool,
    tasks: int,
    support: int,
    query: int,
    seed: int,
    noise: Noise = Noise(),
    groups: int = 4,
) -> Source:
    """Meta-batches of `tasks` tasks of similar length, each with 0 to `support` rows shown.

    A batch is of one length bucket, drawn in proportion to the bucket's size.
    """
    parts = buckets(pool.lengths.cpu(), groups if int(pool.lengths.max()) > int(pool.lengths.min()) else 1)
    share = torch.tensor([float(len(part)) for part in parts])
    device = pool.y.device
    parts = [part.to(device) for part in parts]
    widths = [int(pool.lengths[part].max()) for part in parts]

    def source(step: int) -> Feed:
        host = generator(seed, step, 0, 1)
        which = int(torch.multinomial(share, 1, generator=host))
        part, width = parts[which], widths[which]
        draw = generator(seed, step, 0, device=device)
        ids = part[torch.randint(len(part), (tasks,), generator=draw, device=device)]
        shown = torch.randint(support + 1, (tasks,), generator=draw, device=device)
        task = episodes(pool, ids, min(support, width), min(query, width), draw, shown, width)
        return Feed(task, train_noise(noise, tasks, draw))

    return source


def from_users(
    pool: Pool, tasks: int, part: int, fewer: float, seed: int, noise: Noise = Noise(), groups: int = 4
) -> Source:
    """Meta-batches of `tasks` users of similar length, one in `part` of whose rows is judged and the others shown;
    a share `fewer` of the users shows a random number of them, often a small one. Rows are padded to the longest user
    of their bucket, or to a half, a quarter and so on of it where all who are drawn fit: one may be far longer."""
    parts = [ids.to(pool.y.device) for ids in buckets(pool.lengths.cpu(), groups)]
    share = torch.tensor([float(len(ids)) for ids in parts])
    widths = [_halvings(int(pool.lengths[ids].max()), int(pool.lengths[ids].min())) for ids in parts]

    def source(step: int) -> Feed:
        which = int(torch.multinomial(share, 1, generator=generator(seed, step, 0, 1)))
        ids, (width, *narrower) = parts[which], widths[which]
        draw = generator(seed, step, 0, device=pool.y.device)
        chosen = ids[torch.randint(len(ids), (tasks,), generator=draw, device=ids.device)]
        cut = torch.rand(2, tasks, generator=draw, device=ids.device)
        shown = torch.where(cut[0] < fewer, (cut[1] ** 3 * (width + 1)).long(), width)
        longest = int(pool.lengths[chosen].max()) if narrower else width
        padded = min(most for most in (width, *narrower) if most >= longest)
        query = max(padded // part, 1)
        task = episodes(pool, chosen, padded - query, query, draw, shown, width, part)
        return Feed(task, train_noise(noise, tasks, draw))

    return source


def _halvings(longest: int, shortest: int) -> list[int]:
    """The longest, its half, rounded up, and so on, as far as the shortest fits.

    >>> _halvings(100, 20)
    [100, 50, 25]
    """
    found = [longest]
    while found[-1] > 1 and -(-found[-1] // 2) >= shortest:
        found.append(-(-found[-1] // 2))
    return found


def from_family(
    draw: Callable[[int, torch.Generator], Task],
    tasks: int,
    seed: int,
    noise: Noise = Noise(),
    device: torch.device | str = "cpu",
    block: int = 100,
    together: bool = False,
) -> Source:
    """Meta-batches of fresh tasks, drawn for `block` updates at a time: one draw is a handful of operations.

    With `together` a step is the whole block, with a leading axis, for `Plan.together`.
    """
    held: tuple[int, Feed] | None = None

    def drawn(which: int) -> Feed:
        source = generator(seed, which, 0, device=device)
        feed = Feed(draw(tasks * block, source), train_noise(noise, tasks * block, source))
        return Feed(*tree_map(lambda leaf: leaf.unflatten(0, (block, tasks)), tuple(feed)))

    def source(step: int) -> Feed:
        nonlocal held
        which, place = divmod(step, block)
        if held is None or held[0] != which:
            held = which, drawn(which)
        return Feed(*take(tuple(held[1]), place))

    return drawn if together else source
