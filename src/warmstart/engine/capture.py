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


def capture(update: Update, state: Any, batch: Any, warmup: int = 3) -> Update:
    """`update` as a CUDA graph, for batches shaped like `batch`. `state` and `batch` are not changed.

    The result has the signature of `update`; the state it returns is the static one, and handing
    that back in costs nothing.
    """
    if any(leaf.device.type != "cuda" for leaf in leaves((state, batch))):
        raise InputError("state and batch on a CUDA device", "tensors elsewhere", "move them, or run without capture")
    static_state, static_batch = own(state), own(batch)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            update(static_state, static_batch)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new, info = update(static_state, static_batch)
        copy_into(static_state, new)
    structure = flatten(info)[1]
    results = leaves(info)
    buffers = leaves(static_batch)

    def replay(state: Any, batch: Any) -> tuple[Any, Any]:
        if state is not static_state:
            copy_into(static_state, state)
        torch._foreach_copy_(buffers, leaves(batch))
        graph.replay()
        return static_state, unflatten([leaf.clone() for leaf in results], structure)

    return replay
