import pytest
import torch

from warmstart.core import InputError
from warmstart.core.trees import leaves, tree_map
from warmstart.engine.capture import capture, copy_into, own
from warmstart.maths.outer import Info

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a CUDA device")


def update(state, batch):
    rows, scale = batch["rows"], state["scale"]
    return {"w": state["w"] * 0.9 + rows.sum(0) * scale, "scale": scale * 0.99}, Info(rows.square().mean())


def start(device="cuda"):
    return {"w": torch.tensor([1.0, -2.0], device=device), "scale": torch.tensor(0.3, device=device)}


def rows(count, seed, device="cuda"):
    return {"rows": torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)).to(device)}


def test_tensors_on_a_cpu_cannot_be_captured():
    with pytest.raises(InputError, match=r"CUDA.*run without capture"):
        capture(update, start("cpu"))


def test_own_shares_no_memory_and_copy_into_writes_through():
    shared = torch.arange(4.0)
    tree = {"a": shared[:2], "b": (shared[2:].expand(3, 2), torch.arange(6.0).reshape(2, 3).T)}
    mine = own(tree)
    assert all(leaf.is_contiguous() for leaf in leaves(mine))
    shared += 1
    assert mine["a"].tolist() == [0.0, 1.0] and mine["b"][0].tolist() == [[2.0, 3.0]] * 3
    pointers = [leaf.data_ptr() for leaf in leaves(mine)]
    copy_into(mine, tree)
    assert [leaf.data_ptr() for leaf in leaves(mine)] == pointers
    assert mine["a"].tolist() == [1.0, 2.0] and mine["b"][1].equal(tree["b"][1])


@needs_cuda
def test_a_captured_update_is_the_update():
    replay, state, twin = capture(update, start()), start(), start()
    for seed, count in enumerate([4, 4, 6, 4, 6]):  # a graph for each shape, all on one state
        state, info = replay(state, rows(count, seed))
        twin, expected = update(twin, rows(count, seed))
        torch.testing.assert_close(state, twin)
        torch.testing.assert_close(info.loss, expected.loss)


@needs_cuda
def test_capturing_and_replaying_leave_their_arguments_alone():
    state, batch = start(), rows(4, 0)
    kept = tree_map(torch.clone, (state, batch))
    replay = capture(update, state)
    replay(state, batch)
    torch.testing.assert_close((state, batch), kept, rtol=0, atol=0)


@needs_cuda
def test_a_state_from_elsewhere_is_taken_over_and_infos_do_not_overwrite_each_other():
    replay, other = capture(update, start()), tree_map(lambda leaf: leaf * 2, start())
    _, first = replay(start(), rows(4, 0))
    value = first.loss.item()
    state, _ = replay(other, rows(4, 1))
    torch.testing.assert_close(state, update(other, rows(4, 1))[0])
    assert first.loss.item() == value
