"""A pure update captured once in a CUDA graph and replayed.

The state lives in static buffers that every replay overwrites, so updates chain on the device
without the host waiting. Read `state` to look at it; a replay changes what was read, so copy it
to keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warmstart.core import InputError
from warmstart.core.trees import Tree, flatten, leaves, tree_map, unflatten

Update = Callable[[Any, Any], tuple[Any, Any]]


def own(tree: Tree) -> Tree:
    """A copy that shares no memory with anything, each leaf contiguous."""
    return tree_map(lambda leaf: leaf.detach().clone(memory_format=torch.contiguous_format), tree)


def copy_into(target: Tree, source: Tree) -> None:
    torch._foreach_copy_(leaves(target), leaves(source))


def capture(update: Update, state: Any, warmup: int = 3) -> Update:
    """`update` as CUDA graphs, one for each shape of batch, captured when that shape first comes.

    The result has the signature of `update`; the state it returns is the static one, and handing
    that back in costs nothing. The `state` given here is not changed.
    """
    if any(leaf.device.type != "cuda" for leaf in leaves(state)):
        raise InputError("a state on a CUDA device", "tensors elsewhere", "move it, or run without capture")
    static = own(state)
    replays: dict[Any, Callable[[Any], Any]] = {}

    def call(state: Any, batch: Any) -> tuple[Any, Any]:
        if state is not static:
            copy_into(static, state)
        shapes = tuple([leaf.shape for leaf in leaves(batch)])
        if shapes not in replays:
            replays[shapes] = _record(update, static, batch, warmup)
        return static, replays[shapes](batch)

    return call


def _record(update: Update, static: Any, batch: Any, warmup: int) -> Callable[[Any], Any]:
    static_batch = own(batch)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            update(static, static_batch)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new, info = update(static, static_batch)
        copy_into(static, new)
    buffers, (results, structure) = leaves(static_batch), flatten(info)
    held: list[tuple[torch.Tensor, int]] = []  # what the buffers hold, and its version when it was copied

    def replay(batch: Any) -> Any:
        given = leaves(batch)
        fresh = [i for i, leaf in enumerate(given) if not held or leaf is not held[i][0] or leaf._version != held[i][1]]
        if fresh:
            torch._foreach_copy_([buffers[i] for i in fresh], [given[i] for i in fresh])
            held[:] = [(leaf, leaf._version) for leaf in given]
        graph.replay()
        return unflatten([leaf.clone() for leaf in results], structure)

    return replay
