"""Splits of classes: fixed by seed and names, kept in a file."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warmstart.core import InputError
from warmstart.tasks.class_split import load_split, save_split, split_classes, take_classes
from warmstart.tasks.images import make_images
from warmstart.tasks.split import Split


def classes(names, each=2):
    pixels = torch.arange(len(names) * each, dtype=torch.uint8).reshape(-1, 1, 1, 1)
    return make_images(pixels, torch.full((len(names),), each), tuple(names))


@given(st.permutations([f"c{i}" for i in range(12)]), st.integers(0, 9))
def test_parts_depend_on_names_and_seed_alone_and_keep_the_data_order(names, seed):
    split = split_classes(classes(names), (7, 2, 3), seed)
    assert [len(part) for part in split] == [7, 2, 3]
    assert sorted(name for part in split for name in part) == sorted(names)
    usual = split_classes(classes(sorted(names)), (7, 2, 3), seed)
    assert [set(part) for part in split] == [set(part) for part in usual]
    assert all(list(part) == [name for name in names if name in part] for part in split)


def test_counts_shares_and_a_fixed_result():
    images = classes("abcdefghij")
    assert split_classes(images, (7, 1, 2), 1) == split_classes(images, (0.7, 0.1, 0.2), 1)
    # a split must come out the same on every machine and in every later version
    assert split_classes(images, (7, 1, 2), 1) == (tuple("abcdfij"), ("e",), ("g", "h"))
    assert split_classes(images, (7, 1, 2), 1) != split_classes(images, (7, 1, 2), 2)


@pytest.mark.parametrize("parts", [(7, 1, 1), (7, 3), (0, 5, 5), (12, -1, -1), ()])
def test_bad_counts(parts):
    with pytest.raises(InputError, match="three counts that add up to 10 classes"):
        split_classes(classes("abcdefghij"), parts)


def test_bad_shares_and_repeated_names():
    with pytest.raises(InputError, match="three fractions that sum to 1"):
        split_classes(classes("abc"), (0.5, 0.2, 0.2))
    with pytest.raises(InputError, match="distinct class names, got 'a' more than once"):
        split_classes(classes("aba"), (1, 1, 1))


def test_take_classes_gives_their_pictures_in_the_order_asked():
    part = take_classes(classes("abcd"), ("d", "b"))
    assert part.names == ("d", "b") and part.pixels.flatten().tolist() == [6, 7, 2, 3]
    assert take_classes(classes("ab"), ()).pixels.shape == (0, 1, 1, 1)
    with pytest.raises(InputError, match="3 classes of a split in the data, got 2 missing, the first 'x'"):
        take_classes(classes("ab"), ("a", "x", "y"))


def test_a_saved_split_comes_back(tmp_path):
    split = Split(("é/1", "b"), (), ("\udce9",))
    save_split(tmp_path / "new" / "split.json", split)
    assert load_split(tmp_path / "new" / "split.json") == split


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "readable JSON"),
        ("[]", "train, validation and test in .*, got list"),
        ('{"train": []}', "got train;"),
        ('{"train": ["a"], "validation": "b", "test": []}', "three lists of class names"),
        ('{"train": ["a"], "validation": [1], "test": []}', "three lists of class names"),
        ('{"train": ["a"], "validation": [], "test": ["a"]}', "each class once in .*, got 'a' more than once"),
    ],
)
def test_damaged_splits_are_refused(tmp_path, content, message):
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        load_split(path)


def test_the_file_is_plain_json(tmp_path):
    save_split(tmp_path / "s.json", Split(("a",), ("b",), ("c",)))
    assert json.loads((tmp_path / "s.json").read_text()) == {"train": ["a"], "validation": ["b"], "test": ["c"]}
