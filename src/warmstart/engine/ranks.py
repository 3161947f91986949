"""Data-parallel meta-batches: processes started by torchrun add up their Deltas."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from warmstart.core.trees import Tree, dense, flatten, sparse, unflatten


def join_ranks() -> tuple[int, int]:
    """This process's rank and their number; joins the group when started by torchrun."""
    if "WORLD_SIZE" not in os.environ:
        return 0, 1
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank(), dist.get_world_size()


def wait_for_ranks() -> None:
    """Until every process is here; alone, nothing."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def sum_over_ranks(tree: Tree) -> Tree:
    """Every leaf summed over the processes, as one message; alone, the tree itself. `Rows` travel as whole tables."""
    if not (dist.is_available() and dist.is_initialized()):
        return tree
    parts, structure = flatten(dense(tree))
    message = torch.cat([part.reshape(-1) for part in parts])
    dist.all_reduce(message)
    pieces = torch.split_with_sizes(message, [part.numel() for part in parts])
    summed = [piece.reshape(part.shape).to(part.dtype) for piece, part in zip(pieces, parts, strict=True)]
    return sparse(unflatten(summed, structure), tree)
