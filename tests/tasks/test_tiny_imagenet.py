"""Tiny-ImageNet: colour pictures by class from Parquet, the file's own split, and damage that is said."""

import io
import re

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from warmstart.core import InputError
from warmstart.tasks.class_split import take_classes
from warmstart.tasks.picture_folder import find_repeats
from warmstart.tasks.tiny_imagenet import FILE, read_tiny_imagenet, split_tiny_imagenet

CLASSES = {"n3": ("crane, bird", "train"), "n1": ("crane", "test"), "n2": ("wok", "val")}


def jpeg(seed, grey=False):
    values = np.random.default_rng(seed).integers(0, 256, (8, 8) if grey else (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "JPEG")
    return buffer.getvalue()


def table():
    rows = [
        {"wnid": wnid, "words": words, "meta_split": part, "idx": idx, "jpeg": jpeg(idx, grey=idx == 2)}
        for idx in (2, 0, 1)
        for wnid, (words, part) in CLASSES.items()
    ]
    return pd.DataFrame(rows)


def write(folder, frame):
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / FILE)
    return folder / FILE


def refused(call, *parts):
    with pytest.raises(InputError) as caught:
        call()
    for part in parts:
        assert re.search(part, str(caught.value)), (part, str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("coded", [False, True])
def test_classes_and_pictures_in_order(tmp_path, coded):
    frame = table()
    file = write(
        tmp_path / "tiny_imagenet", frame.astype({"wnid": "category", "words": "category"}) if coded else frame
    )
    images = read_tiny_imagenet(file, (8, 8))
    assert images.names == ("n1 crane", "n2 wok", "n3 crane") and images.lengths.tolist() == [3, 3, 3]
    expected = np.array(Image.open(io.BytesIO(jpeg(1)))).transpose(2, 0, 1)
    assert np.array_equal(images.pixels[1].numpy(), expected)
    grey = images.pixels[2]
    assert torch.equal(grey[0], grey[1]) and torch.equal(grey[0], grey[2])
    for place in (tmp_path, tmp_path / "tiny_imagenet"):
        assert torch.equal(read_tiny_imagenet(place, (8, 8)).pixels, images.pixels)
    assert read_tiny_imagenet(file).shape == (3, 64, 64)
    split = split_tiny_imagenet(file)
    assert split == (("n3 crane",), ("n2 wok",), ("n1 crane",))
    assert torch.equal(take_classes(images, split.validation).pixels, images.pixels[3:6])


def test_bad_files(tmp_path):
    refused(lambda: read_tiny_imagenet(tmp_path), f"{FILE} in", "got none; download")
    refused(lambda: read_tiny_imagenet(tmp_path / "no"), "a folder .*no, got none there")
    file = write(tmp_path, table())
    refused(lambda: read_tiny_imagenet(file, (0, 64)), "got 0 x 64")
    whole = file.read_bytes()
    for content in (b"", b"PAR1", whole[: len(whole) // 2], whole[:-20], whole[:200] + bytes(300) + whole[500:]):
        file.write_bytes(content)
        refused(lambda: read_tiny_imagenet(file), f"{FILE}, got", "again|replace")
    write(tmp_path, table().drop(columns="jpeg"))
    refused(lambda: read_tiny_imagenet(file), f"columns wnid, words, idx, jpeg in .*{FILE}, got none named jpeg")
    write(tmp_path, table().assign(idx="a"))
    refused(lambda: read_tiny_imagenet(file), f"a Parquet file in .*{FILE}")
    write(tmp_path, table().iloc[:0])
    refused(lambda: read_tiny_imagenet(file), f"in .*{FILE}")
    write(tmp_path, table().assign(wnid=[None, *["n"] * 8]))
    refused(lambda: read_tiny_imagenet(file), f"rows without gaps in .*{FILE}, got gaps")
    write(tmp_path, table().assign(jpeg=[b"no picture", *table()["jpeg"][1:]]))
    refused(lambda: read_tiny_imagenet(file), f"a whole picture in row n3 crane, 2 of .*{FILE}")


def test_a_damaged_split_is_refused(tmp_path):
    frame = table()
    file = write(tmp_path, frame.replace({"meta_split": {"val": "other"}}))
    refused(lambda: split_tiny_imagenet(file), "one of train, val, test for each class")
    frame.loc[0, "meta_split"] = "test"
    write(tmp_path, frame)
    refused(lambda: split_tiny_imagenet(file), "two for one class")


def test_the_real_data(shared_data):
    if not (shared_data / FILE).exists():
        pytest.skip(f"no {FILE} there")
    images, split = read_tiny_imagenet(shared_data), split_tiny_imagenet(shared_data)
    assert images.pixels.shape == (20_000, 3, 64, 64) and images.lengths.unique().tolist() == [100]
    assert [len(part) for part in split] == [128, 32, 40]
    assert sorted(name for part in split for name in part) == sorted(images.names)
    (pair,) = find_repeats(images)  # one picture is both an orange and a banana
    assert [images.names[row // 100] for row in pair] == ["n07747607 orange", "n07753592 banana"]
