import pytest
import torch

from warmstart.core import Batch, InputError, make_batch, make_task, mean_loss


def test_rows_all_count_unless_told_otherwise():
    batch = make_batch({"a": torch.zeros(2, 3, 4), "b": torch.zeros(2, 3)}, torch.arange(6).reshape(2, 3))
    assert batch.w.equal(torch.ones(2, 3)) and batch.mask.equal(torch.ones(2, 3))
    weights = torch.rand(2, 3)
    assert make_batch(batch.x, batch.y, w=weights).w is weights
    assert make_batch(batch.x, batch.y.double()).w.dtype == torch.float64


def test_a_task_of_which_nothing_is_known_has_an_empty_descriptor():
    batch = make_batch(torch.zeros(5, 3, 1), torch.zeros(5, 3))
    task = make_task(batch, batch)
    assert task.descriptor.shape == (5, 0) and task.key.shape == (5,)
    one = make_task(*[Batch(*(leaf[0] for leaf in batch))] * 2)
    assert one.descriptor.shape == (0,) and one.key.shape == ()


@pytest.mark.parametrize(
    ("rows", "extra"),
    [(4, {}), (5, {"w": torch.ones(4)}), (5, {"mask": torch.ones(4)}), (5, {"w": torch.ones(1)})],
    ids=["x", "w", "mask", "broadcast"],
)
def test_one_label_weight_and_mask_per_row(rows, extra):
    with pytest.raises(InputError) as caught:
        make_batch(torch.zeros(rows, 2), torch.zeros(5), **extra)
    assert "[5]" in str(caught.value) and "per row" in caught.value.remedy


def test_mean_loss_is_the_weighted_mean_of_real_rows():
    rows = torch.tensor([1.0, 2.0, 100.0, 4.0])
    batch = make_batch(rows, rows, w=torch.tensor([1.0, 3.0, 5.0, 0.5]), mask=torch.tensor([1.0, 1.0, 0.0, 1.0]))
    torch.testing.assert_close(mean_loss(rows, batch), torch.tensor((1 + 6 + 2) / 4.5))


@pytest.mark.parametrize("rows", [0, 3])
def test_no_rows_no_loss_and_no_gradient(rows):
    losses = torch.randn(rows, requires_grad=True)
    value = mean_loss(losses, make_batch(losses.detach(), losses.detach(), mask=torch.zeros(rows)))
    value.backward()
    assert value.item() == 0 and losses.grad.equal(torch.zeros(rows))
