"""Folders of pictures: classes, conversions that are said, and that everything wrong is an InputError."""

import io
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from warmstart.core import InputError
from warmstart.tasks.images import make_images
from warmstart.tasks.picture_folder import find_repeats, read_folder, read_pictures, same_pictures


def noise(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def refused(call, *parts):
    with pytest.raises(InputError) as caught:
        call()
    for part in parts:
        assert re.search(part, str(caught.value)), (part, str(caught.value))
    assert "\n" not in str(caught.value)


def test_nested_classes_in_sorted_order_with_exact_pixels(tmp_path):
    pixels = {
        name: noise(i, 5, 7) for i, name in enumerate(["b/y/2.png", "b/y/10.png", "b/1.png", "a c/é.png", "B/0.PNG"])
    }
    for name, values in pixels.items():
        write(tmp_path / name, values)
    images, notes = read_folder(tmp_path)
    assert images.names == ("B", "a c", "b", "b/y")
    assert images.offsets.tolist() == [0, 1, 2, 3, 5] and images.shape == (1, 5, 7)
    assert notes == ["b: pictures in folders within are classes of their own"]
    order = ["B/0.PNG", "a c/é.png", "b/1.png", "b/y/10.png", "b/y/2.png"]
    assert torch.equal(images.pixels[:, 0], torch.from_numpy(np.stack([pixels[name] for name in order])))


def test_colour_channels_come_first(tmp_path):
    values = noise(0, 4, 6, 3)
    write(tmp_path / "a" / "0.png", values)
    images, _ = read_folder(tmp_path)
    assert torch.equal(images.pixels[0], torch.from_numpy(values.transpose(2, 0, 1)))


def test_the_most_common_size_and_mode_win_and_each_conversion_is_said_once(tmp_path):
    for i in range(3):
        write(tmp_path / "a" / f"{i}.png", noise(i, 6, 8))
    for i in range(2):
        write(tmp_path / "b" / f"{i}.png", noise(i, 9, 9, 3))
    images, notes = read_folder(tmp_path)
    assert images.shape == (1, 6, 8)
    stretched = "stretched or squeezed by more than a quarter by that"
    assert notes == ["2 pictures converted to grey", "2 pictures resized to 6 x 8", f"2 pictures {stretched}"]
    images, notes = read_folder(tmp_path, size=(9, 9), colour=True)
    assert images.shape == (3, 9, 9)
    assert notes == ["3 pictures converted to colour", "3 pictures resized to 9 x 9", f"3 pictures {stretched}"]
    _, notes = read_folder(tmp_path, size=(10, 10), colour=False)
    assert notes[1:] == ["5 pictures resized to 10 x 10", f"3 pictures {stretched}"]  # squares stay squares
    resized = Image.fromarray(noise(0, 6, 8)).convert("RGB").resize((9, 9), Image.Resampling.LANCZOS)
    assert np.array_equal(images.pixels[0].numpy(), np.array(resized).transpose(2, 0, 1))


def test_sixteen_bits_keep_their_high_byte(tmp_path):
    values = np.random.default_rng(0).integers(0, 65536, (4, 4), dtype=np.uint16)
    write(tmp_path / "a" / "0.png", values)
    images, notes = read_folder(tmp_path)
    assert np.array_equal(images.pixels[0, 0].numpy(), (values >> 8).astype(np.uint8))
    assert notes == ["1 picture reduced from 16 to 8 bits"]


@pytest.mark.parametrize(("kind", "most"), [(np.uint16, 255), (np.uint16, 4000), (np.int32, 255)])
def test_deep_pictures_that_use_few_of_their_bits_are_refused(tmp_path, kind, most):
    """Read as 16 bits they would be black; how many bits were meant they do not say."""
    write(tmp_path / "a" / "0.tif", np.full((4, 4), most, kind))
    refused(lambda: read_folder(tmp_path), "0.tif", f"none above {most}", "8 bits")


def test_names_that_are_no_text_are_refused(tmp_path):
    write(tmp_path / "a" / "0.png", noise(0, 4, 4))
    (tmp_path / "a" / "0.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/a/\xff.png"))
    refused(lambda: read_folder(tmp_path), "UTF-8", "udcff")


def test_parts_of_a_collection_are_not_classes_apart(tmp_path):
    for k, name in enumerate(("train/a", "train/b", "val/b", "Greek/a", "Latin/a")):
        write(tmp_path / name / "0.png", noise(k, 4, 4))
    refused(lambda: read_folder(tmp_path), "b in train and in val", "train")
    shutil.rmtree(tmp_path / "val")
    assert read_folder(tmp_path)[0].names == ("Greek/a", "Latin/a", "train/a", "train/b")


def test_no_class_is_left_out_of_a_whole(tmp_path):
    write(tmp_path / "a" / "0.png", noise(0, 4, 4))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "0.heic").write_text("")
    assert read_folder(tmp_path)[0].names == ("a",)
    refused(lambda: read_folder(tmp_path, whole=True), "every class", "none in b")
    shutil.rmtree(tmp_path / "b")
    write(tmp_path / "c" / "0.png", noise(1, 4, 4))
    (tmp_path / "c" / "0.png").write_bytes(b"\x89PNG")
    refused(lambda: read_folder(tmp_path, broken="skip", whole=True), "every class", "none in c")


def test_transparency_lies_on_white(tmp_path):
    values = np.zeros((3, 3, 4), np.uint8)
    values[0, 0] = 10, 20, 30, 255
    write(tmp_path / "a" / "0.png", values)
    opaque = noise(1, 3, 3, 4)
    opaque[..., 3] = 255
    write(tmp_path / "a" / "1.png", opaque)
    images, notes = read_folder(tmp_path)
    assert images.pixels[0, :, 0, 0].tolist() == [10, 20, 30] and images.pixels[0, :, 1:].eq(255).all()
    assert np.array_equal(images.pixels[1].numpy(), opaque[..., :3].transpose(2, 0, 1))
    assert notes == ["1 picture with transparency laid on white"]


def test_one_bit_palette_frames_and_camera_orientation(tmp_path):
    bits = Image.fromarray(noise(0, 4, 6)).convert("1")
    (tmp_path / "a").mkdir()
    bits.save(tmp_path / "a" / "0.png")
    images, notes = read_folder(tmp_path)
    assert images.shape == (1, 4, 6) and set(images.pixels.unique().tolist()) <= {0, 255} and not notes

    frames = [Image.fromarray(np.full((4, 6), value, np.uint8)) for value in (40, 200)]
    frames[0].save(tmp_path / "a" / "1.gif", save_all=True, append_images=frames[1:])
    images, notes = read_folder(tmp_path, colour=False)
    assert images.pixels[1].eq(40).all() and "1 picture with several frames read as the first" in notes

    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    wide = np.zeros((8, 16), np.uint8)
    wide[:, :8] = 255
    write(tmp_path / "turned" / "a" / "0.jpg", wide, exif=exif, quality=100)
    images, notes = read_folder(tmp_path / "turned")
    assert images.shape == (1, 16, 8) and notes == ["1 picture turned upright as the camera noted"]
    assert images.pixels[0, 0, :8].min() > 200 and images.pixels[0, 0, 8:].max() < 50


def test_bad_places(tmp_path):
    refused(lambda: read_folder(tmp_path / "no"), "a folder .*no, got none there; check")
    refused(lambda: read_folder(tmp_path), "a sub-folder with pictures for each class", "got no picture")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty" / "0.heic").write_bytes(b"x")
    refused(lambda: read_folder(tmp_path), r"got no picture but 2 files \(.heic, .txt\); save them as PNG, JPEG,")
    refused(lambda: read_pictures(tmp_path, (1, 9, 9)), r"1 file \(.txt\); save them as .*; sub-folders are not read")
    refused(lambda: read_folder(tmp_path / "notes.txt"), "got a file")
    write(tmp_path / "0.png", noise(0, 3, 3))
    refused(lambda: read_folder(tmp_path), "got 0.png outside any; move or remove it")
    refused(lambda: read_pictures(tmp_path / "empty", (1, 3, 3)), "pictures in .*empty, got no picture but 1 file")
    refused(lambda: read_pictures(tmp_path, (2, 3, 3)), "1 channel, grey, or 3, colour, got 2")
    refused(lambda: read_pictures(tmp_path, (1, 0, 3)), "at least 1, got 0 x 3")
    refused(lambda: read_pictures(tmp_path, (1, 3, 3), "ignore"), "'refuse' or to 'skip', got 'ignore'")


def test_broken_pictures_are_named_or_left_out(tmp_path):
    for i in range(2):
        write(tmp_path / "a" / f"{i}.png", noise(i, 20, 20))
    whole = (tmp_path / "a" / "0.png").read_bytes()
    (tmp_path / "a" / "cut.png").write_bytes(whole[:200])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "empty.jpg").write_bytes(b"")
    (tmp_path / "b" / "gone.png").symlink_to(tmp_path / "nowhere")
    refused(lambda: read_folder(tmp_path), "a whole picture in .*b/empty.jpg, got no picture or a damaged one; replace")
    images, notes = read_folder(tmp_path, broken="skip")
    assert images.names == ("a",) and images.lengths.tolist() == [2]
    assert re.fullmatch(
        "3 pictures left out as unreadable: .*a/cut.png, .*b/empty.jpg, .*b/gone.png", notes[0]
    ) and notes[1:] == ["class b left out: none of its pictures can be read"]
    assert np.array_equal(images.pixels[1, 0].numpy(), noise(1, 20, 20))
    for i in range(2):
        (tmp_path / "a" / f"{i}.png").write_bytes(whole[:200])
    refused(lambda: read_folder(tmp_path, broken="skip"), "readable pictures in .*, got 5 that are not")
    (tmp_path / "b" / "empty.jpg").unlink()
    (tmp_path / "b" / "gone.png").unlink()
    refused(lambda: read_folder(tmp_path), "a whole picture in .*a/0.png, got .*truncated")


def test_a_picture_too_large_to_be_one_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "a" / "0.png", noise(0, 20, 20))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    refused(lambda: read_folder(tmp_path), "a/0.png, got .*400 pixels")


def test_hidden_files_are_passed_over_and_others_said(tmp_path):
    for name in ("a/0.png", "a/._0.png", ".cache/0.png", "__MACOSX/a/0.png"):
        write(tmp_path / name, noise(0, 3, 3))
    (tmp_path / "a" / "labels.csv").write_text("x")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    images, notes = read_folder(tmp_path)
    assert images.names == ("a",) and len(images.pixels) == 1
    assert len(notes) == 1 and re.fullmatch("1 file left out as no picture: .*labels.csv", notes[0])


def test_flat_folder_and_single_file(tmp_path):
    write(tmp_path / "b.png", noise(0, 4, 4))
    write(tmp_path / "a.png", noise(1, 8, 8, 3))
    write(tmp_path / "deeper" / "c.png", noise(1, 8, 8))
    pixels, files, notes = read_pictures(tmp_path, (1, 4, 4))
    assert pixels.shape == (2, 1, 4, 4) and pixels.dtype == torch.uint8 and files == ["a.png", "b.png"]
    assert notes[:2] == ["1 picture converted to grey", "1 picture resized to 4 x 4"]
    assert notes[2:] == [f"1 sub-folder not read: {tmp_path / 'deeper'}"]
    assert np.array_equal(pixels[1, 0].numpy(), noise(0, 4, 4))
    one, files, _ = read_pictures(tmp_path / "b.png", (1, 4, 4))
    assert torch.equal(one[0], pixels[1]) and files == ["b.png"]


def test_repeats_within_and_between_classes(tmp_path):
    for name, seed in {"a/0": 0, "a/1": 1, "a/2": 0, "b/0": 2, "b/1": 1}.items():
        write(tmp_path / f"{name}.png", noise(seed, 3, 3))
    write(tmp_path / "b" / "2.bmp", noise(2, 3, 3))  # other bytes in the file, the same picture
    images, _ = read_folder(tmp_path)
    assert find_repeats(images) == [(0, 2), (1, 4), (3, 5)]
    other = make_images(images.pixels[[3, 0]].clone(), torch.tensor([2]), ("c",))
    assert same_pictures(images, other) == [(3, 0), (5, 0), (0, 1), (2, 1)]
    assert same_pictures(images, 255 - images.pixels) == []
    refused(lambda: same_pictures(images, images.pixels[:, :, :2]), r"shape \[1, 3, 3\] twice, got \[1, 2, 3\]")


def encoded(kind):
    buffer = io.BytesIO()
    Image.fromarray(noise(0, 9, 9, 3)).save(buffer, kind)
    return buffer.getvalue()


WHOLE = {kind: encoded(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP")}
STARTS = [b"", *(content[:8] for content in WHOLE.values())]


def only_input_errors(content):
    with TemporaryDirectory() as folder:
        (Path(folder) / "a").mkdir()
        (Path(folder) / "a" / "0.png").write_bytes(content)
        with suppress(InputError):
            images, _ = read_folder(folder, size=(4, 4))
            assert images.pixels.shape[-2:] == (4, 4)


@given(st.sampled_from(STARTS), st.binary(max_size=200))
def test_random_bytes_never_give_a_traceback(start, rest):
    only_input_errors(start + rest)


@given(
    st.sampled_from(sorted(WHOLE)),
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255))),
)
def test_damaged_pictures_never_give_a_traceback(kind, cut, changes):
    content = bytearray(WHOLE[kind][: max(1, cut % (2 * len(WHOLE[kind])))])
    for place, value in changes:
        content[place % len(content)] = value
    only_input_errors(bytes(content))


def test_folders_that_say_nothing_are_named(tmp_path):
    for name in ("a", "a/more", "b"):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4), len(name)).save(tmp_path / name / "1.png")
    (tmp_path / "c" / "deep").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    images, notes = read_folder(tmp_path)
    assert images.names == ("a", "a/more", "b")
    assert notes == [
        f"2 folders left out as without pictures: {tmp_path / 'c'}, {tmp_path / 'c' / 'deep'}",
        "a: pictures in folders within are classes of their own",
    ]
    assert read_pictures(tmp_path / "a", (1, 4, 4))[2] == [f"1 sub-folder not read: {tmp_path / 'a' / 'more'}"]
