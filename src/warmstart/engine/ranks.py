"""Data-parallel meta-batches: processes started by torchrun add up their Deltas."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from warmstart.core.trees import Tree, flatten, unflatten


def join_ranks() -> tuple[int, int]:
    """This process's rank and their number; joins the group when started by torchrun."""
    if "WORLD_SIZE" not in os.environ:
        return 0, 1
    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank(), dist.get_world_size()


def sum_over_ranks(tree: Tree) -> Tree:
    """Every leaf summed over the processes, as one message; alone, the tree itself."""
    if not (dist.is_available() and dist.is_initialized()):
        return tree
    parts, structure = flatten(tree)
    message = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(message)
    sizes = [part.numel() for part in parts]
    return unflatten(
        [piece.reshape(part.shape) for piece, part in zip(torch.split_with_sizes(message, sizes), parts, strict=True)], structure
    )
