"""Processes that add up; two real ones meet in the conformance suite of the learners."""

import pytest
import torch
import torch.distributed as dist

from warmstart.core.trees import flatten, leaves
from warmstart.engine.ranks import join_ranks, sum_over_ranks

TREE = {
    "grad": (torch.randn(2, 3), torch.tensor(1.5)),
    "none": (),
    "rows": torch.tensor([2**24 + 1, 3]),
    "fine": torch.tensor([1 / 3], dtype=torch.float64),
    "empty": torch.zeros(0, 4),
}


@pytest.fixture
def alone():
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_without_a_group_there_is_one_rank_and_nothing_to_add(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_ranks() == (0, 1)
    assert sum_over_ranks(TREE) is TREE
    assert not dist.is_initialized()


def test_a_message_comes_back_with_its_shapes_and_kinds_of_number(alone):
    found = sum_over_ranks(TREE)
    assert flatten(found)[1] == flatten(TREE)[1]
    for left, right in zip(leaves(found), leaves(TREE), strict=True):
        assert left.dtype == right.dtype and left.equal(right)


def test_what_is_added_is_a_copy(alone):
    tree = {"w": torch.ones(2)}
    sum_over_ranks(tree)["w"].zero_()
    assert tree["w"].tolist() == [1.0, 1.0]


def test_with_cuda_each_rank_takes_its_own_device_and_cpu_tensors_still_add_up(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: asked.append(index))
    monkeypatch.setattr(dist, "init_process_group", asked.append)
    monkeypatch.setattr(dist, "get_rank", lambda: 7)
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert join_ranks() == (7, 8)
    assert asked == [3, "cpu:gloo,cuda:nccl"]
