"""Episodes from pictures by class: what is drawn, what is padded, and that the same draw comes again."""

import pytest
import torch
from torch.testing import assert_close

from warmstart.core import InputError
from warmstart.tasks.images import as_batch, check_enough, draw_episodes, make_images, sampler, scaled, with_rotations

LENGTHS = (4, 7, 5, 9, 6, 4)


def numbered(lengths=LENGTHS):
    """Every picture has its own number in the first pixel and the number of its class, 100 up, in the second."""
    total = sum(lengths)
    pixels = torch.randint(1, 256, (total, 2, 2, 3), dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(1, total + 1)
    pixels[:, 0, 0, 1] = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)) + 100
    return make_images(pixels, torch.tensor(lengths), tuple(f"class {i}" for i in range(len(lengths))))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def numbers(batch):
    """Of the pictures and of the classes, from the pixels; 0 where blank."""
    marks = (batch.x["pixels"][:, :, 0, 0, :2] * 255).round().long()
    return marks[..., 0], marks[..., 1]


def test_episodes_have_distinct_classes_disjoint_rows_and_right_labels():
    images = numbered()
    task = draw_episodes(images, 200, 3, 2, 2, seeded())
    shown, judged = numbers(task.support), numbers(task.query)
    assert task.support.x["pixels"].shape == (200, 6, 2, 2, 3) and task.query.y.shape == (200, 6)
    assert task.support.y.tolist() == task.query.y.tolist() == [[0, 0, 1, 1, 2, 2]] * 200
    for t in range(200):
        rows = shown[0][t].tolist() + judged[0][t].tolist()
        assert len(set(rows)) == 12
        classes = shown[1][t].reshape(3, 2), judged[1][t].reshape(3, 2)
        assert torch.equal(classes[0], classes[1])  # a label means one class in support and query
        assert classes[0][:, 0].unique().numel() == 3 and torch.equal(classes[0][:, 0], classes[0][:, 1])
    # pixels are those of the pictures, between 0 and 1
    first = images.pixels[int(shown[0][0, 0]) - 1].float() / 255
    assert_close(task.support.x["pixels"][0, 0], first, rtol=0, atol=0)
    assert task.support.mask.eq(1).all() and task.query.x["real"].eq(1).all()


def test_every_picture_and_every_class_is_drawn_evenly():
    task = draw_episodes(numbered(), 6000, 2, 1, 1, seeded())
    row, label = numbers(task.query)
    share = torch.bincount(label.flatten() - 100, minlength=6) / label.numel()
    assert_close(share, torch.full((6,), 1 / 6), rtol=0, atol=0.015)
    within = torch.bincount(row.flatten(), minlength=36)[1:] / row.numel()
    expected = torch.cat([torch.full((length,), 1 / 6 / length) for length in LENGTHS])
    assert_close(within, expected, rtol=0, atol=0.008)


def test_a_generator_decides_everything():
    images = numbered()
    one, two = (draw_episodes(images, 5, 3, 2, 1, seeded(3), least=1) for _ in range(2))
    other = draw_episodes(images, 5, 3, 2, 1, seeded(4), least=1)
    for part in ("support", "query"):
        assert torch.equal(getattr(one, part).x["pixels"], getattr(two, part).x["pixels"])
        assert torch.equal(getattr(one, part).mask, getattr(two, part).mask)
    assert not torch.equal(one.query.x["pixels"], other.query.x["pixels"])


def test_unequal_shots_are_padded_with_mask_and_blank_pixels():
    task = draw_episodes(numbered(), 3000, 2, 3, 1, seeded(), least=1)
    mask = task.support.mask.reshape(3000, 2, 3)
    assert (mask[..., :-1] >= mask[..., 1:]).all()  # padding comes last in a class
    shots = mask.sum(-1).flatten().long()
    assert_close(torch.bincount(shots, minlength=4) / 6000, torch.tensor([0, 1 / 3, 1 / 3, 1 / 3]), rtol=0, atol=0.02)
    assert (mask.sum(-1)[:, 0] != mask.sum(-1)[:, 1]).any()
    assert torch.equal(task.support.x["real"], task.support.mask)
    blank = task.support.x["pixels"].flatten(2).eq(0).all(-1)
    assert torch.equal(blank, task.support.mask == 0)
    assert task.query.mask.eq(1).all()


def test_every_picture_of_a_class_can_be_used():
    task = draw_episodes(numbered((4, 4, 4)), 50, 3, 3, 1, seeded())
    rows = torch.cat([numbers(task.support)[0], numbers(task.query)[0]], 1)
    assert rows.sort(1).values.tolist() == [list(range(1, 13))] * 50


def test_rotations_are_classes_of_their_own():
    pixels = torch.randint(0, 256, (5, 2, 3, 3), dtype=torch.uint8)
    turned = with_rotations(make_images(pixels, torch.tensor([2, 3]), ("a", "b")))
    assert turned.lengths.tolist() == [2, 3] * 4 and len(set(turned.names)) == 8
    assert turned.names[:4] == ("a", "b", "a turned left", "b turned left")
    for k in range(4):
        assert torch.equal(turned.pixels[5 * k : 5 * k + 5], torch.rot90(pixels, k, (2, 3)))
    # turned left: what was at the right end of the top row is now at its left
    assert torch.equal(turned.pixels[5:10, :, 0, 0], pixels[:, :, 0, 2])


def test_classes_apart_are_no_turns_of_each_other():
    """Of seven classes, class c has the grey 10 c everywhere, so that a picture and its turns tell the class."""
    pixels = (10 * torch.arange(7, dtype=torch.uint8)).repeat_interleave(3)[:, None, None, None].expand(21, 1, 2, 2)
    upright = make_images(pixels, torch.full((7,), 3), tuple("abcdefg"))
    turned = with_rotations(upright)
    assert (upright.turns, turned.turns, turned.select(torch.tensor([0, 7])).turns) == (1, 4, 1)

    def drawn(apart):
        task = sampler(turned, 6, 1, 2, apart=apart)(400, seeded())
        return (task.support.x["pixels"][:, :, 0, 0, 0] * 25.5).round().long(), task

    apart, task = drawn(True)
    assert all(len(set(row)) == 6 for row in apart.tolist())
    assert (task.query.x["pixels"].flatten(2)[..., :1] == task.query.x["pixels"].flatten(2)).all()
    assert (apart.flatten().bincount() - 400 * 6 / 7).abs().max() < 60  # every class as often
    together, _ = drawn(False)
    assert sum(len(set(row)) < 6 for row in together.tolist()) > 300
    with pytest.raises(InputError, match="at least 8 classes that are not turns of each other, got 7; lower the way"):
        sampler(turned, 8, 1, 2, apart=True)


def test_every_turn_is_drawn_as_often_apart():
    marked = torch.zeros(2 * 4, 1, 2, 2, dtype=torch.uint8)
    marked[:, :, 0, 0] = 255  # the corner tells the turn
    turned = with_rotations(make_images(marked, torch.tensor([4, 4]), ("a", "b")))
    task = sampler(turned, 2, 1, 3, apart=True)(2000, seeded())
    corner = task.support.x["pixels"].flatten(2).argmax(-1)  # [t, 2]
    shares = corner.flatten().bincount(minlength=4) / corner.numel()
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.03, rtol=0)
    judged = task.query.x["pixels"].flatten(2).argmax(-1).reshape(2000, 2, 3)
    assert (judged == corner[..., None]).all()  # a class is turned as one


def test_select_equals_plain_indexing():
    images = numbered()
    part = images.select(torch.tensor([4, 0, 4, 2]))
    rows = [range(sum(LENGTHS[:c]), sum(LENGTHS[: c + 1])) for c in (4, 0, 4, 2)]
    assert torch.equal(part.pixels, images.pixels[[row for each in rows for row in each]])
    assert part.names == ("class 4", "class 0", "class 4", "class 2")
    assert part.lengths.tolist() == [6, 4, 6, 5] and part.offsets.tolist() == [0, 6, 10, 16, 21]
    empty = images.select(torch.tensor([], dtype=torch.long))
    assert empty.names == () and empty.pixels.shape == (0, 2, 2, 3) and empty.offsets.tolist() == [0]


def test_too_few_pictures_or_classes_are_said_with_the_class():
    images = numbered()
    check_enough(images, 6, 4)
    with pytest.raises(InputError, match=r"5 pictures in every class.*, got 4 in class 0; add pictures"):
        check_enough(images, 2, 5)
    with pytest.raises(InputError, match="got 4 in class 5"):
        check_enough(images.select(torch.tensor([1, 5, 3])), 2, 5)
    with pytest.raises(InputError, match="at least 7 classes, got 6"):
        check_enough(images, 7, 1)
    with pytest.raises(InputError, match="at least two classes and one picture of each, got 1 and 1"):
        check_enough(images, 1, 1)
    with pytest.raises(InputError, match="got 2 and 0"):
        check_enough(images, 2, 0)
    with pytest.raises(InputError, match="5 pictures in every class"):
        draw_episodes(images, 1, 2, 3, 2, seeded())


def test_lengths_and_names_must_fit():
    pixels = torch.zeros(5, 1, 2, 2, dtype=torch.uint8)
    with pytest.raises(InputError, match="5 pictures and 2 names for lengths that add up to 4"):
        make_images(pixels, torch.tensor([2, 2]), ("a", "b"))
    with pytest.raises(InputError, match="5 pictures and 1 names"):
        make_images(pixels, torch.tensor([2, 3]), ("a",))


def test_pixels_are_divided_by_255_and_masked_rows_are_blank(float64):
    images = numbered()
    rows, label = torch.tensor([[3, 30]]), torch.tensor([[1, 0]])
    batch = as_batch(scaled(images, rows), label, torch.tensor([[1.0, 0.0]]))
    assert_close(batch.x["pixels"][0, 0], images.pixels[3].double() / 255)
    assert batch.x["pixels"][0, 1].eq(0).all() and batch.y.tolist() == [[1, 0]]
    assert batch.x["real"].tolist() == batch.mask.tolist() == [[1, 0]]
    assert as_batch(batch.x["pixels"], label).mask.tolist() == [[1, 1]]


def test_what_cannot_be_turned_or_drawn_is_said():
    wide = make_images(torch.zeros(4, 1, 2, 3, dtype=torch.uint8), torch.tensor([2, 2]), ("a", "b"))
    with pytest.raises(InputError, match="square"):
        with_rotations(wide)
    with pytest.raises(InputError, match="0 to 1 pictures"):
        draw_episodes(wide, 1, 2, 1, 1, torch.Generator(), least=2)
